"""Regression of texts and pairs: one number for each, or several that have names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.assignments import from_dict
from electra.errors import UserError, require
from electra.tasks.family import Constant, WrittenHead, name_outputs
from electra.tasks.predictions import (
    GOLD,
    NUMBER,
    predictions_name,
    read_ensemble,
    read_predictions,
    require_right,
    score,
)
from electra.tasks.record import Records, read_cells
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tasks.texts import Texts

Range = tuple[float, float]
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}
"""Read by sentence-transformers' CrossEncoder in config.json; without it, a single output goes
through a sigmoid there."""


@dataclass(frozen=True)
class Regression(Texts):
    """Texts or pairs with a number for each of `names`; the target is "labels", in [0, 1]."""

    learns_from_teachers: ClassVar[bool] = True

    names: tuple[str, ...] = ("label",)
    """Names of the numbers: their columns."""
    ranges: tuple[Range, ...] = ((0.0, 1.0),)
    """Least and greatest of each, in train."""

    @property
    def num_outputs(self) -> int:
        """One for each number."""
        return len(self.names)

    def encode_labels(self, labels: Sequence[tuple[float, ...] | None]) -> Tensor:
        """Return the numbers (N, T) on the scales of their ranges; NaN where they are unknown."""
        unknown = (math.nan,) * len(self.names)
        return torch.tensor(
            [
                [
                    (number - least) / (greatest - least)
                    for number, (least, greatest) in zip(each or unknown, self.ranges, strict=True)
                ]
                for each in labels
            ]
        )

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean squared error on [0, 1]."""
        return F.mse_loss(outputs["logits"], batch.targets["labels"])

    def soften(self, outputs: Outputs) -> Tensor:
        """Return the numbers (N, T), on the scales of their ranges."""
        return outputs["logits"]

    def measure(self, gold_NT: Sequence[Sequence[float]], said_NT: Any) -> dict[str, float]:
        """Return the metrics; of several numbers their means, and then those of each by name."""
        columns = zip(zip(*gold_NT, strict=True), zip(*said_NT, strict=True), strict=True)
        each = [score(self.metrics, *column) for column in columns]
        if len(each) == 1:
            return each[0]
        means = {metric: fmean(scores[metric] for scores in each) for metric in self.metrics}
        named = zip(self.names, each, strict=True)
        return means | {f"{m} {name}": scores[m] for name, scores in named for m in self.metrics}

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the metrics; empty if the numbers are unknown."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        return self.measure(rows.targets["labels"].tolist(), outputs["logits"].tolist())

    def score_ensemble(self, folders: Sequence[Path]) -> dict[str, float]:
        """Return the scores on dev of the mean of the numbers in the files."""
        together = read_ensemble(folders)
        if together is None:
            return {}
        gold = [[float(number) for number in each] for each in together.gold]
        return self.measure(gold, together.values.tolist())

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of both kinds of numbers in the file."""
        path = folder / predictions_name(split)
        kept = read_predictions(path)
        gold = [[float(number) for number in each] for each in kept.gold]
        require_right(path, gold, [each.label for each in examples])
        return self.measure(gold, kept.values.tolist())

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of always predicting train's means."""
        labels_NT = train.targets["labels"]
        said = [labels_NT.mean(dim=0).tolist()] * len(dev)
        scores = self.measure(dev.targets["labels"].tolist(), said)
        return Constant(labels_NT.var(dim=0, unbiased=False).mean().item(), scores)

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all predictions are the same but the numbers are not."""
        said_NT = outputs["logits"].unique(dim=0)
        if len(said_NT) > 1 or len(dev.targets["labels"].unique(dim=0)) == 1:
            return None
        return f"every dev prediction is {', '.join(map(str, self._unscale(said_NT)[0]))}"

    def list_gold(self, rows: Rows) -> list[dict[str, Any]]:
        """Return the numbers of each item."""
        names = [f"{GOLD}{ending}" for ending in self._endings]
        return [
            dict(zip(names, ("" if math.isnan(n) else n for n in each), strict=True))
            for each in self._unscale(rows.targets["labels"])
        ]

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the `prediction` for each item, or of several numbers `prediction_NAME`."""
        names = [f"{NUMBER}{ending}" for ending in self._endings]
        return [dict(zip(names, each, strict=True)) for each in self._unscale(outputs["logits"])]

    def describe_blank(self, example: Any) -> dict[str, Any]:
        """Return no number."""
        return dict.fromkeys(f"{NUMBER}{ending}" for ending in self._endings)

    @property
    def _endings(self) -> list[str]:
        """The parts of the names of the numbers' columns that differ."""
        return [f"_{name}" for name in self.names] if len(self.names) > 1 else [""]

    def _unscale(self, numbers_NT: Tensor) -> list[list[float]]:
        """Return numbers in [0, 1] on the scales of their ranges, to a ten-thousandth of them."""
        columns = []
        for (least, greatest), column in zip(self.ranges, numbers_NT.T.tolist(), strict=True):
            num_digits = max(4, 4 - math.floor(math.log10(greatest - least)))
            columns.append([round(least + (greatest - least) * n, num_digits) for n in column])
        return list(map(list, zip(*columns, strict=True)))

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a sequence classifier that gives numbers in their ranges."""
        least, greatest = torch.tensor(self.ranges).T
        weight, bias = (parameters[f"dense.{each}"] for each in ("weight", "bias"))
        scaled = {
            "dense.weight": weight * (greatest - least)[:, None],
            "dense.bias": bias * (greatest - least) + least,
        }
        settings = {"problem_type": "regression", **name_outputs(self.names)}
        settings |= {"sentence_transformers": IDENTITY, **self.tell_windows()}
        return WrittenHead("SequenceClassification", {**parameters, **scaled}, settings)

    def facts(self) -> dict[str, Any]:
        """Return the family's name, and names and ranges of its numbers."""
        ranges = [list(each) for each in self.ranges]
        numbers = {"names": list(self.names), "ranges": ranges}
        return {"family": "regression", **numbers, **self.tell_windows()}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        numbers = {name: facts[name] for name in ("names", "ranges")}
        return from_dict(cls, {**numbers, **cls.restore(facts)})


