"""Several labels a text: each label of a text or a pair applies or does not."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.assignments import from_dict
from electra.errors import UserError, require
from electra.tasks.classification import find_label, name_probs
from electra.tasks.family import Constant, WrittenHead, name_outputs
from electra.tasks.predictions import (
    PROB,
    SETS,
    predictions_name,
    read_answers,
    read_ensemble,
    read_predictions,
    require_right,
)
from electra.tasks.record import Records, lacks_labels
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tasks.texts import Example, Texts
from electra.text.table_files import TableFile
from electra.text.tables import SEPARATED_FORMATS, format_of

USUAL_THRESHOLD = 0.5
YES_NO = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
"""Cells of a column that says whether its label applies."""


@dataclass(frozen=True)
class MultiLabel(Texts):
    """Texts or pairs with any number of `labels`, also none.

    The target is "labels", 0 or 1 for each label, and if classes are weighted "weights".
    """

    learns_from_teachers: ClassVar[bool] = True
    weighs_classes: ClassVar[bool] = True

    labels: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    """Least probability at which each label is predicted; empty before they are chosen on dev."""

    @property
    def num_outputs(self) -> int:
        """One for each label."""
        return len(self.labels)

    def encode_labels(self, labels: Sequence[tuple[int, ...] | None]) -> Tensor:
        """Return 0 or 1 for each label (N, C), float32; NaN where they are unknown."""
        encoded_NC = torch.zeros(len(labels), len(self.labels))
        for row, each in zip(encoded_NC, labels, strict=True):
            row[[*each] if each is not None else slice(None)] = torch.nan if each is None else 1.0
        return encoded_NC

    @torch.no_grad()
    def start_head(self, head: nn.Module, train: Rows) -> None:
        """Set the bias to the log-odds of each label in train.

        With a bias of 0, the many rare labels push the states of all texts in one direction, and a
        small encoder can no longer separate them. Source: Lin et al. 2017, "Focal Loss for Dense
        Object Detection" (section 4.1).
        """
        log_odds = _find_shares(train).logit(eps=0.5 / len(train))
        head.get_parameter("dense.bias").copy_(log_odds)

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean binary cross-entropy, nats, over all labels of all items."""
        labels, weights = batch.targets["labels"], batch.targets.get("weights")
        return F.binary_cross_entropy_with_logits(outputs["logits"], labels, weights)

    def soften(self, outputs: Outputs) -> Tensor:
        """Return the probability of each label (N, C)."""
        return outputs["logits"].sigmoid()

    def weigh(self, train: Rows) -> Tensor:
        """Return weights (N, C): items with and without a label have equal total weight."""
        labels_NC = train.targets["labels"]
        num_with_C, count = labels_NC.sum(dim=0), len(labels_NC)
        num_without_C = count - num_with_C
        num_kinds_C = (num_with_C > 0).float() + (num_without_C > 0)
        return count / (num_kinds_C * torch.where(labels_NC > 0, num_with_C, num_without_C))

    def tally(self, examples: Sequence[Example]) -> Counter[str]:
        """Return the number of examples of each label."""
        return Counter(self.labels[place] for each in examples for place in each.label)

    def fit_answers(self, dev: Rows, outputs: Outputs) -> Self:
        """Return the family with the thresholds that have the best headline score on dev."""
        gold, probs = dev.targets["labels"].numpy() > 0, outputs["logits"].sigmoid().numpy()
        return replace(self, thresholds=choose_thresholds(gold, probs, self.headline))

    def decide(self, logits_NC: Tensor) -> Tensor:
        """Return whether each label (N, C) is predicted."""
        thresholds = self.thresholds or (USUAL_THRESHOLD,) * len(self.labels)
        return logits_NC.sigmoid().double() >= torch.tensor(thresholds, dtype=torch.float64)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics as fractions; empty if the labels are unknown."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        said = self.decide(outputs["logits"]).numpy()
        return score_sets(self.metrics, rows.targets["labels"].numpy() > 0, said)

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return the scores on dev of the mean of the probabilities, with thresholds of its own."""
        together = read_ensemble(folders)
        if together is None:
            return {}
        gold = self._mark(names for (names,) in together.gold)
        said = together.values >= choose_thresholds(gold, together.values, self.headline)
        return score_sets(self.metrics, gold, said)

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of the predicted and the right labels in the file."""
        path = folder / predictions_name(split)
        gold = self._mark(names for (names,) in read_predictions(path).gold)
        right = self._mark([self.labels[place] for place in each.label] for each in examples)
        require_right(path, gold, right)
        said = self._mark(each["prediction"] for each in read_answers(path))
        return score_sets(self.metrics, gold, said)

    def _mark(self, sets: Iterable[Sequence[str]]) -> np.ndarray:
        """Return whether each item has each label (N, C)."""
        return np.array([[name in names for name in self.labels] for names in sets])

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of predicting for all texts the same, most frequent labels.

        They are as many as have the best micro-averaged F1 on train.
        """
        labels_NC, shares_C = train.targets["labels"], _find_shares(train)
        loss = (torch.special.entr(shares_C) + torch.special.entr(1 - shares_C)).mean().item()
        counts_C, order_C = labels_NC.sum(dim=0).sort(descending=True, stable=True)
        sizes_C = len(labels_NC) * torch.arange(1, len(counts_C) + 1)
        best = int((2 * counts_C.cumsum(0) / (sizes_C + counts_C.sum())).argmax())
        gold = dev.targets["labels"].numpy() > 0
        said = np.zeros_like(gold)
        said[:, order_C[: best + 1].numpy()] = True
        return Constant(loss, score_sets(self.metrics, gold, said))

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same but the labels are not."""
        said = self.decide(outputs["logits"]).unique(dim=0)
        if len(said) > 1 or len(dev.targets["labels"].unique(dim=0)) == 1:
            return None
        return f"every dev prediction is {self._name(said[0])}"

    def list_gold(self, rows: Rows) -> list[dict[str, Any]]:
        """Return the labels of each item."""
        return [
            {SETS: self._name(row) if self.is_labelled(each) else ""}
            for each, row in zip(rows.examples, rows.targets["labels"], strict=True)
        ]

    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return no `prediction` and no probabilities."""
        return dict.fromkeys(["prediction", *(PROB + label for label in self.labels)])

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the `prediction` for each item, a list, and the probability of each label."""
        said, probs = self.decide(outputs["logits"]), outputs["logits"].sigmoid().tolist()
        return [
            {"prediction": self._name(row), **name_probs(self.labels, each)}
            for row, each in zip(said, probs, strict=True)
        ]

    def _name(self, row_C: Tensor) -> list[str]:
        """Return the names of the labels that apply."""
        return [self.labels[place] for place in row_C.nonzero().flatten().tolist()]

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a sequence classifier, whose config.json also has the thresholds."""
        settings = {"problem_type": "multi_label_classification", **name_outputs(self.labels)}
        settings["thresholds"] = dict(zip(self.labels, self.thresholds, strict=True))
        settings |= self.tell_windows()
        return WrittenHead("SequenceClassification", parameters, settings)

    def facts(self) -> dict[str, Any]:
        """Return the family's name, its labels and their thresholds."""
        lists = {"labels": list(self.labels), "thresholds": list(self.thresholds)}
        return {"family": "multi_label", **lists, **self.tell_windows()}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        lists = {name: facts[name] for name in ("labels", "thresholds")}
        return from_dict(cls, {**lists, **cls.restore(facts)})


