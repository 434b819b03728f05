"""Texts and pairs of texts with an answer each: what their families share."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead, FeatureHead, PairHead
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family
from electra.tasks.record import Record
from electra.tasks.rows import (
    Outputs,
    Rows,
    TaskBatch,
    encode_texts,
    overlap_of,
    pack_rows,
    start_windows,
)
from electra.tokenizing.tokenizer import Tokenizer

Join = Literal["mean", "max", "first"]
JOINS: tuple[Join, ...] = ("mean", "max", "first")
"""How the logits of a text's windows become one: of each output the mean or the greatest, or those
of the first window. Among equal scores on dev the first way in this order is taken."""


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
    max_windows: int = field(default=1, kw_only=True)
    """Maximum rows per text; longer texts are cut. More than 1: only for single texts."""
    join: Join | None = field(default=None, kw_only=True)
    """How windows are joined; None before this is chosen on dev: the mean is used until then."""

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
        """Return each example as one row of at most `sequence_length` tokens, or as its windows."""
        size, overlap = sequence_length - 2, overlap_of(sequence_length)
        stride, most = size - overlap, self._num_read
        firsts = encode_texts(
            tokenizer,
            [each.text_a for each in examples],
            self.max_tokens(sequence_length) + 2,  # more than fits shows that a text is cut
        )
        pairs = [each.text_b for each in examples if each.text_b is not None]
        seconds = iter(encode_texts(tokenizer, pairs, sequence_length))
        texts, counts = [], []
        for each, first in zip(examples, firsts, strict=True):
            second = None if each.text_b is None else next(seconds)
            *starts, last = start_windows(len(first), size, stride)[:most]
            windows = [*(first[start : start + size] for start in starts), first[last:]]
            texts += [(window, second) for window in windows]
            counts.append(len(windows))
        labels = {"labels": self.encode_labels([each.label for each in examples])}
        return pack_rows(texts, labels, tokenizer, sequence_length, examples, counts)

    def max_tokens(self, sequence_length: int) -> int:
        """Return the tokens of a text that are read."""
        size = sequence_length - 2
        return size + (self._num_read - 1) * (size - overlap_of(sequence_length))

    @property
    def _num_read(self) -> int:
        """Windows of a text that are read."""
        return 1 if self.join == "first" else self.max_windows

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
        """Return (B, `num_outputs`) numbers; for windows also those of each way to join them."""
        rows = states, batch.attention_mask
        if isinstance(head, PairHead):
            assert batch.token_type_ids is not None
            return {"logits": head(*rows, batch.token_type_ids)}
        logits = head(*rows)
        if self.max_windows == 1:
            return {"logits": logits}
        ways = join_windows(logits, batch.begins)
        return {"logits": ways[self.join or "mean"], **ways}

    def fit_to_dev(self, dev: Rows, outputs: Outputs) -> tuple[Self, Outputs]:
        """Return the family with the way to join windows that is best on dev, and its outputs."""
        if self.max_windows == 1:
            return self.fit_answers(dev, outputs), outputs
        fits = []
        for way in JOINS:
            joined = {"logits": outputs[way]}
            fits.append((replace(self, join=way).fit_answers(dev, joined), joined))
        return max(fits, key=lambda fit: fit[0].score(dev, fit[1])[self.headline])

    def fit_answers(self, dev: Rows, outputs: Outputs) -> Self:
        """Return the family with what else dev decides, from the logits; by default nothing."""
        return self

    def tell_windows(self) -> dict[str, Any]:
        """Return what a family that reads windows has in its facts, and in config.json."""
        if self.max_windows == 1:
            return {}
        return {"windows": {"max_windows": self.max_windows, "join": self.join}}

    @staticmethod
    def restore(facts: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of this class of a saved model."""
        return {"has_pairs": len(facts["columns"]) == 2, **facts.get("windows", {})}


def join_windows(logits_RC: Tensor, begins: Tensor | None) -> Outputs:
    """Return the logits (B, C) of each item in each way of JOINS, from those of its rows."""
    if begins is None:
        return {way: logits_RC for way in JOINS}
    return {
        "mean": torch.segment_reduce(logits_RC, "mean", offsets=begins),
        "max": torch.segment_reduce(logits_RC, "max", offsets=begins),
        "first": logits_RC[begins[:-1]],
    }
