"""Classification and regression of texts and pairs: the label is a name or a number."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig
from electra.errors import UserError, did_you_mean, require
from electra.model.heads import ClassifierHead, FeatureHead, PairHead, build_inner
from electra.tasks.family import Constant, Family, Record
from electra.tasks.metrics import score
from electra.tasks.predictions import predictions_name, write_labels, write_numbers
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_row, pad_rows
from electra.text.tables import TableFile
from electra.tokenizing.tokenizer import Tokenizer


class Example(NamedTuple):
    """A text or a pair of texts, and its label."""

    text_a: str
    text_b: str | None
    label: int | float | None
    """Index of the label's name, or the number itself; None if it is unknown."""


@dataclass(frozen=True)
class Classification(Family):
    """Texts or pairs with one of `labels`, or of a regression with a number in `label_range`."""

    reads_features: ClassVar[bool] = True

    metrics: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the labels; empty for a regression."""
    label_range: tuple[float, float] | None = None
    """Smallest and largest label of a regression; None: the labels are names."""
    has_pairs: bool = False
    """Whether an example is a pair of texts."""

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
        rows, first_lengths, num_cut = [], [], 0
        for example, first in zip(examples, firsts, strict=True):
            second = None if example.text_b is None else next(seconds)
            row, first_length = pack_row(
                first, second, sequence_length, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id
            )
            num_cut += len(first) + len(second or []) > len(row) - (2 if second is None else 3)
            rows.append(row)
            first_lengths.append(first_length)
        targets = {"labels": self._targets([example.label for example in examples])}
        return pad_rows(
            rows,
            first_lengths,
            targets,
            pad_id=tokenizer.pad_id,
            num_cut=num_cut,
            examples=examples,
        )

    def _targets(self, labels: Sequence[int | float | None]) -> Tensor:
        """Return labels int64, -1 if unknown; for a regression scaled to [0, 1], NaN if unknown."""
        if self.label_range is None:
            return torch.tensor([-1 if x is None else x for x in labels], dtype=torch.int64)
        least, greatest = self.label_range
        known = torch.tensor([math.nan if x is None else x for x in labels])
        return (known - least) / (greatest - least)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return a linear layer on one state of a row or on those of two texts, or BiLSTMs."""
        size, num_logits, dropout_prob = (
            sizes.hidden_size,
            len(self.labels) or 1,
            config.dropout_prob,
        )
        if config.features.layers:
            return FeatureHead(
                size, num_logits, config.features, of="row", dropout_prob=dropout_prob
            )
        if config.pooling == "segments" and self.has_pairs:
            return PairHead(size + sizes.embedding_size, num_logits, dropout_prob)
        pooling = "mean" if config.pooling == "segments" else config.pooling
        return ClassifierHead(size, num_logits, dropout_prob, pooling, build_inner(sizes))

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return logits (B, labels), or the number predicted (B, 1)."""
        rows = states, batch.attention_mask
        if isinstance(head, PairHead):
            assert batch.token_type_ids is not None
            return {"logits": head(*rows, batch.token_type_ids)}
        return {"logits": head(*rows)}

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean cross-entropy, nats, or the mean squared error on [0, 1]."""
        logits, labels = outputs["logits"], batch.targets["labels"]
        if self.labels:
            return F.cross_entropy(logits, labels)
        return F.mse_loss(logits.squeeze(1), labels)

    def decide(self, outputs: Outputs) -> Tensor:
        """Return the most likely label of each example, or the number predicted in [0, 1]."""
        logits = outputs["logits"]
        return logits.argmax(dim=1) if self.labels else logits.squeeze(1)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics as fractions; empty if the labels are unknown."""
        if rows.examples[0].label is None:
            return {}
        labels = rows.targets["labels"]
        return score(self.metrics, labels.tolist(), self.decide(outputs).tolist())

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of always predicting train's most frequent label, or its mean."""
        labels = train.targets["labels"]
        gold = dev.targets["labels"].tolist()
        if self.labels:
            counts = Counter(labels.tolist())
            shares = torch.tensor([count / len(labels) for count in counts.values()])
            guess = [counts.most_common(1)[0][0]] * len(gold)
            return Constant(-(shares * shares.log()).sum().item(), score(self.metrics, gold, guess))
        guesses = [labels.mean().item()] * len(gold)
        return Constant(labels.var(unbiased=False).item(), score(self.metrics, gold, guesses))

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same but the labels are not."""
        predicted = self.decide(outputs).unique()
        if len(predicted) > 1 or len(dev.targets["labels"].unique()) == 1:
            return None
        answer = repr(self.labels[int(predicted)]) if self.labels else f"{predicted.item():.3f}"
        return f"every dev prediction is {answer}"

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write label and prediction of each example; for a regression on the original scale."""
        labels, path = rows.targets["labels"], folder / predictions_name(split)
        if self.label_range:
            least, greatest = self.label_range
            pair = torch.stack([labels, self.decide(outputs)]) * (greatest - least) + least
            write_numbers(path, *pair)
        else:
            write_labels(path, self.labels, labels, outputs["logits"])

    def facts(self) -> dict[str, Any]:
        """Return the family's name and its labels."""
        return {
            "family": "classification",
            "labels": list(self.labels),
            "label_range": self.label_range,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(
            labels=tuple(facts["labels"]),
            label_range=facts["label_range"] and tuple(facts["label_range"]),
            has_pairs=len(facts["columns"]) > 2,  # two texts and the label
        )

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the `prediction` for each example, and the probability of each label."""
        if self.labels:
            return describe_labels(self.labels, outputs["logits"])
        least, greatest = self.label_range or (0.0, 1.0)
        numbers = self.decide(outputs) * (greatest - least) + least
        return [{"prediction": round(number, 4)} for number in numbers.tolist()]


def describe_labels(labels: Sequence[str], logits: Tensor) -> list[dict[str, Any]]:
    """Return each example's most likely label as `prediction`, and prob_LABEL of each label."""
    names = [f"prob_{label}" for label in labels]
    guesses, probs = logits.argmax(dim=1).tolist(), logits.softmax(dim=1).tolist()
    return [
        {
            "prediction": labels[guess],
            **{name: round(share, 6) for name, share in zip(names, shares, strict=True)},
        }
        for guess, shares in zip(guesses, probs, strict=True)
    ]


def read_examples(
    table: TableFile,
    labels: tuple[str, ...] | tuple[float, float],
    *,
    text: str,
    text_b: str | None,
    label: str | None,
) -> list[Example]:
    """Return an example for each row of a table.

    Args:
        table: The rows.
        labels: The names of the labels in order, or the smallest and the largest number.
        text: Column of the text.
        text_b: Column of the second text; None: single texts.
        label: Column of the label; None: the labels are unknown.

    Raises:
        UserError: A column is missing, or a label is none of `labels`.
    """
    firsts = table.column(text)
    seconds = [None] * len(firsts) if text_b is None else table.column(text_b)
    is_number = not isinstance(labels[0], str)
    names = [None] * len(firsts) if label is None else table.column(label, fractions=is_number)
    examples = []
    for number, (first, second, name) in enumerate(zip(firsts, seconds, names, strict=True)):
        try:
            place = None if name is None else read_label(name, labels)
        except UserError as error:
            raise UserError(f"{table.place(number)}: {error}") from None
        examples.append(Example(first, second, place))
    return examples


def read_label(name: str, labels: tuple[str, ...] | tuple[float, float]) -> int | float:
    """Return the index of a label in `labels`, or for a range the number.

    Raises:
        UserError: The label is not among `labels`, or no number in the range.
    """
    if isinstance(labels[0], str):
        if name not in labels:
            raise UserError(f"unknown label {name!r}{did_you_mean(name, map(str, labels))}")
        return labels.index(name)
    least, greatest = (float(label) for label in labels)
    try:
        value = math.nan if "_" in name else float(name)  # which Python reads as 1000 in "1_000"
    except ValueError:
        value = math.nan
    is_bounded = math.isfinite(least) or math.isfinite(greatest)
    where = f" in [{least:g}, {greatest:g}]" if is_bounded else ""
    require(
        math.isfinite(value) and least <= value <= greatest,
        f"the label must be a number{where}, not {name!r}",
    )
    return value