def _find_shares(train: Rows) -> Tensor:
    """Return the share of each label (C,), of weighted classes that of the weights."""
    labels_NC = train.targets["labels"]
    return (labels_NC * train.targets.get("weights", 1.0)).mean(dim=0)


def choose_thresholds(gold_NC: np.ndarray, probs_NC: np.ndarray, metric: str) -> tuple[float, ...]:
    """Return the thresholds of the labels' probabilities that together give the best score.

    A threshold is halfway between two probabilities of a label, or above or below all of them. If
    probabilities are not finite, because the model diverged, it is USUAL_THRESHOLD.

    Args:
        gold_NC: Whether item n has label c.
        probs_NC: Its probability.
        metric: macro_f1 is maximised for each label alone. micro_f1 is a ratio of two sums over the
            labels, maximised by Dinkelbach's algorithm: at a ratio r, each label takes the
            greatest 2 * right - r * predicted. This gives the next ratio, until it stays the same.
    """
    if not np.isfinite(probs_NC).all():
        return (USUAL_THRESHOLD,) * gold_NC.shape[1]
    order_NC = np.argsort(-probs_NC, axis=0, kind="stable")
    falling = np.take_along_axis(probs_NC.astype(np.float64), order_NC, axis=0)
    bounds = np.vstack([np.ones(falling.shape[1]), falling, np.zeros(falling.shape[1])])
    right = np.vstack([np.zeros(falling.shape[1]), np.take_along_axis(gold_NC, order_NC, axis=0)])
    right, said = right.cumsum(axis=0), np.arange(len(right))[:, None]
    is_border = bounds[:-1] > bounds[1:]  # not between equal ones
    is_border[0] |= ~is_border.any(axis=0)
    num_gold = gold_NC.sum(axis=0)
    if metric == "macro_f1":
        f1 = 2 * right / np.maximum(said + num_gold, 1)
        places = np.where(is_border, f1, -1.0).argmax(axis=0)
    else:
        ratio, places = -1.0, np.zeros(len(num_gold), int)
        while True:
            taken = np.take_along_axis(right, places[None], axis=0).sum()
            reached = 2 * taken / max(places.sum() + num_gold.sum(), 1)
            if reached <= ratio:
                break
            ratio = reached
            gain = np.where(is_border, 2 * right - ratio * said, -np.inf)
            places = gain.argmax(axis=0)
    edges = np.take_along_axis(bounds, np.vstack([places, places + 1]), axis=0)
    return tuple(edges.mean(axis=0).tolist())


