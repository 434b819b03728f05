"""Texts and pairs of texts with an answer each: what their families share."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead, FeatureHead, PairHead
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family
from electra.tasks.record import Record
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.tokenizing.tokenizer import Tokenizer


class Example(NamedTuple):
    """A text or a pair of texts, and its answer."""

    text_a: str
    text_b: str | None
    label: Any
    """As the family has it: index of a label, indices of labels, numbers; None if it is unknown."""


@dataclass(frozen=True)
class Texts(Family):
    """A family whose every item is a text or a pair of texts. The output is "logits"."""

    reads_features: ClassVar[bool] = True
    pools: ClassVar[bool] = True

    metrics: tuple[str, ...] = ()
    has_pairs: bool = field(default=False, kw_only=True)
    """Whether an example is a pair of texts."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Numbers that the head gives for each row."""

    @abstractmethod
    def encode_labels(self, labels: Sequence[Any]) -> Tensor:
        """Return the labels of examples, of which any may be None, as the target "labels"."""

    @property
    def fields(self) -> tuple[str, ...]:
        """One text or two."""
        return ("text_a", "text_b") if self.has_pairs else ("text",)

    def parse(self, record: Record) -> Example:
        """Return {"text": ...}, or {"text_a": ..., "text_b": ...} of pairs, as an example."""
        if self.has_pairs:
            return Example(record.text("text_a"), record.text("text_b"), None)
        return Example(record.text("text"), None, None)

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return each example as one row of at most `sequence_length` tokens."""
        firsts = encode_texts(tokenizer, [each.text_a for each in examples], sequence_length)
        pairs = [each.text_b for each in examples if each.text_b is not None]
        seconds = iter(encode_texts(tokenizer, pairs, sequence_length))
        texts = [
            (first, None if each.text_b is None else next(seconds))
            for each, first in zip(examples, firsts, strict=True)
        ]
        labels = self.encode_labels([each.label for each in examples])
        return pack_rows(texts, {"labels": labels}, tokenizer, sequence_length, examples)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return a linear layer on one state of a row or on those of two texts, or BiLSTMs."""
        size, count, drop = sizes.hidden_size, self.num_outputs, config.dropout_prob
        if config.features.layers:
            return FeatureHead(size, count, config.features, of="row", dropout_prob=drop)
        if config.pooling == "segments" and self.has_pairs:
            return PairHead(size + sizes.embedding_size, count, drop)
        pooling = "mean" if config.pooling == "segments" else config.pooling
        return ClassifierHead(sizes, count, drop, pooling)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return (B, `num_outputs`) numbers."""
        rows = states, batch.attention_mask
        if isinstance(head, PairHead):
            assert batch.token_type_ids is not None
            return {"logits": head(*rows, batch.token_type_ids)}
        return {"logits": head(*rows)}
