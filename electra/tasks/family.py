"""What fine-tuning and serving ask of a family of tasks.

A family turns records into examples, examples into rows and targets, hidden states of the encoder
into answers, and answers into scores. It holds no examples: a fine-tuned model keeps its family and
is asked again and again. The simplest family is in classification.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig
from electra.corpus.tokenizer import Tokenizer
from electra.tasks.records import Record
from electra.tasks.rows import Outputs, Rows, TaskBatch


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
