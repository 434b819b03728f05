"""Classification and regression of texts and pairs: the label is a name or a number."""

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError, did_you_mean, require
from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead, FeatureHead, PairHead
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import (
    PLAIN,
    Constant,
    Family,
    Inputs,
    Record,
    WrittenHead,
    choose_columns,
    is_plain,
    is_unlabelled,
    name_outputs,
)
from electra.tasks.predictions import (
    PROB,
    average,
    predictions_name,
    read_predictions,
    score,
    write_predictions,
)
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.table_files import TableFile, read_table, read_texts
from electra.text.tables import TABLE_FORMATS, require_format
from electra.tokenizing.tokenizer import Tokenizer

IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}
"""What sentence-transformers' CrossEncoder reads in config.json; without it, a single output goes
through a sigmoid there."""


RIGHT_TOLERANCE = 1e-4
"""Relative difference of a number and what `write_predictions` keeps of it."""
NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def order_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in the order of their outputs: numbers by value, "2" before "10"; else sorted.

    An export then has label 2 at output 2 if the labels are 0, 1, ..., 11.
    """
    ordered = sorted(names)
    return tuple(sorted(ordered, key=float) if all(map(NUMBER.fullmatch, ordered)) else ordered)


class Labelled(Family):
    """A family whose every item, or every word of an item, has one label or one number.

    The target is "labels"; the output is "logits", a number for each label.
    """

    label_range: tuple[float, float] | None = None
    """Smallest and largest label of a regression; None: the labels are names."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the labels; empty for a regression."""

    def judged(self, rows: Rows, values: Tensor) -> Tensor:
        """Return those of the items' labels or answers that are scored: by default all."""
        return values

    def decide(self, rows: Rows, outputs: Outputs) -> Tensor:
        """Return the most likely labels, or the numbers predicted in [0, 1]."""
        logits = outputs["logits"]
        return self.judged(rows, logits.argmax(dim=-1)) if self.labels else logits.squeeze(1)

    def measure(self, rows: Rows, decided: Sequence[float]) -> dict[str, float]:
        """Return the metrics of what was decided; empty if the labels are unknown."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        labels = rows.targets["labels"].tolist()
        return score(self.metrics, labels, decided, len(self.labels))

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean cross-entropy, nats, or the mean squared error on [0, 1]."""
        logits, labels = outputs["logits"], batch.targets["labels"]
        if self.labels:
            return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-1)
        return F.mse_loss(logits.squeeze(1), labels)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics as fractions; empty if the labels are unknown."""
        return self.measure(rows, self.decide(rows, outputs).tolist())

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return the scores on dev of the mean of the probabilities or numbers in the files."""
        together = average([read_predictions(each / predictions_name("dev")) for each in folders])
        if not np.isfinite(together.values).all():
            return {}
        names = together.labels
        gold = [names.index(each) if names else float(each) for each in together.gold]
        return score(self.metrics, gold, together.answers, len(names))

    def read_answers(self, folder: Path, split: str) -> list[dict[str, Any]]:
        """Return the predictions, and the probability of each label."""
        rows = read_table(folder / predictions_name(split)).rows
        names = [name for name in rows[0] if name not in ("index", "label")]
        text = {"prediction"} if self.labels else set()
        return [{n: row[n] if n in text else float(row[n]) for n in names} for row in rows]

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of the predictions and labels in the file."""
        table = read_table(folder / predictions_name(split))
        read: Any = self.labels.index if self.labels else float
        gold, said = (list(map(read, table.column(name))) for name in ("label", "prediction"))
        right = [each.label for each in examples] or gold
        require(
            len(right) == len(gold) and np.allclose(right, gold, rtol=RIGHT_TOLERANCE),
            f"{table.path}: its labels are not those of the task's files",
        )
        return score(self.metrics, gold, said, len(self.labels))

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of always predicting train's most frequent label, or its mean."""
        labels = self.judged(train, train.targets["labels"])
        count = len(self.judged(dev, dev.targets["labels"]))
        if not self.labels:
            constant = self.measure(dev, [labels.mean().item()] * count)
            return Constant(labels.var(unbiased=False).item(), constant)
        counts = Counter(labels.tolist())
        shares = torch.tensor([each / len(labels) for each in counts.values()])
        constant = self.measure(dev, [counts.most_common(1)[0][0]] * count)
        return Constant(torch.special.entr(shares).sum().item(), constant)

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same but the labels are not."""
        predicted = self.decide(dev, outputs).unique()
        if len(predicted) > 1 or len(self.judged(dev, dev.targets["labels"]).unique()) == 1:
            return None
        [answer] = [self.labels[int(predicted)]] if self.labels else self._unscale(predicted)
        return f"every dev prediction is {answer!r}"

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write label and prediction of each item, and the probability of each label."""
        gold = rows.targets["labels"]
        labels = (
            [[*self.labels, ""][label] for label in gold.tolist()]  # label -1 is unknown
            if self.labels
            else ["" if math.isnan(label) else label for label in self._unscale(gold)]
        )
        answers = self.describe_answers(rows, outputs)
        write_predictions(folder / predictions_name(split), labels, answers)

    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return no `prediction` and no probabilities."""
        return dict.fromkeys(["prediction", *(PROB + label for label in self.labels)])

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the `prediction` for each item, and the probability of each label."""
        decided = self.decide(rows, outputs)
        if not self.labels:
            return [{"prediction": each} for each in self._unscale(decided)]
        names, shares_of = [PROB + label for label in self.labels], outputs["logits"].softmax(dim=1)
        answers = []
        for guess, shares in zip(decided.tolist(), shares_of.tolist(), strict=True):
            probs = zip(names, (round(share, 6) for share in shares), strict=True)
            answers.append({"prediction": self.labels[guess], **dict(probs)})
        return answers

    def _unscale(self, numbers: Tensor) -> list[float]:
        """Return numbers in [0, 1] on the scale of the labels, to a ten-thousandth of it."""
        least, greatest = self.label_range or (0.0, 1.0)
        num_digits = max(4, 4 - math.floor(math.log10(greatest - least)))
        return [round(least + (greatest - least) * each, num_digits) for each in numbers.tolist()]


