"""A task: the examples of every split, and the family that encodes, answers and scores them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.corpus.tokenizer import Tokenizer
from electra.tasks.family import Family
from electra.tasks.rows import Rows


@dataclass(frozen=True)
class Task:
    """A labelled data set and the family of its questions."""

    name: str
    family: Family
    examples: dict[str, list[Any]]
    """By split: "train" and "dev", which have labels, and splits to predict, such as "test"."""
    epochs: int = 3
    """Default number of passes over train. Source: Table 7."""
    files: tuple[Path, ...] = ()
    """The files that were read, for manifests."""
    columns: tuple[str, ...] = ()
    """The columns or fields that were read; the last is that of the label."""
    swapped_pairs: tuple[Any, ...] = ()
    """Training examples in addition to "train": its pairs in reverse order."""

    def encode(self, tokenizer: Tokenizer, sequence_length: int) -> dict[str, Rows]:
        """Return the rows of every split, of at most `sequence_length` tokens."""
        splits = dict(self.examples)
        if self.swapped_pairs:
            splits["train"] = [*splits["train"], *self.swapped_pairs]
        return {
            split: self.family.encode(examples, tokenizer, sequence_length)
            for split, examples in splits.items()
        }
