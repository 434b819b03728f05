"""Files of predictions on a split, a line for each item, and the scores of labels and numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.errors import UserError, require
from electra.text.table_files import read_table

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


def predictions_name(split: str) -> str:
    """Return the name of a split's file."""
    return "predictions.tsv" if split == "dev" else f"{split}_predictions.tsv"


def write_predictions(
    path: Path, labels: Sequence[str | float], answers: Sequence[Mapping[str, str | float]]
) -> None:
    """Write, for each item: its number from 0, the right answer, and what was answered."""
    lines: list[list[object]] = [["index", "label", *answers[0]]]
    for number, (label, answer) in enumerate(zip(labels, answers, strict=True)):
        cells = (f"{c:.6f}" if name.startswith(PROB) else c for name, c in answer.items())
        lines.append([number, label, *cells])
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")


def read_predictions(path: Path) -> Predictions:
    """Return what `write_predictions` wrote."""
    table = read_table(path)
    labels = tuple(name.removeprefix(PROB) for name in table.columns if name.startswith(PROB))
    columns = [table.column(PROB + label) for label in labels] or [table.column("prediction")]
    try:
        values = np.array(columns, dtype=np.float64).T
    except ValueError as error:
        raise UserError(f"{path} does not hold predictions: {error}") from None
    return Predictions(labels, tuple(table.column("label")), values)


def average(predictions: Sequence[Predictions]) -> Predictions:
    """Return the mean of several models' probabilities, or of their numbers: an ensemble."""
    first = predictions[0]
    require(
        all((each.labels, each.gold) == (first.labels, first.gold) for each in predictions),
        "predictions of different items or labels have no mean",
    )
    values = np.mean([each.values for each in predictions], axis=0)
    return Predictions(first.labels, first.gold, values)


def score(
    metrics: Iterable[str], gold: Sequence[float], predicted: Sequence[float], num_labels: int = 2
) -> dict[str, float]:
    """Return each metric's score by its name, as fractions.

    Correlations, of which mcc is Matthews', are 0 if one side is constant or not finite. f1 is that
    of label 1 of two labels, else the mean over the labels, as scikit-learn's macro average.
    """
    return {metric: _score(metric, gold, predicted, num_labels) for metric in metrics}


def _score(
    metric: str, gold: Sequence[float], predicted: Sequence[float], num_labels: int
) -> float:
    """Return one score; scikit-learn and scipy are imported at the first."""
    if metric in ("accuracy", "f1"):
        from sklearn.metrics import accuracy_score, f1_score

        if metric == "accuracy":
            return float(accuracy_score(gold, predicted))
        scored, average = ([1], "binary") if num_labels == 2 else (None, "macro")
        how: Any = {"labels": scored, "average": average, "zero_division": 0.0}
        return float(f1_score(gold, predicted, **how))
    if len(set(gold)) == 1 or len(set(predicted)) == 1 or not np.isfinite(predicted).all():
        return 0.0
    if metric == "mcc":
        from sklearn.metrics import matthews_corrcoef

        return float(matthews_corrcoef(gold, predicted))
    from scipy import stats

    correlate = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[metric]
    return float(correlate(gold, predicted).statistic)
