"""Rows for pre-training, cut from shards: [CLS] A [SEP] B [SEP], as a function of (seed, step).

An epoch covers every token of the shards once. Row after row takes the next tokens of the stream,
as many as it has room for, so nothing is thrown away and only rows that are meant to be short (and
the last of each shard) are padded: a long line is carried over into the next row, and a row runs on
across a document's border. The second segment begins at the document border nearest to the row's
middle if there is one inside, else at the nearest line border, else at a word border.

Source: section 3.1 and build_pretraining_dataset.py, whose example is cut at a fixed length and
whose remainder is thrown away (docs/DEVIATIONS.md).
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from electra.config import ExamplesConfig
from electra.corpus.shards import Shard
from electra.corpus.tokenizer import Tokenizer
from electra.model.batch import Batch

SHORTEST_ROW = 5
"""Tokens of the shortest row that `short_prob` asks for. Source: ExampleBuilder._create_example."""

BLOCK_ROWS = 4096
"""Rows that are read at once for the steps to come; 1 MiB of them at 128 tokens."""


class Examples:
    """All rows of an epoch, in an order that each epoch draws anew.

    Args:
        shards: One part of a shards folder; none of them is empty.
        tokenizer: For the special tokens and for where words begin.
        config: Length of a row, shares of short ones and of single segments.
        seed: Seed of the cut and of the order.
    """

    def __init__(
        self, shards: Sequence[Shard], tokenizer: Tokenizer, config: ExamplesConfig, seed: int
    ):
        self.shards = shards
        self.tokenizer = tokenizer
        self.config = config
        self.seed = seed
        plans = [self._cut(number, len(shard.tokens)) for number, shard in enumerate(shards)]
        self.starts, self.counts, self.is_pair = (
            np.concatenate(columns) for columns in zip(*plans, strict=True)
        )
        self.shard_ends = np.cumsum([len(plan[0]) for plan in plans])
        length = config.sequence_length
        # In the smallest dtype there is: a comparison takes as long as its numbers are wide.
        self.position_L = np.arange(length, dtype=np.min_scalar_type(length))

    def __len__(self) -> int:
        """Return the number of rows in an epoch."""
        return len(self.starts)

    def batch(self, step: int, batch_size: int) -> Batch:
        """Return the rows of a step, counted from 0; epochs follow one another without a gap."""
        return self.rows(self._draw(step * batch_size, (step + 1) * batch_size))

    def batches(self, step: int, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of this step and of all that follow it, without end.

        They are those of `batch`, only faster: the rows of many small steps are read at once.
        """
        block_size = max(1, BLOCK_ROWS // batch_size) * batch_size
        for first in itertools.count(step * batch_size, block_size):
            block = self._read(self._draw(first, first + block_size))
            for start in range(0, block_size, batch_size):
                yield self._assemble(*(column[start : start + batch_size] for column in block))

    def rows(self, rows: np.ndarray) -> Batch:
        """Return the rows of these numbers."""
        return self._assemble(*self._read(rows))

    def _cut(self, number: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut a shard into rows: first token, number of tokens, and whether it has two segments."""
        config, length = self.config, self.config.sequence_length
        # Drawn in blocks from a counter-based generator, so that the cut never depends on memory.
        rng = np.random.Generator(np.random.Philox(key=[self.seed, number]))
        counts, pairs, covered = [], [], 0
        while covered < num_tokens:
            size = max(64, (num_tokens - covered) // length + 1)
            pair = rng.random(size) >= config.single_segment_prob
            is_short = rng.random(size) < config.short_prob
            target = np.where(is_short, rng.integers(SHORTEST_ROW, length + 1, size), length)
            counts.append(target - 2 - pair)
            pairs.append(pair)
            covered += int(counts[-1].sum())
        count, pair = np.concatenate(counts), np.concatenate(pairs)
        ends = np.cumsum(count)
        num_rows = int(np.searchsorted(ends, num_tokens)) + 1
        count, pair = count[:num_rows], pair[:num_rows]
        starts = ends[:num_rows] - count
        count[-1] = num_tokens - starts[-1]
        return starts, count, pair & (count >= 2)

    def _draw(self, first: int, last: int) -> np.ndarray:
        """Return the numbers of the rows from place first to before last, epoch after epoch."""
        size = len(self)
        return np.concatenate(
            [
                permute(
                    np.arange(max(first - epoch * size, 0), min(last - epoch * size, size)),
                    size,
                    self.seed,
                    epoch,
                )
                for epoch in range(first // size, (last - 1) // size + 1)
            ]
        )

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return what `_assemble` makes rows of.

        That is L + 1 tokens of the stream (B, L + 1) from two before each row's first one on, the
        position at which each second segment begins, each row's length and, where tokens attend
        within documents, the number of each position's.
        """
        starts_B, counts_B, is_pair_B = self.starts[rows], self.counts[rows], self.is_pair[rows]
        middle_B = starts_B + (counts_B + 1) // 2
        width = self.config.sequence_length + 1
        slices_BL = np.empty((len(rows), width), dtype=self.shards[0].tokens.dtype)
        lines_2B, documents_2B = np.empty((2, 2, len(rows)), dtype=np.int64)
        order = np.argsort(rows)  # shard after shard, and borders are found faster in order
        ends = np.searchsorted(rows, self.shard_ends[:-1], sorter=order)
        for shard, inside_B in zip(self.shards, np.split(order, ends), strict=True):
            if len(inside_B):
                slices_BL[inside_B] = _slices(shard.tokens, starts_B[inside_B] - 2, width)
                lines_2B[:, inside_B] = _borders(shard.lines, middle_B[inside_B])
                documents_2B[:, inside_B] = _borders(shard.documents, middle_B[inside_B])
        first_B = self._split(counts_B, slices_BL, lines_2B - starts_B, documents_2B - starts_B)
        second_B, length_B = np.where(is_pair_B, first_B, counts_B) + 2, counts_B + 2 + is_pair_B
        dtype = self.position_L.dtype
        columns = slices_BL, second_B.astype(dtype), length_B.astype(dtype)
        if self.config.attend == "row":
            return columns
        return *columns, self._number_documents(rows, second_B).astype(dtype)

    def _split(
        self,
        counts_B: np.ndarray,
        slices_BL: np.ndarray,
        lines_2B: np.ndarray,
        documents_2B: np.ndarray,
    ) -> np.ndarray:
        """Return the number of tokens in each row's first segment, at least 1, one left over.

        Args:
            counts_B: Tokens of each row.
            slices_BL: The stream from two before each row's first token on.
            lines_2B: Where the last line before the row's middle begins, and the first one from it
                on, counted from the row's first token.
            documents_2B: The same of documents.
        """
        middle_B = (counts_B + 1) // 2
        first_B = np.zeros(len(counts_B), dtype=np.int64)
        for before_B, after_B in (lines_2B, documents_2B):  # the latter last, so that they win
            before_fits = (before_B > 0) & (before_B < counts_B)
            after_fits = (after_B > 0) & (after_B < counts_B)
            is_nearer = middle_B - before_B <= after_B - middle_B
            take_before = before_fits & (is_nearer | ~after_fits)
            first_B = np.where(after_fits, after_B, first_B)
            first_B = np.where(take_before, before_B, first_B)
        # By word, from the middle on; where no word begins there, in the middle of one.
        rows_R, place_W = np.flatnonzero(first_B == 0), np.arange(8)
        middle_R = middle_B[rows_R]
        ids_RW = _slices(slices_BL.ravel(), rows_R * slices_BL.shape[1] + 2 + middle_R, 8)
        begins_RW = self.tokenizer.starts_word[ids_RW]
        begins_RW &= place_W < (counts_B[rows_R] - middle_R)[:, None]
        first_B[rows_R] = middle_R + begins_RW.argmax(axis=1)
        return first_B

    def _number_documents(self, rows: np.ndarray, second_B: np.ndarray) -> np.ndarray:
        """Return the number of each position's document in its row, from 1 (B, L).

        [CLS] belongs to the first document, [SEP] to that of the token before it.
        """
        position_L = np.arange(self.config.sequence_length)
        # In tokens of the row, without [CLS], and without the first [SEP] where it is passed.
        place_BL = position_L - 1 - (position_L >= second_B[:, None] - 1)
        token_BL = self.starts[rows, None] + np.clip(place_BL, 0, self.counts[rows, None] - 1)
        shard_B = np.searchsorted(self.shard_ends, rows, side="right")
        numbers_BL = np.empty(token_BL.shape, dtype=np.int64)
        for number in np.unique(shard_B):
            inside, documents = shard_B == number, self.shards[number].documents
            token_IL = token_BL[inside].astype(documents.dtype)  # else documents are cast, whole
            numbers_BL[inside] = np.searchsorted(documents, token_IL, side="right")
        return numbers_BL - numbers_BL[:, :1] + 1

    def _assemble(
        self,
        slices_BL: np.ndarray,
        second_B: np.ndarray,
        length_B: np.ndarray,
        documents_BL: np.ndarray | None = None,
    ) -> Batch:
        """Return rows as tensors, from what `_read` returns of them."""
        # [CLS] stands before the first segment, and a [SEP] between the two: a row is two slices of
        # the stream, one token and two tokens behind their place.
        ids_BL, types_BL = slices_BL[:, 1:].copy(), self.position_L >= second_B[:, None]
        np.copyto(ids_BL, slices_BL[:, :-1], where=types_BL)
        row_B = np.arange(len(ids_BL))
        ids_BL[:, 0] = self.tokenizer.cls_id
        ids_BL[row_B, second_B - 1] = self.tokenizer.sep_id
        ids_BL[row_B, length_B - 1] = self.tokenizer.sep_id
        real_BL = None
        if (length_B < len(self.position_L)).any():
            real_BL = self.position_L < length_B[:, None]
            types_BL &= real_BL
            np.copyto(ids_BL, self.tokenizer.pad_id, where=~real_BL)
            if documents_BL is not None:
                documents_BL = documents_BL * real_BL
        return Batch(
            torch.from_numpy(ids_BL.astype(np.int64)),
            None if real_BL is None else torch.from_numpy(real_BL),
            torch.from_numpy(types_BL.astype(np.int64)),
            None if documents_BL is None else torch.from_numpy(documents_BL.astype(np.int64)),
        )


def _borders(borders: np.ndarray, places_B: np.ndarray) -> np.ndarray:
    """Return the last border before each place, and the first one from it on (2, B)."""
    next_B = np.searchsorted(borders, places_B.astype(borders.dtype))  # else cast, whole
    return borders.take([next_B - 1, next_B], mode="clip")


def _slices(tokens: np.ndarray, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Return tokens[start : start + length] of each start (B, length).

    Beyond either end of the stream stands its last token on that side.
    """
    last = len(tokens) - length
    beyond_B = (starts_B < 0) | (starts_B > last)
    if last >= 0:  # row by row of contiguous memory: several times as fast as token by token
        windows = sliding_window_view(np.asarray(tokens), length)
        slices_BL = windows[np.clip(starts_B, 0, last)]
    else:
        slices_BL = np.empty((len(starts_B), length), tokens.dtype)
    if beyond_B.any():
        places = starts_B[beyond_B, None] + np.arange(length)
        slices_BL[beyond_B] = tokens[np.clip(places, 0, len(tokens) - 1)]
    return slices_BL


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Return where a pseudo-random permutation of range(size) puts these places.

    A Feistel network over the next power of four, walked until the result is inside: any place can
    be asked for without the others. Places and result are arrays of integers.
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


@lru_cache(maxsize=2)
def _draw_rounds(half_bits: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the network's four rounds as tables: the number that each half is turned into."""
    keys = np.random.Philox(key=[seed, epoch]).random_raw(4)
    halves = np.arange(1 << half_bits, dtype=np.uint64)
    return [(_mix(halves ^ key) & halves[-1]).astype(np.int64) for key in keys]


def _mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit words (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