class Example(NamedTuple):
    """A text or a pair of texts, and its label."""

    text_a: str
    text_b: str | None
    label: int | float | None
    """Index of the label's name, or the number itself; None if it is unknown."""


@dataclass(frozen=True)
class Classification(Labelled):
    """Texts or pairs with one of `labels`, or of a regression with a number in `label_range`."""

    reads_features: ClassVar[bool] = True
    pools: ClassVar[bool] = True

    metrics: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    has_pairs: bool = False
    """Whether an example is a pair of texts."""
    number: str = field(default="number", compare=False)
    """What an export calls the number of a regression."""

    @property
    def fields(self) -> tuple[str, ...]:
        """One text or two."""
        return ("text_a", "text_b") if self.has_pairs else ("text",)

    def parse(self, record: Record) -> Example:
        """Return {"text": ...}, or {"text_a": ..., "text_b": ...} of pairs, as an example."""
        if self.has_pairs:
            return Example(record.text("text_a"), record.text("text_b"), None)
        return Example(record.text("text"), None, None)

    def read_inputs(
        self, path: Path, columns: Sequence[str], trained: Sequence[str], separator: str = ""
    ) -> Inputs:
        """Return the rows of a table, or the lines of plain text."""
        trained = trained[:-1]  # the last is the label's
        if is_plain(path):
            require(
                len(trained) == 1 and not columns,
                f"{path} is plain text, a text a line; {' and '.join(columns or trained)} must be "
                f"columns of a {', '.join(TABLE_FORMATS)} file",
            )
            lines = [{"text": line} for line in read_texts(path)]
            return Inputs(lines, lines)
        require_format(path, (PLAIN, *TABLE_FORMATS))
        table = read_table(path, separator=separator)
        texts = [table.column(each) for each in choose_columns(table, columns, trained)]
        found = [dict(zip(self.fields, each, strict=True)) for each in zip(*texts, strict=True)]
        return Inputs(found, table.rows)

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return each example as one row of at most `sequence_length` tokens.

        A label is an index, -1 if it is unknown; of a regression a number in [0, 1], or NaN.
        """
        firsts = encode_texts(tokenizer, [each.text_a for each in examples], sequence_length)
        pairs = [each.text_b for each in examples if each.text_b is not None]
        seconds = iter(encode_texts(tokenizer, pairs, sequence_length))
        texts = [
            (first, None if each.text_b is None else next(seconds))
            for each, first in zip(examples, firsts, strict=True)
        ]
        unknown = -1 if self.label_range is None else math.nan
        numbers = [unknown if each.label is None else each.label for each in examples]
        if self.label_range is not None:
            least, greatest = self.label_range
            numbers = [(number - least) / (greatest - least) for number in numbers]
        labels = torch.tensor(numbers)
        return pack_rows(texts, {"labels": labels}, tokenizer, sequence_length, examples)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return a linear layer on one state of a row or on those of two texts, or BiLSTMs."""
        size, num_logits = sizes.hidden_size, len(self.labels) or 1
        drop = config.dropout_prob
        if config.features.layers:
            return FeatureHead(size, num_logits, config.features, of="row", dropout_prob=drop)
        if config.pooling == "segments" and self.has_pairs:
            return PairHead(size + sizes.embedding_size, num_logits, drop)
        pooling = "mean" if config.pooling == "segments" else config.pooling
        return ClassifierHead(sizes, num_logits, drop, pooling)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return logits (B, labels), or the number predicted (B, 1)."""
        rows = states, batch.attention_mask
        if isinstance(head, PairHead):
            assert batch.token_type_ids is not None
            return {"logits": head(*rows, batch.token_type_ids)}
        return {"logits": head(*rows)}

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a sequence classifier; a regression gives numbers in the range of the labels."""
        if self.label_range is None:
            settings = {"problem_type": "single_label_classification", **name_outputs(self.labels)}
            return WrittenHead("SequenceClassification", parameters, settings)
        least, greatest = self.label_range
        weight, bias = (parameters[f"dense.{each}"] for each in ("weight", "bias"))
        scaled = {
            "dense.weight": weight * (greatest - least),
            "dense.bias": bias * (greatest - least) + least,
        }
        settings = {"problem_type": "regression", **name_outputs([self.number])}
        settings["sentence_transformers"] = IDENTITY
        return WrittenHead("SequenceClassification", {**parameters, **scaled}, settings)

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
            number=facts["columns"][-1],
        )


