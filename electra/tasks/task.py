"""What the fine-tuning loop asks of a task, whatever its family.

A family turns files into examples, examples into rows and targets, states of the encoder into
answers, and answers into scores: classification.py is the simplest.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig
from electra.corpus.tokenizer import Tokenizer
from electra.tasks.rows import Outputs, Rows, TaskBatch


class Constant(NamedTuple):
    """The best answer that never looks at the text: the floor of any model."""

    loss: float
    """Its loss on train."""
    scores: dict[str, float]
    """Its scores on dev."""


class Task(ABC):
    """A question and every example of it."""

    name: str
    metrics: tuple[str, ...]
    """What `score` returns; the first is the headline, the greater the better."""
    examples: dict[str, list[Any]]
    """By split: "train", "dev", and what else there is to be answered. Labels are known in the
    former two."""
    epochs: int
    """Passes over train if the user does not say. Source: Table 7."""
    files: tuple[Path, ...]
    """What was read, for manifests."""
    columns: tuple[str, ...]
    """Which columns or fields of the files were read."""
    longest_row: ClassVar[int] = 128
    """Tokens of the longest row if the user does not say. Source: Table 7."""
    reads_features: ClassVar[bool] = False
    """Whether its head may be a FeatureHead on an encoder that does not learn."""

    @property
    def headline(self) -> str:
        """The metric that summaries are made of."""
        return self.metrics[0]

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, sequence_length: int) -> dict[str, Rows]:
        """Return the examples of every split as rows of at most `sequence_length` tokens."""

    @abstractmethod
    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return the output layer."""

    @abstractmethod
    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return what the output layer says, float32.

        Args:
            head: It.
            states: The encoder's, (B * C, l, H); for a FeatureHead those of K layers,
                (K, B, l, H).
            batch: What the encoder read.
        """

    @abstractmethod
    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean loss over what is scored."""

    @abstractmethod
    def score(self, split: str, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return every metric of a split, as fractions; nothing where its labels are not known."""

    @abstractmethod
    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return what the best constant answer gives."""

    @abstractmethod
    def describe_collapse(self, rows: Rows, outputs: Outputs) -> str | None:
        """Return what all dev answers are, if they are one and the same though they should not."""

    @abstractmethod
    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write the answers of a split into a folder."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what a saved model must know to answer again; "family" says whose facts it is."""

    @classmethod
    @abstractmethod
    def from_facts(cls, facts: dict[str, Any], examples: dict[str, list[Any]]) -> Self:
        """Return the task of a saved model, with examples to be answered."""

    @abstractmethod
    def describe_answers(self, split: str, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return a record for each example of a split: what is answered, and how surely.

        Values are text, numbers and lists of text; those of a split have the same names.
        """
