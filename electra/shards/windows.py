"""Rows of few shards at a time, for a corpus that is larger than the memory, or than a disk.

    shards     permuted anew each epoch, and cut into half windows of W / 2 shards
    first      the rows of each half window are permuted
    second     these are permuted again between the middles of adjacent half windows

So a step has rows of W shards, two half windows, and the rows of a shard are spread over the places
of W shards. Windows overlap by half: after the middle of a half window, half of the rows still come
from the half window before. To find a row, the rows of the shards before it in the epoch must be
known; they are counted when they are first needed.

With `groups` G, the shards of each corpus are dealt out to G groups, once for all epochs; each
group has an order of its own, and as many rows of every step as the others.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from electra.errors import require
from electra.shards.config import ExamplesConfig
from electra.shards.order import Mixing, Share, permute

WINDOWS = 3 << 61
"""Added to the numbers of stream (15 bits), epoch (24), permutation (2) and half window (20)."""


class Use(NamedTuple):
    """Shards that are read together, and the steps that need them."""

    first: int
    """First step that may have a row of them."""
    last: int
    """Last one; of a mixture, steps in which the corpus has its share of MIXED_ROWS count whole."""
    shards: tuple[int, ...]


class WindowOrder:
    """Rows of few shards at a time, for a corpus that is larger than the memory, or than a disk.

    Args:
        config: Window and groups.
        num_tokens: Tokens of each shard (N,), by which groups are made alike.
        mixing: Which corpus each place has, by expected rows.
        ends: Behind the last shard of each corpus.
        count: Returns the rows of the shard with a number.
    """

    def __init__(
        self,
        config: ExamplesConfig,
        num_tokens: np.ndarray,
        mixing: Mixing,
        ends: Sequence[int],
        count: Callable[[int], int],
    ):
        self.mixing, self.groups = mixing, config.groups
        self.given = config, num_tokens, mixing, ends
        self.streams: list[list[_Stream]] = []
        """By corpus and group."""
        for first, end in itertools.pairwise((0, *ends)):
            require(
                end - first >= self.groups,
                f"examples.groups {self.groups} needs as many shards of each corpus, and one has "
                f"{end - first}; prepare it with a smaller shard_tokens or task_bytes",
            )
            dealt = first + np.argsort(-num_tokens[first:end], kind="stable")
            keys = itertools.count(len(self.streams) * self.groups)
            of_groups = (np.sort(dealt[group :: self.groups]) for group in range(self.groups))
            self.streams.append(
                [
                    _Stream(numbers, config.window, mixing.seed, next(keys), count)
                    for numbers in of_groups
                ]
            )

    def draw(self, group: int, first: int, last: int) -> Iterator[Share]:
        """Yield the rows at places first to last - 1 of the sequence of a group."""
        for corpus, inside, turns in self.mixing.turns(first, last, group):
            for each in self.streams[corpus][group].draw(turns):
                yield each._replace(places=inside[each.places])

    def uses(self, step: int, batch_size: int, groups: Sequence[int]) -> Iterator[Use]:
        """Yield the shards that this step and all later ones need, in the order of first use."""
        rows = batch_size // self.groups

        def of_stream(corpus: int, stream: "_Stream") -> Iterator[Use]:
            for first, end, shards in stream.uses(self.mixing.turn(corpus, step * rows)):
                if end > first:
                    places = self.mixing.span(corpus, first, end)
                    yield Use(max(step, places[0] // rows), places[1] // rows, shards)

        streams = (
            of_stream(corpus, streams[group])
            for corpus, streams in enumerate(self.streams)
            for group in groups
        )
        return heapq.merge(*streams)

    def expect(self, row_tokens: float) -> "WindowOrder":
        """Return this order with expected numbers of rows, for which no shard is counted.

        It has the same shards in the same windows; its steps differ from this order's by a few.
        """
        sizes = np.maximum(1, np.round(self.given[1] / row_tokens)).astype(int).tolist()
        return WindowOrder(*self.given, sizes.__getitem__)

    def first_shards(self) -> list[int]:
        """Return the shards that each corpus begins with, in the first group."""
        return [number for streams in self.streams for number in streams[0].epoch(0).halves[0]]


class _Epoch(NamedTuple):
    """An epoch of a stream."""

    halves: list[tuple[int, ...]]
    """The shards of each half window."""
    bounds: list[int]
    """Where the half windows begin, and behind that where the last one ends, as far as counted."""


class _Stream:
    """The rows of some shards, in a new order of windows every epoch."""

    def __init__(
        self, numbers: np.ndarray, window: int, seed: int, key: int, count: Callable[[int], int]
    ):
        self.numbers, self.half = numbers, window // 2
        self.seed, self.key, self.count = seed, WINDOWS + (key << 46), count
        self.size = 0
        """Rows of an epoch; 0: not all are counted."""
        self.epoch = lru_cache(maxsize=2)(self._begin)

    def _key(self, epoch: int, permutation: int, half: int = 0) -> int:
        return self.key + ((epoch & 0xFFFFFF) << 22) + (permutation << 20) + half

    def _begin(self, epoch: int) -> _Epoch:
        """Return an epoch of which no row is counted."""
        size = len(self.numbers)
        order = permute(np.arange(size), size, self.seed, self._key(epoch, 0))
        parts = np.array_split(self.numbers[order], -(-size // self.half))
        return _Epoch([tuple(part.tolist()) for part in parts], [0])

    def _count(self, epoch: int, place: int) -> np.ndarray:
        """Return the bounds of an epoch's half windows, as far as the order at a place needs."""
        halves, bounds = self.epoch(epoch)
        while len(bounds) <= len(halves) and (len(bounds) < 2 or sum(bounds[-2:]) // 2 <= place):
            bounds.append(bounds[-1] + sum(map(self.count, halves[len(bounds) - 1])))
        if len(bounds) > len(halves):
            self.size = bounds[-1]
        return np.array(bounds)

    def _middles(self, epoch: int, bounds: np.ndarray) -> np.ndarray:
        """Return where the second permutations begin and end, as far as is counted."""
        is_whole = len(bounds) > len(self.epoch(epoch).halves)
        middles = (bounds[1:] + bounds[:-1]) // 2
        return np.concatenate([[0], middles, bounds[-1:] if is_whole else []]).astype(np.int64)

    def _find(self, turn: int) -> int:
        """Return the epoch of a row."""
        if not self.size:
            self._count(0, turn)
        return turn // self.size if self.size else 0

    def draw(self, turns: np.ndarray) -> Iterator[Share]:
        """Yield the rows with these numbers in the sequence of all epochs, by half windows."""
        self._find(int(turns.max()))
        epochs = turns // self.size if self.size else np.zeros_like(turns)
        for epoch in map(int, np.unique(epochs)):
            inside = np.flatnonzero(epochs == epoch)
            places = turns[inside] - epoch * self.size
            bounds = self._count(epoch, int(places.max()))
            places = self._permute_between(places, self._middles(epoch, bounds), epoch, 2)
            rows = self._permute_between(places, bounds, epoch, 1)
            half = np.searchsorted(bounds, rows, side="right") - 1
            for number in map(int, np.unique(half)):
                chosen = half == number
                shards = self.epoch(epoch).halves[number]
                yield Share(shards, inside[chosen], rows[chosen] - bounds[number])

    def _permute_between(
        self, places: np.ndarray, bounds: np.ndarray, epoch: int, permutation: int
    ) -> np.ndarray:
        """Return the images of places, which are permuted between adjacent bounds."""
        images, parts = np.empty_like(places), np.searchsorted(bounds, places, side="right") - 1
        for part in map(int, np.unique(parts)):
            chosen = parts == part
            first, end = map(int, bounds[part : part + 2])
            key = self._key(epoch, permutation, part)
            images[chosen] = first + permute(places[chosen] - first, end - first, self.seed, key)
        return images

    def uses(self, turn: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield for each half window that this row or a later one needs: its rows' span, shards."""
        for epoch in itertools.count(self._find(turn)):
            begin = epoch * self.size
            for number, shards in enumerate(self.epoch(epoch).halves):
                bounds = self._count(epoch, 0)
                while len(bounds) <= min(number + 2, len(self.epoch(epoch).halves)):
                    bounds = self._count(epoch, int(bounds[-1]))
                middles = self._middles(epoch, bounds)
                first, end = begin + int(middles[number]), begin + int(middles[number + 2])
                if end > turn:
                    yield first, end, shards