def read_examples(
    table: TableFile,
    texts: Sequence[str],
    split: str,
    label: str,
    labels: tuple[str, ...] | tuple[float, float] = (),
) -> list[Example]:
    """Return an example for each row of a split's table, whose columns `texts` has one or two."""
    firsts, *others = [table.column(text) for text in texts]
    seconds = others[0] if others else [None] * len(firsts)
    known = read_labels(table, split, label, labels)
    return [Example(*each) for each in zip(firsts, seconds, known, strict=True)]


def read_labels(
    table: TableFile, split: str, column: str, labels: tuple[str, ...] | tuple[float, float]
) -> Sequence[Any]:
    """Return the index in `labels` of each label of a column; without `labels` the numbers.

    `labels` may also be the least and the greatest number. All are None if a split other than train
    and dev has no label: the column is missing, or `is_unlabelled`.
    """
    labels = labels or (-math.inf, math.inf)
    values = [row.get(column) for row in table.rows]
    has_none = is_unlabelled(values, [label for label in labels if isinstance(label, str)])
    if has_none and not split.startswith(("train", "dev")):
        return [None] * len(values)
    is_number = not isinstance(labels[0], str)
    read = []
    names = table.column(column, fractions=is_number)
    require(
        not has_none,
        f"{table.path}: every {column!r} is {values[0]!r}, as in a file without labels; {split} "
        "must have them",
    )
    for number, name in enumerate(names):
        try:
            read.append(_read_label(name, labels))
        except UserError as error:
            raise UserError(f"{table.place(number)}: {error}") from None
    return read


def _read_label(name: str, labels: tuple[str, ...] | tuple[float, float]) -> int | float:
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
