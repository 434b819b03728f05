"""Pre-training rows cut from shards, [CLS] A [SEP] B [SEP], as a function of (seed, step).

Which rows a step has is in order.py.

An epoch covers every token of the shards once. Each row takes the next tokens of the stream until
the row is full. No token is dropped: a long line continues in the next row, and a row continues
across a document border. Only deliberately short rows and the last row of a shard are padded.
The second segment begins at the document border nearest to the middle of the row. A row without a
document border is split at the nearest line border, else at a word border.

For next-sentence prediction (`examples.next_sentence`), segments are split inside a document, at a
line border if there is one, and half of the rows exchange their second segments. So a row has the
second segment of a row of another document, with as many tokens as its own has.

Source: section 3.1 and build_pretraining_dataset.py. The original cuts examples at a fixed length
and drops the remainder (docs/DEVIATIONS.md).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from electra.model.batch import Batch
from electra.shards.config import ExamplesConfig
from electra.shards.layout import COLUMNS
from electra.shards.order import GlobalOrder, Mixing, groups_of
from electra.shards.store import Corpus, Shard, allow_open_files
from electra.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from electra.shards.windows import WindowOrder

SHORTEST_ROW = 5
"""Tokens of the shortest row drawn by `short_prob`. Source: ExampleBuilder._create_example."""

BLOCK_ROWS = 4096
"""Least rows read ahead in one block: 1 MiB at 128 tokens per row."""
ROWS_OF_SHARD = 128
"""Least average number of a block's rows per shard. Fewer rows take longer, because a shard is read
once for all its rows of the block."""
BLOCK_TOKENS = 1 << 29
"""Most tokens of such a block, however many shards there are: each process has it in memory."""
PARTNERS = 1 << 61
"""Added to the number of a shard, for the key of what its rows exchange."""


class Examples:
    """The rows of all steps, from shards that are not empty, in the order of the settings.

    The tokenizer gives the special tokens and the tokens that begin a word; the seed is that of the
    cuts and of the order. The corpora of a mixture are drawn by weights or repeats, and each has
    epochs of its own. `part` is the number of this process and that of all processes of a step,
    which divide its rows into equal parts.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        tokenizer: Tokenizer,
        config: ExamplesConfig,
        seed: int,
        mixture: Sequence[Corpus] = (),
        part: tuple[int, int] = (0, 1),
    ):
        self.shards, self.tokenizer, self.config, self.seed = shards, tokenizer, config, seed
        # The cuts of a corpus are the same alone and in a mixture.
        self.corpora = [each.num_shards for each in mixture] or [len(shards)]
        self.numbers = [number for size in self.corpora for number in range(size)]
        self.on_read: Callable[[int, Sequence[int]], None] = lambda step, shards: None
        """Called with the step whose rows are read (-1: none), and the numbers of their shards."""
        self.watched: Sequence[int] = ()
        """Groups whose shards `on_read` also gets, for other processes of the machine."""
        self.open: dict[tuple[int, ...], Rows | None] = {}
        """The rows of shards that the last block was read from."""
        self.order = self._order(mixture)
        self.part = part
        self.groups = groups_of(self.order.groups, part[0], part[0] + 1, part[1])
        """The groups whose rows are read."""
        num_open = len(shards)
        if config.order == "window":
            num_open = min(num_open, config.window * len(self.corpora) * len(self.groups))
        files = len(COLUMNS) * min(2 * num_open, len({shard.path for shard in shards}))
        allow_open_files(shards[0].path.parent, files)
        length = config.sequence_length
        self.block_rows = max(BLOCK_ROWS, min(ROWS_OF_SHARD * num_open, BLOCK_TOKENS // length))
        if config.order == "window":
            # A block has rows of three half windows at most, or, where shards are unequal, of more
            # that have no more bytes than the three largest.
            of_shard = min(self.order.mixing.sizes / self.corpora)
            half_window = config.window // 2 * of_shard * self.order.groups / part[1]
            self.block_rows = max(1, min(self.block_rows, int(0.45 * half_window)))

    def _order(self, mixture: Sequence[Corpus]) -> "GlobalOrder | WindowOrder":
        """Return the order; the global one has all cuts at once, the other those of a window."""
        ends = np.cumsum(self.corpora)
        num_tokens = np.array([shard.num_tokens for shard in self.shards])
        if self.config.order == "global":
            rows = self.open[()] = self._cut(range(len(self.shards)))
            return GlobalOrder(Mixing(mixture, np.diff(rows.ends[ends - 1], prepend=0), self.seed))
        from electra.shards.windows import WindowOrder

        expected = np.add.reduceat(
            num_tokens / row_tokens(self.config), (ends - self.corpora).tolist()
        )
        mixing = Mixing(mixture, expected, self.seed, self.config.groups)
        return WindowOrder(self.config, num_tokens, mixing, ends.tolist(), self._count())

    def _count(self) -> Callable[[int], int]:
        """Return a function of the number of a shard that counts its rows, once."""
        counts: dict[int, int] = {}

        def count(number: int) -> int:
            if number not in counts:
                of_corpus, num_tokens = self.numbers[number], self.shards[number].num_tokens
                counts[number] = len(cut(of_corpus, num_tokens, self.config, self.seed)[0])
            return counts[number]

        return count

    def _cut(self, numbers: Sequence[int]) -> "Rows":
        """Return the rows of some shards; their files are open as long as these rows are kept."""
        shards = [self.shards[number] for number in numbers]
        if self.config.order == "window":
            shards = [replace(shard) for shard in shards]  # with open files of their own
        of_corpora = [self.numbers[number] for number in numbers]
        return Rows(shards, self.tokenizer, self.config, self.seed, of_corpora)

    def first_shards(self) -> Sequence[Shard]:
        """Return the shards to count tokens in: all, or with order=window those it begins with."""
        if isinstance(self.order, GlobalOrder):
            return self.shards
        numbers = self.order.first_shards()
        self.on_read(-1, numbers)
        return [replace(self.shards[number]) for number in numbers]

    def forecast(self) -> "WindowOrder":
        """Return the order of windows by expected rows, for which no shard is cut."""
        assert not isinstance(self.order, GlobalOrder)
        return self.order.expect(row_tokens(self.config))

    def __len__(self) -> int:
        """Return the rows of an epoch of all corpora; with order=window about so many."""
        return round(self.order.mixing.sizes.sum())

    def epochs(self, rows: int) -> dict[str, float]:
        """Return how often each corpus of a mixture has been read after this many rows, by name."""
        return self.order.mixing.epochs(rows)

    def batch(self, step: int, batch_size: int) -> Batch:
        """Return the rows of a step, counted from 0; with `examples.groups`, of the own groups.

        A batch may span two epochs.
        """
        share = batch_size // self.order.groups
        of_groups = range(self.groups.start * share, self.groups.stop * share)
        return assemble(self.tokenizer, **self._read(step, 1, batch_size, of_groups))

    def batches(self, step: int, batch_size: int) -> Iterator[Batch]:
        """Yield this part's rows of this step and of all later steps, without end.

        They equal those of `batch`. Reading the rows of many small steps in one block is faster.
        """
        number, num_parts = self.part
        size = batch_size // num_parts
        own = range(number * size, (number + 1) * size)
        num_steps = max(1, self.block_rows // size)
        for first in itertools.count(step, num_steps):
            block = self._read(first, num_steps, batch_size, own)
            for start in range(0, num_steps * size, size):
                inside = slice(start, start + size)
                columns = {name: column[inside] for name, column in block.items()}
                yield assemble(self.tokenizer, **columns)

    def _read(
        self, step: int, num_steps: int, batch_size: int, own: range
    ) -> dict[str, np.ndarray]:
        """Return the arguments of `assemble` for the rows `own` of each of some steps."""
        share = batch_size // self.order.groups
        span = step * share, (step + num_steps) * share
        found = [(group, each) for group in self.groups for each in self.order.draw(group, *span)]
        if self.config.order == "window":
            others = [group for group in self.watched if group not in self.groups]
            read = [each for _, each in found]
            read += [each for group in others for each in self.order.draw(group, *span)]
            self.on_read(step, sorted({number for each in read for number in each.shards}))
            self.open = {each.shards: self.open.get(each.shards) for _, each in found}
        columns: dict[str, np.ndarray] = {}
        for group, (shards, places, rows) in found:
            kept = self.open[shards] = self.open[shards] or self._cut(shards)
            in_step = group * share + places % share - own.start
            is_own = (in_step >= 0) & (in_step < len(own))
            part = kept.read(rows[is_own])
            if len(found) == 1:
                return part
            places = (places // share * len(own) + in_step)[is_own]
            for name, column in part.items():
                if name not in columns:
                    shape = num_steps * len(own), *column.shape[1:]
                    columns[name] = np.empty(shape, column.dtype)
                columns[name][places] = column
        return columns


class Rows:
    """All rows of some shards, by number: one shard's after the other's.

    `numbers` are those of the shards in their corpus, from 0 if not given; the cuts depend on them.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        tokenizer: Tokenizer,
        config: ExamplesConfig,
        seed: int,
        numbers: Sequence[int] | None = None,
    ):
        self.shards, self.tokenizer, self.config, self.seed = shards, tokenizer, config, seed
        numbers = range(len(shards)) if numbers is None else numbers
        plans = [
            cut(number, shard.num_tokens, config, seed)
            for number, shard in zip(numbers, shards, strict=True)
        ]
        self.starts, self.counts, self.is_pair = (
            np.concatenate(columns) for columns in zip(*plans, strict=True)
        )
        self.ends = np.cumsum([len(plan[0]) for plan in plans])
        self.partners = np.empty(0, dtype=np.uint32)
        """With next_sentence: the row whose second segment each row has, its own or another's."""
        if config.next_sentence:
            shares = zip(numbers, self.ends, plans, strict=True)
            self.partners = np.concatenate(
                [self._pair(number, end - len(plan[0]), end) for number, end, plan in shares]
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    def rows(self, rows: np.ndarray) -> Batch:
        """Return the rows with these numbers (B,)."""
        return assemble(self.tokenizer, **self.read(rows))

    def _pair(self, number: int, first: int, end: int) -> np.ndarray:
        """Return the partners of a shard's rows, first to end - 1; half are their own partners."""
        rng = np.random.Generator(np.random.Philox(key=[self.seed, PARTNERS + number]))
        partners = np.arange(first, end, dtype=np.uint32)
        others = np.flatnonzero(rng.random(end - first) < 0.5)
        # Half of them apart: of different documents, unless one is as long as that. They exchange,
        # so every second segment is read as often.
        partners[others] = partners[np.roll(others, len(others) // 2)]
        return partners

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arguments of `assemble` for the rows with these numbers."""
        slices_BL, first_B = self._find(rows)
        counts_B, is_pair_B = self.counts[rows].astype(np.int64), self.is_pair[rows]
        second_B, length_B = np.where(is_pair_B, first_B, counts_B) + 2, counts_B + 2 + is_pair_B
        dtype = np.min_scalar_type(self.config.sequence_length)
        found = {
            "slices_BL": slices_BL,
            "second_B": second_B.astype(dtype),
            "length_B": length_B.astype(dtype),
        }
        if self.config.attend == "document":
            found["documents_BL"] = self._number_documents(rows, second_B)
        if self.config.next_sentence:
            found["is_next_B"] = self._exchange_second(rows, slices_BL, first_B)
        return found

    def _find(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens (B, L + 1), from two before a row's, and the first segments' sizes (B,)."""
        starts_B, counts_B = (each[rows].astype(np.int64) for each in (self.starts, self.counts))
        middle_B = starts_B + (counts_B + 1) // 2
        width = self.config.sequence_length + 1
        slices_BL = np.empty((len(rows), width), dtype=self.shards[0].tokens.dtype)
        lines_2B, documents_2B = np.empty((2, 2, len(rows)), dtype=np.int64)
        for shard, inside_B in self._by_shard(rows):
            slices_BL[inside_B] = _slices(shard.tokens, starts_B[inside_B] - 2, width)
            lines_2B[:, inside_B] = _borders(shard.lines, middle_B[inside_B])
            documents_2B[:, inside_B] = _borders(shard.documents, middle_B[inside_B])
        if self.config.next_sentence:  # never where a document begins
            lines_2B[lines_2B == documents_2B] = 0
            documents_2B[:] = 0
        return slices_BL, self._split(
            counts_B, slices_BL, lines_2B - starts_B, documents_2B - starts_B
        )

    def _by_shard(self, rows: np.ndarray) -> Iterator[tuple[Shard, np.ndarray]]:
        """Yield the shards that have some of the rows, and the places of these rows (I,)."""
        order = np.argsort(rows)  # groups rows by shard; the search for borders is faster sorted
        ends = np.searchsorted(rows, self.ends[:-1], sorter=order)
        for shard, inside_B in zip(self.shards, np.split(order, ends), strict=True):
            if len(inside_B):
                yield shard, inside_B

    def _exchange_second(
        self, rows: np.ndarray, slices_BL: np.ndarray, first_B: np.ndarray
    ) -> np.ndarray:
        """Give rows the second segments of partners of other documents; return the labels (B,)."""
        partners, width = self.partners[rows], slices_BL.shape[1]
        starts_B, counts_B = (each[rows].astype(np.int64) for each in (self.starts, self.counts))
        begins_B = self.starts[partners] + self._find(partners)[1]
        is_next_B = np.empty(len(rows), dtype=bool)
        for shard, inside_I in self._by_shard(rows):
            a, size, length = starts_B[inside_I], first_B[inside_I], counts_B[inside_I]
            b = np.minimum(begins_B[inside_I], shard.num_tokens - (length - size))
            # Tokens whose documents decide: first and last of A and of B, and the one behind A.
            places_5I = np.stack([a, a + size - 1, b, b + length - size - 1, a + size])
            first_a, last_a, first_b, last_b, behind_a = np.searchsorted(
                shard.documents, places_5I.astype(shard.documents.dtype), side="right"
            )
            is_other = (last_b < first_a) | (first_b > last_a)
            is_next_B[inside_I] = ~is_other & (last_a == behind_a) & (size < length)
            places = inside_I[is_other]
            second = (size + 2)[is_other, None]
            slices_IL = _slices(shard.tokens, b[is_other] - second[:, 0], width)
            is_second = np.arange(width) >= second
            slices_BL[places] = np.where(is_second, slices_IL, slices_BL[places])
        return is_next_B

    def _split(
        self,
        counts_B: np.ndarray,
        slices_BL: np.ndarray,
        lines_2B: np.ndarray,
        documents_2B: np.ndarray,
    ) -> np.ndarray:
        """Return the tokens of first segments (B,), which end at the borders nearest the middle."""
        middle_B = (counts_B + 1) // 2
        first_B = np.zeros(len(counts_B), dtype=np.int64)
        for before_B, after_B in (lines_2B, documents_2B):  # document borders override line borders
            before_fits = (before_B > 0) & (before_B < counts_B)
            after_fits = (after_B > 0) & (after_B < counts_B)
            is_nearer = middle_B - before_B <= after_B - middle_B
            take_before = before_fits & (is_nearer | ~after_fits)
            first_B = np.where(after_fits, after_B, first_B)
            first_B = np.where(take_before, before_B, first_B)
        # Rows without a border: the first word after the middle, else the middle, inside a word.
        rows_R, place_W = np.flatnonzero(first_B == 0), np.arange(8)
        middle_R = middle_B[rows_R]
        ids_RW = _slices(slices_BL.ravel(), rows_R * slices_BL.shape[1] + 2 + middle_R, 8)
        begins_RW = self.tokenizer.starts_word[ids_RW]
        begins_RW &= place_W < (counts_B[rows_R] - middle_R)[:, None]
        first_B[rows_R] = middle_R + begins_RW.argmax(axis=1)
        return first_B

    def _number_documents(self, rows: np.ndarray, second_B: np.ndarray) -> np.ndarray:
        """Return each position's document (B, L), from 1; a [SEP] is of the token before it."""
        position_L = np.arange(self.config.sequence_length)
        numbers_BL = np.empty(
            (len(rows), len(position_L)), dtype=np.min_scalar_type(len(position_L))
        )
        for shard, inside_I in self._by_shard(rows):
            starts_I1, counts_I1 = (
                each[rows[inside_I], None].astype(np.int64) for each in (self.starts, self.counts)
            )
            # Index among the row's tokens of the corpus: no [CLS] counts, no first [SEP] before it.
            place_IL = position_L - 1 - (position_L >= second_B[inside_I, None] - 1)
            token_IL = starts_I1 + np.clip(place_IL, 0, counts_I1 - 1)
            documents = shard.documents  # without the cast, searchsorted casts the whole of them
            numbers_IL = np.searchsorted(documents, token_IL.astype(documents.dtype), side="right")
            numbers_BL[inside_I] = numbers_IL - numbers_IL[:, :1] + 1
        return numbers_BL


def row_tokens(config: ExamplesConfig) -> float:
    """Return the tokens of the text that a row has on average."""
    length, short = config.sequence_length, config.short_prob
    mean = (1 - short) * length + short * (SHORTEST_ROW + length) / 2
    return mean - 2 - (1 - config.single_segment_prob)


def cut(
    number: int, num_tokens: int, config: ExamplesConfig, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first token, the token count and "has two segments" of each row of a shard."""
    length = config.sequence_length
    # A counter-based generator drawn in blocks: the cuts do not depend on available memory.
    rng = np.random.Generator(np.random.Philox(key=[seed, number]))
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
    # Small dtypes: a plan takes 7 bytes a row.
    small = np.min_scalar_type(length)
    return starts.astype(np.uint32), count.astype(small), pair & (count >= 2)


def assemble(
    tokenizer: Tokenizer,
    slices_BL: np.ndarray,
    second_B: np.ndarray,
    length_B: np.ndarray,
    documents_BL: np.ndarray | None = None,
    is_next_B: np.ndarray | None = None,
) -> Batch:
    """Return the batch of rows whose tokens, borders, documents and labels `Rows.read` found."""
    # [CLS] moves the first segment by one position, and [CLS] and [SEP] move the second
    # segment by two. So a row consists of two slices of the stream.
    # The smallest dtype, because the time of a comparison grows with the width of the dtype.
    length = slices_BL.shape[1] - 1
    position_L = np.arange(length, dtype=np.min_scalar_type(length))
    ids_BL, types_BL = slices_BL[:, 1:].copy(), position_L >= second_B[:, None]
    np.copyto(ids_BL, slices_BL[:, :-1], where=types_BL)
    row_B = np.arange(len(ids_BL))
    ids_BL[:, 0] = tokenizer.cls_id
    ids_BL[row_B, second_B - 1] = tokenizer.sep_id
    ids_BL[row_B, length_B - 1] = tokenizer.sep_id
    real_BL = None
    if (length_B < length).any():
        real_BL = position_L < length_B[:, None]
        types_BL &= real_BL
        np.copyto(ids_BL, tokenizer.pad_id, where=~real_BL)
        if documents_BL is not None:
            documents_BL = documents_BL * real_BL
    return Batch(
        torch.from_numpy(ids_BL.astype(np.int64)),
        None if real_BL is None else torch.from_numpy(real_BL),
        torch.from_numpy(types_BL.astype(np.int64)),
        None if documents_BL is None else torch.from_numpy(documents_BL.astype(np.int64)),
        None if is_next_B is None else torch.from_numpy(is_next_B),
    )


def _borders(borders: np.ndarray, places_B: np.ndarray) -> np.ndarray:
    """Return the last border before each place, and the first border at or after it (2, B)."""
    # Without this cast, searchsorted casts the whole of `borders`.
    next_B = np.searchsorted(borders, places_B.astype(borders.dtype))
    return borders.take([next_B - 1, next_B], mode="clip")


def _slices(tokens: np.ndarray, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Return tokens[start : start + length] (B, length); beyond the stream its end repeats."""
    last = len(tokens) - length
    beyond_B = (starts_B < 0) | (starts_B > last)
    if last >= 0:  # copying contiguous rows is several times as fast as gathering tokens
        windows = sliding_window_view(np.asarray(tokens), length)
        slices_BL = windows[np.clip(starts_B, 0, last)]
    else:
        slices_BL = np.empty((len(starts_B), length), tokens.dtype)
    if beyond_B.any():
        places = starts_B[beyond_B, None] + np.arange(length)
        slices_BL[beyond_B] = tokens[np.clip(places, 0, len(tokens) - 1)]
    return slices_BL
