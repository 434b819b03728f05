"""Files of predictions on a split: a line for each item, with label probabilities or a number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from electra.errors import UserError, require
from electra.text.tables import read_table

PROB = "prob_"
"""Prefix of the columns of probabilities."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model on every item of a split."""

    labels: tuple[str, ...]
    """Names of the labels; empty for a regression."""
    gold: tuple[str, ...]
    """The right answers as in the file; "" if unknown."""
    values: np.ndarray
    """(items, labels) probabilities, or (items, 1) numbers."""

    @property
    def answers(self) -> list[Any]:
        """Index of each item's most likely label, or the number."""
        return (self.values.argmax(axis=1) if self.labels else self.values[:, 0]).tolist()

    @property
    def right_answers(self) -> list[Any]:
        """Index of each item's right label, or the number; all must be known."""
        return [self.labels.index(gold) if self.labels else float(gold) for gold in self.gold]


def predictions_name(split: str) -> str:
    """Return the name of a split's file."""
    return "predictions.tsv" if split == "dev" else f"{split}_predictions.tsv"


def write_labels(path: Path, labels: Sequence[str], gold: Tensor, logits: Tensor) -> None:
    """Write, for each item: its number from 0, label, prediction, and all labels' probabilities.

    Args:
        path: The file.
        labels: Names of the labels.
        gold: (N,) index of the right label, -1 if it is unknown.
        logits: (N, labels).
    """
    lines = [["index", "label", "prediction", *(PROB + label for label in labels)]]
    names = (*labels, "")  # label -1 is unknown
    columns = gold, logits.argmax(dim=1), logits.softmax(dim=1)
    for number, (label, guess, probs) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        shares = (f"{prob:.6f}" for prob in probs)
        lines.append([str(number), names[label], names[guess], *shares])
    _write_lines(path, lines)


def write_numbers(path: Path, gold: Tensor, predicted: Tensor) -> None:
    """Write, for each item: its number from 0, the right answer unless it is NaN, the predicted.

    Args:
        path: The file.
        gold: (N,) numbers on any scale.
        predicted: (N,) numbers on the same scale.
    """
    lines = [["index", "label", "prediction"]]
    for number, (label, guess) in enumerate(zip(gold.tolist(), predicted.tolist(), strict=True)):
        lines.append([str(number), "" if math.isnan(label) else f"{label:.4f}", f"{guess:.4f}"])
    _write_lines(path, lines)


def _write_lines(path: Path, lines: Sequence[Sequence[str]]) -> None:
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


def read_predictions(path: Path) -> Predictions:
    """Return what `write_labels` or `write_numbers` wrote.

    Raises:
        UserError: The file cannot be read or holds no predictions.
    """
    table = read_table(path)
    labels = tuple(name.removeprefix(PROB) for name in table.columns if name.startswith(PROB))
    columns = [table.column(PROB + label) for label in labels] or [table.column("prediction")]
    try:
        values = np.array(columns, dtype=np.float64).T
    except ValueError as error:
        raise UserError(f"{path} does not hold predictions: {error}") from None
    return Predictions(labels, tuple(table.column("label")), values)


def average(predictions: Sequence[Predictions]) -> Predictions:
    """Return the mean of several models' probabilities, or of their numbers: an ensemble.

    Raises:
        UserError: The predictions are of different items or labels.
    """
    first = predictions[0]
    for other in predictions[1:]:
        require(
            (first.labels, first.gold) == (other.labels, other.gold),
            "predictions of different items or labels have no mean",
        )
    return Predictions(
        first.labels, first.gold, np.mean([each.values for each in predictions], axis=0)
    )
