"""Scores of predictions by scikit-learn and scipy, which are imported at the first score."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def score_accuracy(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the share of predictions that are right."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(gold, predicted))


def score_mcc(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return Matthews' correlation coefficient, in [-1, 1]; 0 if one side has a single label."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(gold)) == 1 or len(set(predicted)) == 1:
        return 0.0
    return float(matthews_corrcoef(gold, predicted))


def score_f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return F1, in [0, 1]: that of label 1 if only 0 and 1 occur, else the mean over labels."""
    from sklearn.metrics import f1_score

    is_binary = set(gold) | set(predicted) <= {0, 1}
    average = "binary" if is_binary else "macro"
    return float(f1_score(gold, predicted, average=average, zero_division=0.0))


def score_pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Pearson's correlation, in [-1, 1]; 0 if one side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


def score_spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's rank correlation, in [-1, 1]; 0 if one side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def _correlation(
    of: Callable[..., Any], gold: Sequence[float], predicted: Sequence[float]
) -> float:
    if len(set(gold)) == 1 or len(set(predicted)) == 1:
        return 0.0
    return float(of(gold, predicted).statistic)


METRICS: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "accuracy": score_accuracy,
    "f1": score_f1,
    "mcc": score_mcc,
    "pearson": score_pearson,
    "spearman": score_spearman,
}


def score(
    metrics: Iterable[str], gold: Sequence[float], predicted: Sequence[float]
) -> dict[str, float]:
    """Return each metric's score by its name, as fractions."""
    return {metric: METRICS[metric](gold, predicted) for metric in metrics}
