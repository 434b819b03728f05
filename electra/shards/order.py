"""Which row is at each place of a training run, as a function of the seed alone.

A place is the number of a row in the sequence of all steps. `GlobalOrder` has one permutation of
all rows an epoch, so every step reads from every shard; windows.py has one that reads few shards at
a time. Each permutation is computed for single places, so any row is known without those before it.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from electra.errors import require
from electra.shards.store import Corpus

MIXTURE = 1 << 62
"""Added to the number of a mixture's window, for a key of its own."""
MIXED_ROWS = 1 << 16
"""Rows among which the shares of the corpora of a mixture are exact."""


class Share(NamedTuple):
    """Rows of some places in the same shards."""

    shards: tuple[int, ...]
    """Their numbers; empty: all."""
    places: np.ndarray
    """The rows' places among those that were asked for (R,)."""
    rows: np.ndarray
    """Their numbers among the rows of these shards, one shard after the other (R,)."""


class Mixing:
    """Which corpus each place has. The n-th row of a corpus is known without those before it."""

    def __init__(self, mixture: Sequence[Corpus], sizes: np.ndarray, seed: int, groups: int = 1):
        self.mixture, self.sizes, self.seed, self.groups = mixture, sizes, seed, groups
        self.quotas = _share_rows(mixture, sizes) if mixture else np.array([MIXED_ROWS])

    def epochs(self, rows: int) -> dict[str, float]:
        """Return how often each corpus of a mixture has been read after this many rows, by name."""
        passes = rows / MIXED_ROWS * self.quotas / self.sizes
        return {c.name: float(p) for c, p in zip(self.mixture, passes, strict=False)}

    def turns(
        self, first: int, last: int, group: int = 0
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield for places first to last - 1: a corpus, its places, and its rows at them."""
        places = np.arange(first, last)
        if not self.mixture:
            yield 0, places - first, places
            return
        windows = places // MIXED_ROWS
        stops = np.cumsum(self.quotas)
        for window in map(int, np.unique(windows)):
            inside = np.flatnonzero(windows == window)
            key = MIXTURE + window * self.groups + group
            drawn = permute(places[inside] % MIXED_ROWS, MIXED_ROWS, self.seed, key)
            corpora = np.searchsorted(stops, drawn, side="right")
            for number in map(int, np.unique(corpora)):
                chosen = corpora == number
                quota = int(self.quotas[number])
                turns = window * quota + drawn[chosen] - (int(stops[number]) - quota)
                yield number, inside[chosen], turns

    def span(self, corpus: int, first: int, last: int) -> tuple[int, int]:
        """Return the first and last place that rows first to last - 1 of a corpus may have."""
        if not self.mixture:
            return first, last - 1
        quota = int(self.quotas[corpus])
        return first // quota * MIXED_ROWS, ((last - 1) // quota + 1) * MIXED_ROWS - 1

    def turn(self, corpus: int, place: int) -> int:
        """Return the first row of a corpus that this place or a later one may have."""
        return place // MIXED_ROWS * int(self.quotas[corpus]) if self.mixture else place


def groups_of(groups: int, first: int, end: int, num_ranks: int) -> range:
    """Return the groups that processes first to end - 1 of a step compute rows of."""
    return range(first * groups // num_ranks, -(-end * groups // num_ranks))


class GlobalOrder:
    """One permutation of all rows an epoch; of a mixture each corpus has epochs of its own."""

    groups = 1

    def __init__(self, mixing: Mixing):
        self.mixing = mixing
        self.firsts = np.cumsum(mixing.sizes) - mixing.sizes

    def draw(self, group: int, first: int, last: int) -> Iterator[Share]:
        """Yield the rows at places first to last - 1 of the sequence of all epochs."""
        rows = np.empty(last - first, dtype=np.int64)
        for corpus, inside, turns in self.mixing.turns(first, last):
            size = int(self.mixing.sizes[corpus])
            found, epochs = np.empty_like(turns), turns // size
            for epoch in map(int, np.unique(epochs)):
                chosen = epochs == epoch
                key = (corpus << 40) + epoch
                found[chosen] = permute(turns[chosen] - epoch * size, size, self.mixing.seed, key)
            rows[inside] = self.firsts[corpus] + found
        yield Share((), np.arange(last - first), rows)


def _share_rows(mixture: Sequence[Corpus], sizes: np.ndarray) -> np.ndarray:
    """Return the rows of each corpus, with `sizes` rows a pass, among MIXED_ROWS of a mixture."""
    weights = np.array(
        [
            corpus.repeats * size if corpus.weight is None else corpus.weight
            for corpus, size in zip(mixture, sizes, strict=True)
        ]
    )
    exact = weights / max(weights.sum(), 1e-300) * MIXED_ROWS
    quotas = np.floor(exact).astype(np.int64)
    largest = np.argsort(quotas - exact, kind="stable")
    quotas[largest[: MIXED_ROWS - quotas.sum()]] += 1
    for corpus, quota in zip(mixture, quotas, strict=True):
        require(
            quota > 0,
            f"the share of {corpus.name} in the mixture is less than one of {MIXED_ROWS:,} rows; "
            f"give it more {'repeats' if corpus.weight is None else 'weight'}",
        )
    return quotas


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Return the images of these places under a pseudo-random permutation of range(size).

    The permutation is a Feistel network over the next power of four, repeated until the result is
    in range(size). So each image is computed without the others.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    tables = _draw_rounds(half_bits, seed, epoch)
    values = places.astype(np.int64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> half_bits, values[outside] & mask
        for table in tables:
            left, right = right, left ^ table[right]
        values[outside] = left << half_bits | right
        outside = outside[values[outside] >= size]
    return values


@lru_cache(maxsize=16)
def _draw_rounds(half_bits: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the round function of each of the four Feistel rounds, as a table over all halves."""
    keys = np.random.Philox(key=[seed, epoch]).random_raw(4)
    halves = np.arange(1 << half_bits, dtype=np.uint64)
    return [(_mix(halves ^ key) & halves[-1]).astype(np.int64) for key in keys]


def _mix(values: np.ndarray) -> np.ndarray:
    """Return hashes of 64-bit integers (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
