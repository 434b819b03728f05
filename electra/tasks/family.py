"""What a family of tasks answers for, the records it is asked, and a labelled data set."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig
from electra.errors import did_you_mean, require
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tokenizing.tokenizer import Tokenizer

KINDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list"}


@dataclass(frozen=True)
class Record:
    """The fields of one object of a user's, such as one that a fine-tuned model is asked."""

    place: str
    """What messages name it."""
    fields: Mapping[str, Any]
    number: int = 0
    """Its position among the records of a request, from 1."""

    def __post_init__(self) -> None:
        self.require(
            isinstance(self.fields, Mapping),
            f"{reprlib.repr(self.fields)} must be a dictionary of fields",
        )

    def text(self, name: str) -> str:
        """Return a field that is text; refuse a missing field and any other value."""
        return self.take(name, str)

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts; refuse a missing field and any other value."""
        values = self.take(name, list, "a list of texts")
        is_text = all(isinstance(value, str) for value in values)
        self.require(is_text, f"{name!r} is {reprlib.repr(values)}; it must be a list of texts")
        return values

    def take(self, name: str, kind: type, rule: str = "") -> Any:
        """Return a field of a kind in KINDS; refuse a missing field and any other value."""
        rule = rule or KINDS[kind]
        if name not in self.fields:
            near = did_you_mean(name, map(str, self.fields)) if self.fields else ""
            self.require(False, f"no {name!r}, which must be {rule}{near}")
        value = self.fields[name]
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        self.require(fits, f"{name!r} is {reprlib.repr(value)}; it must be {rule}")
        return value

    def require(self, rule_holds: bool, message: str) -> None:
        """Raise UserError with the record's place and the message unless the rule holds."""
        require(rule_holds, f"{self.place}: {message}")


def number_records(values: Iterable[Any]) -> list[Record]:
    """Return dictionaries as records, numbered from 1; refuse any other value."""
    return [Record(f"record {number}", value, number) for number, value in enumerate(values, 1)]


class Constant(NamedTuple):
    """The best constant answer: what a model can reach without reading the text."""

    loss: float
    """Its loss on train."""
    scores: dict[str, float]
    """Its scores on dev."""


class Family(ABC):
    """A kind of question and its possible answers.

    The `rows` that methods take come from `encode` and hold the examples that they encode. The
    `outputs` are those of the network for all items of the rows.
    """

    metrics: tuple[str, ...]
    """Names of the scores that `score` returns; the first is the headline. Greater is better. Empty
    for a saved model, which is not scored."""
    longest_row: ClassVar[int] = 128
    """Default sequence length, in tokens. Source: Table 7."""
    reads_features: ClassVar[bool] = False
    """Whether the head may be a FeatureHead on a frozen encoder."""

    @property
    def headline(self) -> str:
        """The metric that summaries report and that selects checkpoints."""
        return self.metrics[0]

    @abstractmethod
    def parse(self, record: Record) -> Any:
        """Return a record as an example without a label.

        Raises:
            UserError: A field is missing or has a wrong value; the message names both.
        """

    @abstractmethod
    def read_records(
        self, path: Path, columns: Sequence[str], trained: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the records in a file, as `parse` takes them; labels in the file are ignored.

        Args:
            path: The file, compressed or not.
            columns: Names of the columns to read; empty: those of training.
            trained: The columns of training, `Task.columns`.

        Raises:
            UserError: The file cannot be read, is empty or does not fit.
        """

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, sequence_length: int) -> Rows:
        """Return examples as rows of at most `sequence_length` tokens."""

    @abstractmethod
    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return the output layer."""

    @abstractmethod
    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return the outputs of the head, float32.

        Args:
            head: The module that `build_head` returned.
            states: Hidden states of the encoder's last layer, (B * C, l, H); for a FeatureHead
                those of K layers, (K, B, l, H).
            batch: The batch that the encoder read.
        """

    @abstractmethod
    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return every metric as a fraction; empty if the labels are unknown."""

    @abstractmethod
    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return the loss and the scores of the best constant answer."""

    @abstractmethod
    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions on dev are the same but the labels are not."""

    @abstractmethod
    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write the predictions on a split into a folder."""

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return the scores on dev of the mean of the predictions in these folders.

        Empty for families whose predictions have no mean, and if a prediction is not finite.
        """
        return {}

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what `from_facts` needs to restore the family; "family" is its name."""

    @classmethod
    @abstractmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model.

        Args:
            facts: Those of `facts`, the "task" and its "columns".
        """

    @abstractmethod
    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return a dictionary for each example: the answer and its probability.

        Values are text, numbers and lists of text. All dictionaries have the same keys.
        """


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
