"""Files of predictions on a split, a line for each item, and the scores of labels and numbers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.errors import UserError, require
from electra.files import parse_json
from electra.text.table_files import read_table

RIGHT_TOLERANCE = 1e-4
"""Relative difference of a number and what `write_predictions` keeps of it."""
PROB = "prob_"
"""Prefix of the columns of probabilities."""
NUMBER = "prediction"
"""Prefix of the columns of predicted numbers."""
GOLD = "label"
"""Prefix of the columns of right answers."""
SETS = "labels"
"""The column of right answers that are lists of labels."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model on every item of a split."""

    labels: tuple[str, ...]
    """Names of the labels; empty for a regression."""
    gold: tuple[tuple[Any, ...], ...]
    """The right answers of each item: a label, a list of labels, or numbers as text; "" if unknown.
    """
    values: np.ndarray
    """(items, labels) probabilities, or (items, numbers)."""


def predictions_name(split: str) -> str:
    """Return the name of a split's file."""
    return "predictions.tsv" if split == "dev" else f"{split}_predictions.tsv"


def write_predictions(
    path: Path, gold: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> None:
    """Write, for each item: its number from 0, the right answers, and what was answered."""
    lines = ["\t".join(["index", *gold[0], *answers[0]])]
    for number, columns in enumerate(zip(gold, answers, strict=True)):
        cells = (_write(name, cell) for each in columns for name, cell in each.items())
        lines.append("\t".join([str(number), *cells]))
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _write(name: str, cell: Any) -> str:
    if isinstance(cell, list):
        return json.dumps(cell, ensure_ascii=False)
    return f"{cell:.6f}" if name.startswith(PROB) else str(cell)


def read_predictions(path: Path) -> Predictions:
    """Return what `write_predictions` wrote."""
    table = read_table(path)

    def find(prefix: str) -> list[str]:
        return [name for name in table.columns if name.startswith(prefix)]

    probs = find(PROB)
    try:
        numbers = np.array([table.column(name) for name in probs or find(NUMBER)], np.float64).T
    except ValueError as error:
        raise UserError(f"{path} does not hold predictions: {error}") from None
    gold = [
        [*map(_read, table.column(name))] if name == SETS else table.column(name)
        for name in find(GOLD)
    ]
    labels = tuple(name.removeprefix(PROB) for name in probs)
    return Predictions(labels, tuple(zip(*gold, strict=True)), numbers)


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Return the answers in what `write_predictions` wrote, without the right ones."""
    table = read_table(path)
    has_probs = any(name.startswith(PROB) for name in table.columns)
    of_text = (lambda cell: [*_read(cell)]) if SETS in table.columns else str
    readers: dict[str, Any] = {
        name: of_text if name == NUMBER and has_probs else float
        for name in table.columns
        if name.startswith((PROB, NUMBER))
    }
    columns = [map(read, table.column(name)) for name, read in readers.items()]
    return [dict(zip(readers, row, strict=True)) for row in zip(*columns, strict=True)]


def require_right(path: Path, kept: Any, right: Any) -> None:
    """Refuse kept labels or numbers that differ from the right ones, unless these are missing."""
    is_same = np.shape(kept) == np.shape(right) and np.allclose(kept, right, rtol=RIGHT_TOLERANCE)
    require(not len(right) or is_same, f"{path}: its labels are not those of the task's files")


def _read(cell: str) -> Any:
    """Return the right labels of an item; "" if they are unknown."""
    return cell and tuple(parse_json(cell, "the labels"))


def average(predictions: Sequence[Predictions]) -> Predictions:
    """Return the mean of several models' probabilities, or of their numbers: an ensemble."""
    first = predictions[0]
    require(
        all((each.labels, each.gold) == (first.labels, first.gold) for each in predictions),
        "predictions of different items or labels have no mean",
    )
    values = np.mean([each.values for each in predictions], axis=0)
    return Predictions(first.labels, first.gold, values)


def read_ensemble(folders: Sequence[Path]) -> Predictions | None:
    """Return the mean of the predictions on dev in these folders; None if one is not finite."""
    together = average([read_predictions(each / predictions_name("dev")) for each in folders])
    return together if np.isfinite(together.values).all() else None


def score(
    metrics: Iterable[str], gold: Sequence[float], predicted: Sequence[float], num_labels: int = 2
) -> dict[str, float]:
    """Return each metric's score by its name, as fractions.

    Correlations, including mcc (Matthews), are 0 if one side is constant or not finite. With two
    labels, f1 is that of label 1. Otherwise it equals macro_f1, the mean over the labels, as
    scikit-learn's macro average.
    """
    return {metric: _score(metric, gold, predicted, num_labels) for metric in metrics}


def _score(
    metric: str, gold: Sequence[float], predicted: Sequence[float], num_labels: int
) -> float:
    """Return one score; scikit-learn and scipy are imported at the first."""
    if metric in ("accuracy", "f1", "macro_f1"):
        from sklearn.metrics import accuracy_score, f1_score

        if metric == "accuracy":
            return float(accuracy_score(gold, predicted))
        is_binary = num_labels == 2 and metric == "f1"
        scored, average = ([1], "binary") if is_binary else (None, "macro")
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
