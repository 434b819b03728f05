"""Means over pre-training seeds, gains of a row over another, and their 95% intervals."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import t as student

from electra.reports.glossary import format_interval

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over seeds, and its 95% interval by Student's t; of a single seed, no interval."""

    mean: float
    half_width: float | None

    @property
    def excludes_zero(self) -> bool:
        """Return whether the whole interval lies on one side of 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def __str__(self) -> str:
        return format_interval(self.mean, self.half_width)


def estimate(values: Sequence[float]) -> Interval:
    """Return the mean of some values and its 95% interval."""
    mean, number = statistics.fmean(values), len(values)
    if number < 2:
        return Interval(mean, None)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, number - 1))
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(number))


def estimate_gain(
    own: Mapping[int, float], base: Mapping[int, float], others: Sequence[Mapping[int, float]]
) -> Interval:
    """Return the mean gain over the seeds that both rows have, and its 95% interval.

    This is a two-way analysis of variance: rows, and seeds as blocks. With few seeds the noise of
    one pair of rows is known badly, so it is taken from all rows with these seeds, except those
    that are noisier than the rest. Where the pair is alone, or one of the two is noisier, the
    interval is that of the paired t-test.

    Args:
        own: Score by seed.
        base: The same of the row it is compared with; has a seed of `own`.
        others: The same of the other rows that are compared with `base`, each once. They enter the
            noise, and only if they have all of the common seeds.
    """
    seeds = sorted(own.keys() & base.keys())
    mean = statistics.fmean(own[seed] - base[seed] for seed in seeds)
    if len(seeds) < 2:
        return Interval(mean, None)
    rows = [own, base, *(each for each in others if each.keys() >= set(seeds))]
    scores = _leave_out_noisier(np.array([[row[seed] for seed in seeds] for row in rows]))
    degrees = _count_degrees(scores)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, degrees))
    return Interval(mean, quantile * math.sqrt(2 * _sum_noise(scores) / degrees / len(seeds)))


def _leave_out_noisier(scores: np.ndarray) -> np.ndarray:
    """Return scores [rows, seeds] without rows that are noisier than the rest.

    The first two are the pair that is compared; if one of them is noisier, they stay alone. An
    F test compares what the noisiest row adds to the sum of squares with that of the rest, which is
    independent of it. Its level is divided by the number of rows, because the noisiest is tested.
    Two rows are too few to say that a third is noisier.
    """
    while len(scores) > 3:
        without = [_sum_noise(np.delete(scores, row, axis=0)) for row in range(len(scores))]
        noisiest = int(np.argmin(without))
        rest = np.delete(scores, noisiest, axis=0)
        own = (_sum_noise(scores) - _sum_noise(rest)) / (scores.shape[1] - 1)
        others = _sum_noise(rest) / _count_degrees(rest)
        level = (1 - CONFIDENCE) / len(scores)
        if own <= others * fisher.isf(level, scores.shape[1] - 1, _count_degrees(rest)):
            break
        scores = scores[:2] if noisiest < 2 else rest
    return scores


def _sum_noise(scores: np.ndarray) -> float:
    """Return the sum of squares of [rows, seeds] around the means of rows and of seeds."""
    noise = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
    return float((noise**2).sum())


def _count_degrees(scores: np.ndarray) -> int:
    """Return the degrees of freedom of the noise of [rows, seeds]."""
    return (scores.shape[0] - 1) * (scores.shape[1] - 1)