def read_numbers(
    split: str, records: Records, limits: Range = (-math.inf, math.inf)
) -> list[tuple[float, ...] | None]:
    """Return the numbers of each record; None of a split without labels."""
    found = [
        read_cells(records.table, split, each, partial(_read_number, each, limits), fractions=True)
        for each in records.columns.labels
    ]
    return [None if None in each else each for each in zip(*found, strict=True)]


def _read_number(column: str, limits: Range, cell: str) -> float:
    least, greatest = limits
    try:
        value = math.nan if "_" in cell else float(cell)  # which Python reads as 1000 in "1_000"
    except ValueError:
        value = math.nan
    is_bounded = math.isfinite(least) or math.isfinite(greatest)
    where = f" in [{least:g}, {greatest:g}]" if is_bounded else ""
    require(
        math.isfinite(value) and least <= value <= greatest,
        f"{column!r} must be a number{where}, not {cell!r}",
    )
    return value


def find_ranges(train: Sequence[Records]) -> tuple[Range, ...]:
    """Return the least and the greatest number of train in each column of labels."""
    found = [each or () for part in train for each in read_numbers("train", part)]
    ranges = tuple((min(numbers), max(numbers)) for numbers in zip(*found, strict=True))
    for column, (least, greatest) in zip(train[0].columns.labels, ranges, strict=True):
        require(
            np.ptp(np.array([least, greatest]).astype(np.float32)) != 0,
            f"{train[0].table.path}: every {column!r} is {least:g} in float32; two different "
            "numbers are needed",
        )
    return ranges


def read_scaled(
    split: str, records: Records, ranges: Sequence[Range]
) -> list[tuple[float, ...] | None]:
    """Return the numbers of each record, which must be finite on the scale of their ranges."""
    found = read_numbers(split, records)
    unknown = (math.nan,) * len(ranges)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers_NT = np.array([each or unknown for each in found]).astype(np.float32)
        least_T, greatest_T = np.array(ranges).astype(np.float32).T
        scaled_NT = (numbers_NT - least_T) / (greatest_T - least_T)
    for place, column in np.argwhere(np.isinf(scaled_NT)).tolist():
        number, (least, greatest) = (found[place] or unknown)[column], ranges[column]
        raise UserError(
            f"{records.table.place(place)}: the label {number:g} is beyond float32 on the scale "
            f"from {least:g} to {greatest:g}"
        )
    return found
