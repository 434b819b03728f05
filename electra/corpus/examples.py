"""Rows for pre-training, cut from shards: [CLS] A [SEP] B [SEP], as a function of (seed, step).

An epoch covers every token of the shards once. Row after row takes the next tokens of the stream,
as many as it has room for, so nothing is thrown away and only rows that are meant to be short (and
the last of each shard) are padded: a long line is carried over into the next row, and a row runs on
across a document's border. The second segment begins at the document border nearest to the row's
middle if there is one inside, else at the nearest line border, else at a word border.

Source: section 3.1 and build_pretraining_dataset.py, whose example is cut at a fixed length and
whose remainder is thrown away (docs/DEVIATIONS.md).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from electra.config import ExamplesConfig, UserError
from electra.corpus.shards import Shard
from electra.corpus.tokenizer import Tokenizer

SHORTEST_ROW = 5
"""Tokens of the shortest row that `short_prob` asks for. Source: ExampleBuilder._create_example."""


class Batch(NamedTuple):
    """Rows of one step; B rows of L tokens."""

    input_ids_BL: Tensor
    """int64."""
    attention_mask_BL: Tensor | None
    """True at tokens, False at padding; None if no row is padded."""
    token_type_ids_BL: Tensor
    """0 in [CLS] A [SEP], 1 in B [SEP], 0 at padding; int64."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the copy to a CUDA device is not waited for."""
        if device.type == "cuda":  # from pinned memory, which torch keeps until it is copied
            return self._each(lambda tensor: tensor.pin_memory().to(device, non_blocking=True))
        return self._each(lambda tensor: tensor.to(device))

    def rows(self, rows: slice) -> "Batch":
        """Return some of the rows."""
        return self._each(lambda tensor: tensor[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        mask = self.attention_mask_BL
        return Batch(
            change(self.input_ids_BL),
            None if mask is None else change(mask),
            change(self.token_type_ids_BL),
        )


class Examples:
    """All rows of an epoch, in an order that each epoch draws anew.

    Args:
        shards: One part of a shards folder.
        tokenizer: For the special tokens and for where words begin.
        config: Length of a row, shares of short ones and of single segments.
        seed: Seed of the cut and of the order.
    """

    def __init__(
        self, shards: Sequence[Shard], tokenizer: Tokenizer, config: ExamplesConfig, seed: int
    ):
        if not any(len(shard.tokens) for shard in shards):
            raise UserError("the shards hold no tokens")
        self.shards = shards
        self.tokenizer = tokenizer
        self.config = config
        self.seed = seed
        plans = [self._cut(number, len(shard.tokens)) for number, shard in enumerate(shards)]
        self.starts, self.counts, self.is_pair = (
            np.concatenate(columns) for columns in zip(*plans, strict=True)
        )
        self.shard_ends = np.cumsum([len(plan[0]) for plan in plans])

    def __len__(self) -> int:
        """Return the number of rows in an epoch."""
        return len(self.starts)

    def batch(self, step: int, batch_size: int) -> Batch:
        """Return the rows of a step, counted from 0; epochs follow one another without a gap."""
        samples = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.uint64)
        epochs, places = np.divmod(samples, np.uint64(len(self)))
        rows = np.empty(batch_size, dtype=np.int64)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            rows[inside] = permute(places[inside], len(self), self.seed, int(epoch))
        return self.rows(rows)

    def rows(self, rows: np.ndarray) -> Batch:
        """Return the rows of these numbers."""
        length = self.config.sequence_length
        ids_BL = np.empty((len(rows), length), dtype=self.shards[0].tokens.dtype)
        second_B = np.empty(len(rows), dtype=np.int64)
        shard_B = np.searchsorted(self.shard_ends, rows, side="right")
        starts_B, counts_B = self.starts[rows], self.counts[rows]
        is_pair_B = self.is_pair[rows]
        for number in np.unique(shard_B):
            inside = np.flatnonzero(shard_B == number)
            ids_BL[inside], second_B[inside] = self._fill(
                self.shards[number], starts_B[inside], counts_B[inside], is_pair_B[inside]
            )
        position_L = np.arange(length)
        length_B1 = (counts_B + 2 + is_pair_B)[:, None]
        types_BL = position_L >= second_B[:, None]
        real_BL = None
        if (length_B1 < length).any():
            real_BL = position_L < length_B1
            types_BL &= real_BL
        return Batch(
            torch.from_numpy(ids_BL.astype(np.int64)),
            None if real_BL is None else torch.from_numpy(real_BL),
            torch.from_numpy(types_BL.astype(np.int64)),
        )

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
        num_rows = int(np.searchsorted(ends, num_tokens)) + 1 if num_tokens else 0
        count, pair = count[:num_rows], pair[:num_rows]
        starts = ends[:num_rows] - count
        if num_rows:
            count[-1] = num_tokens - starts[-1]
        return starts, count, pair & (count >= 2)

    def _fill(
        self, shard: Shard, starts_B: np.ndarray, counts_B: np.ndarray, is_pair_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ids (B, L) and the position at which each row's second segment begins."""
        length, tokenizer = self.config.sequence_length, self.tokenizer
        first_B = np.where(is_pair_B, self._split(shard, starts_B, counts_B), counts_B)
        position_L = np.arange(length)
        # [CLS] stands before the first segment, and a [SEP] between the two: a row is two slices of
        # the stream, one token and two tokens behind their place.
        slices_BL = _slices(shard.tokens, starts_B - 2, length + 1)
        ids_BL = np.where(position_L < (first_B + 2)[:, None], slices_BL[:, 1:], slices_BL[:, :-1])
        last_B = counts_B + 1 + is_pair_B
        row_B = np.arange(len(starts_B))
        if (last_B < length - 1).any():
            ids_BL[position_L > last_B[:, None]] = tokenizer.pad_id
        ids_BL[:, 0] = tokenizer.cls_id
        ids_BL[row_B, first_B + 1] = tokenizer.sep_id
        ids_BL[row_B, last_B] = tokenizer.sep_id
        return ids_BL, first_B + 2

    def _split(self, shard: Shard, starts_B: np.ndarray, counts_B: np.ndarray) -> np.ndarray:
        """Return the number of tokens in each row's first segment, at least 1, one left over."""
        ends_B, middle_B = starts_B + counts_B, starts_B + (counts_B + 1) // 2
        # By word, from the middle on; where no word begins there, in the middle of one.
        place_W = np.arange(8)
        begins_BW = self.tokenizer.starts_word[_slices(shard.tokens, middle_B, len(place_W))]
        begins_BW &= place_W < (ends_B - middle_B)[:, None]
        split_B = middle_B + begins_BW.argmax(axis=1)
        for borders in (shard.lines, shard.documents):  # the latter last, so that they win
            next_B = np.searchsorted(borders, middle_B.astype(borders.dtype))  # else cast, whole
            before_B, after_B = (
                borders[place].astype(np.int64)
                for place in (np.maximum(next_B - 1, 0), np.minimum(next_B, len(borders) - 1))
            )
            before_fits = (before_B > starts_B) & (before_B < ends_B)
            after_fits = (after_B > starts_B) & (after_B < ends_B)
            is_nearer = middle_B - before_B <= after_B - middle_B
            take_before = before_fits & (is_nearer | ~after_fits)
            split_B = np.where(after_fits, after_B, split_B)
            split_B = np.where(take_before, before_B, split_B)
        return split_B - starts_B


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
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    keys = np.random.Philox(key=[seed, epoch]).random_raw(4)
    values = places.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> shift, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[outside] = left << shift | right
        outside[outside] = values[outside] >= size
    return values.astype(np.int64)


def _mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit words (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