def score_sets(
    metrics: Sequence[str], gold_NC: np.ndarray, said_NC: np.ndarray
) -> dict[str, float]:
    """Return each metric's score by its name: micro_f1 over all labels together, or macro_f1.

    macro_f1 is the mean over the labels; a label that nothing has and nothing is given scores 0.
    """
    from sklearn.metrics import f1_score

    averages = {metric: metric.removesuffix("_f1") for metric in metrics}
    return {
        metric: float(f1_score(gold_NC, said_NC, average=average, zero_division=0.0))
        for metric, average in averages.items()
    }


def read_sets(split: str, records: Records, separator: str) -> list[tuple[str, ...] | None]:
    """Return the names of the labels of each record; None for a split without labels.

    A single column has lists, or texts with the `separator` between labels. If there are several
    columns, each is named after a label and has 0 or 1, or false or true.
    """
    table, columns = records.table, records.columns.labels
    if all(lacks_labels(table, split, each) for each in columns):
        return [None] * len(table.rows)
    if len(columns) > 1:
        applies = [_read_column(table, each) for each in columns]
        rows = zip(*applies, strict=True)
        return [tuple(c for c, is_so in zip(columns, row, strict=True) if is_so) for row in rows]
    (column,) = columns
    require(
        separator != "" or format_of(table.path) not in SEPARATED_FORMATS,
        f"{table.path}: {column!r} has text, not lists; say what is between the labels of a cell, "
        "such as own.label_separator=,",
    )
    if not separator:
        return [*map(_unique, table.lists(column))]
    cells = (cell.split(separator) for cell in table.column(column))
    return [_unique(name for each in parts if (name := each.strip())) for parts in cells]


def _unique(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _read_column(table: TableFile, column: str) -> list[bool]:
    """Return which rows have the label of a column."""
    cells = table.column(column, fractions=True)
    for number, cell in enumerate(cells):
        require(
            cell.strip().lower() in YES_NO,
            f"{table.place(number)}: {column!r} is {cell!r}; it must be 0 or 1, or false or true",
        )
    return [YES_NO[cell.strip().lower()] for cell in cells]


def find_labels(
    table: TableFile, sets: Sequence[tuple[str, ...] | None], labels: Sequence[str]
) -> list[tuple[int, ...] | None]:
    """Return the places in `labels` of the names of each row; refuse an unknown name."""
    found: list[tuple[int, ...] | None] = []
    for number, names in enumerate(sets):
        try:
            places = sorted(find_label(name, labels) for name in names or ())
        except UserError as error:
            raise UserError(f"{table.place(number)}: {error}") from None
        found.append(None if names is None else tuple(places))
    return found
