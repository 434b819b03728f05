"""Items as rows of token ids, and batches of items of similar length.

A row is [CLS] a [SEP], or [CLS] a [SEP] b [SEP]. An item is the unit of prediction: one row, or
several, such as the choices of a question or the windows of a long text. Sizes: B items of a batch,
N items in all, R rows, L positions, l positions in a batch.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.model.batch import copy_to
from electra.text.characters import group_texts
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import GROUP_CHARS
from electra.training.optimizer import step_seed

CHARS_PER_TOKEN = 8
"""Characters that are tokenized at first for each token of a row; most tokens are shorter."""
POOL_BATCHES = 32
"""Batches that are sorted by length together: more give less padding and less mixing."""
OVERLAP = 0.25
"""Share of a window of a long text that the next window has as well."""

Outputs = dict[str, Tensor]
"""Outputs of a network by name; the first dimension is that of the items."""


@dataclass(frozen=True)
class Rows:
    """Items, ready to be batched."""

    input_ids: Tensor
    """(R, L) int32, padded at the end."""
    lengths: Tensor
    """(R,) tokens that are not padding."""
    first_lengths: Tensor
    """(R,) tokens of segment 0, which is [CLS] a [SEP]."""
    targets: dict[str, Tensor]
    """(N, ...) the targets of the loss by name."""
    is_cut: Sequence[bool]
    """For each example whether tokens were cut off."""
    begins: Tensor
    """(N + 1,) the number of each item's first row, and of all rows at the end."""
    are_tokens_judged: bool = False
    """Whether targets are those of every token, (N, L)."""
    examples: Sequence[Any] = ()
    """The examples that are encoded here, in order. One example may have several items."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.begins) - 1

    @property
    def num_cut(self) -> int:
        """Examples of which tokens were cut off."""
        return sum(self.is_cut)

    @property
    def counts(self) -> Tensor:
        """(N,) rows of each item."""
        return self.begins.diff()

    @property
    def item_lengths(self) -> Tensor:
        """(N,) tokens of each item's longest row."""
        items = torch.arange(len(self)).repeat_interleave(self.counts)
        return torch.zeros_like(self.counts).scatter_reduce(0, items, self.lengths, "amax")

    def take(self, items: Tensor) -> "Rows":
        """Return the items of these numbers, without the examples."""
        firsts = self.begins[items]
        counts = self.begins[items + 1] - firsts
        begins = add_up(counts)
        rows = torch.arange(int(begins[-1])) + (firsts - begins[:-1]).repeat_interleave(counts)
        return dataclasses.replace(
            self,
            input_ids=self.input_ids[rows],
            lengths=self.lengths[rows],
            first_lengths=self.first_lengths[rows],
            targets={name: values[items] for name, values in self.targets.items()},
            begins=begins,
            examples=(),
        )


class TaskBatch(NamedTuple):
    """The input of the network, padded to the longest row of the batch."""

    input_ids: Tensor
    """(R, l) int64."""
    attention_mask: Tensor | None
    """(R, l) bool; None: nothing is padding."""
    token_type_ids: Tensor | None
    """(R, l) int64; None: single texts only."""
    targets: dict[str, Tensor]
    """(B, ...), those of every token (B, l)."""
    begins: Tensor | None = None
    """(B + 1,) as of `Rows`; None: each item has one row."""


def add_up(counts: Tensor) -> Tensor:
    """Return the number of the first row of each item (N + 1,), and of all at the end."""
    return F.pad(counts.cumsum(0), (1, 0))


def pad_rows(
    rows: Sequence[tuple[Sequence[int], int]],
    targets: dict[str, Tensor],
    tokenizer: Tokenizer,
    examples: Sequence[Any],
    *,
    is_cut: Sequence[bool],
    counts: Sequence[int] | None = None,
    are_tokens_judged: bool = False,
) -> Rows:
    """Return rows of ids with the length of segment 0, padded to the longest, as Rows.

    `counts` are the rows of each item; None: one.
    """
    longest = max((len(ids) for ids, _ in rows), default=0)
    padded = np.full((len(rows), longest), tokenizer.pad_id, np.int32)
    for place, (ids, _) in enumerate(rows):
        padded[place, : len(ids)] = ids
    return Rows(
        torch.from_numpy(padded),
        torch.tensor([len(ids) for ids, _ in rows], dtype=torch.int64),
        torch.tensor([first_length for _, first_length in rows], dtype=torch.int64),
        targets,
        is_cut,
        add_up(torch.tensor(counts or [1] * len(rows), dtype=torch.int64)),
        are_tokens_judged,
        examples,
    )


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return the items of all parts, without their targets."""
    longest = max(part.input_ids.shape[1] for part in parts)
    ids = [F.pad(part.input_ids, (0, longest - part.input_ids.shape[1])) for part in parts]
    return dataclasses.replace(
        parts[0],
        input_ids=torch.cat(ids),
        lengths=torch.cat([part.lengths for part in parts]),
        first_lengths=torch.cat([part.first_lengths for part in parts]),
        targets={},
        is_cut=[cut for part in parts for cut in part.is_cut],
        begins=add_up(torch.cat([part.counts for part in parts])),
        examples=[each for part in parts for each in part.examples],
    )


def pack_rows(
    texts: Sequence[tuple[Sequence[int], Sequence[int] | None]],
    targets: dict[str, Tensor],
    tokenizer: Tokenizer,
    sequence_length: int,
    examples: Sequence[Any],
    counts: Sequence[int] | None = None,
) -> Rows:
    """Return the ids of texts and pairs, (a, None) or (a, b), as rows that are cut to fit.

    `counts` are the rows of each example; None: one.
    """
    rows = [pack_row(first, second, sequence_length, tokenizer) for first, second in texts]
    is_cut = [
        len(first) + len(second or ()) > len(ids) - (2 if second is None else 3)
        for (first, second), (ids, _) in zip(texts, rows, strict=True)
    ]
    each = iter(is_cut)
    cut = [any([next(each) for _ in range(count)]) for count in counts or [1] * len(rows)]
    return pad_rows(rows, targets, tokenizer, examples, is_cut=cut, counts=counts)


def pack_row(
    first: Sequence[int], second: Sequence[int] | None, sequence_length: int, tokenizer: Tokenizer
) -> tuple[list[int], int]:
    """Return the ids of [CLS] a [SEP] (b [SEP]), cut to fit, and the length of segment 0."""
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    if second is None:
        row = [cls, *first[: sequence_length - 2], sep]
        return row, len(row)
    size_a, size_b = cut_pair(len(first), len(second), sequence_length - 3)
    return [cls, *first[:size_a], sep, *second[:size_b], sep], size_a + 2


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the first `max_tokens` ids of each text, or all if it has fewer.

    Only the needed part of a long text is tokenized: if a part ends before a border
    (`Tokenizer.word_border`), its ids are the first ids of the whole text. If a part gives too few
    ids, a part CHARS_PER_TOKEN times as long is tokenized instead.
    """
    border = tokenizer.word_border
    ids: list[list[int]] = [[] for _ in texts]
    places, num_chars = list(range(len(texts))), max_tokens * CHARS_PER_TOKEN
    while places:
        parts = [_first_words(texts[place], num_chars, border) for place in places]
        groups = map(tokenizer.encode_batch, group_texts(parts, GROUP_CHARS))
        for place, part in zip(places, chain.from_iterable(groups), strict=True):
            ids[place] = part[:max_tokens]
        places = [
            place
            for place, part in zip(places, parts, strict=True)
            if len(ids[place]) < max_tokens and len(part) < len(texts[place])
        ]
        num_chars *= CHARS_PER_TOKEN
    return ids


def encode_words(tokenizer: Tokenizer, words: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the first `max_tokens` ids that each word has in running text, after a space.

    The first word of a sentence is no exception: to the tagger it is the same word.
    """
    before = " " if tokenizer.marks_spaces else ""
    return encode_texts(tokenizer, [before + word for word in words], max_tokens)


def _first_words(text: str, num_chars: int, border: re.Pattern[str] | None) -> str:
    """Return a text up to the first border at or after this many characters."""
    found = border.search(text, num_chars) if border else None
    return text[: found.start()] if found else text


def reduce_vocabulary(splits: dict[str, Rows], vocab_size: int) -> tuple[Tensor, dict[str, Rows]]:
    """Return the ids that occur in any row, ascending, and the rows with ids replaced by indices.

    Training with these embeddings alone is equivalent to training with the whole table, whose other
    rows get no gradient, and saves the optimizer most of a small model's parameters.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for rows in splits.values():
        counts += torch.bincount(rows.input_ids.flatten(), minlength=vocab_size)
    token_ids = counts.nonzero().squeeze(1)
    places = torch.zeros(vocab_size, dtype=torch.int32)
    places[token_ids] = torch.arange(len(token_ids), dtype=torch.int32)
    reduced = {
        split: dataclasses.replace(rows, input_ids=places[rows.input_ids.long()])
        for split, rows in splits.items()
    }
    return token_ids, reduced


def cut_pair(size_a: int, size_b: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept when one is cut off the longer until both fit.

    If two texts are equally long, the second is cut. Source: classification_tasks.py
    _truncate_seq_pair, which does it a token at a time.
    """
    kept_b = min(size_b, max(room // 2, room - size_a))
    return min(size_a, room - kept_b), kept_b


def start_windows(num_tokens: int, size: int, stride: int) -> range:
    """Return the first token of each window of a text; the last window reaches the end."""
    return range(0, max(num_tokens - size, 0) + stride, stride)


def overlap_of(sequence_length: int) -> int:
    """Return the tokens that two windows of a long text share: OVERLAP of what a row holds."""
    return int(OVERLAP * (sequence_length - 2))


def own_words(
    windows: Sequence[range], begins: Sequence[int], window_weight: float = 0.0
) -> list[int]:
    """Return the number of the window that owns each word of a long text: the best context.

    The context of a word in a window is the number of tokens on its shorter side, and
    `window_weight` for each token of the window. Among equals the first window owns the word.
    `begins` are the numbers of each word's first token, and of all tokens at the end.
    """
    if len(windows) == 1:
        return [0] * len(windows[0])
    places = np.asarray(begins)
    most, owners = np.full(len(places) - 1, -np.inf), np.zeros(len(places) - 1, np.int64)
    for number, words in enumerate(windows):
        part = slice(words.start, words.stop)
        start, stop = places[words.start], places[words.stop]
        left, right = places[part] - start, stop - places[words.start + 1 : words.stop + 1]
        context = np.minimum(left, right) + window_weight * (stop - start)
        is_better = context > most[part]
        most[part][is_better] = context[is_better]
        owners[part][is_better] = number
    return owners.tolist()


def choose_batches(lengths: Tensor, batch_size: int, *, seed: int, epoch: int) -> list[Tensor]:
    """Return an epoch's batches of item numbers: each item once, similar lengths in a batch.

    A pure function of its arguments: items are shuffled and split into pools, each pool is sorted
    by length and cut into batches, and the batches are shuffled. The batch that is cut last may be
    smaller.
    """
    rng = torch.Generator().manual_seed(step_seed(seed, "order", epoch))
    batches: list[Tensor] = []
    for pool in torch.randperm(len(lengths), generator=rng).split(POOL_BATCHES * batch_size):
        by_length = pool[lengths[pool].argsort(stable=True)]
        batches.extend(by_length.split(batch_size))
    return [batches[place] for place in torch.randperm(len(batches), generator=rng)]


def make_batch(rows: Rows, items: Tensor, device: torch.device) -> TaskBatch:
    """Return the items of these numbers, their rows padded to the longest of them."""
    taken = rows.take(items)
    longest = int(taken.lengths.max())
    positions = torch.arange(longest)
    is_padded = bool((taken.lengths < longest).any())
    has_pairs = bool((taken.first_lengths < taken.lengths).any())
    real = positions < taken.lengths[:, None]
    types = ((positions >= taken.first_lengths[:, None]) & real).long()
    targets = {
        name: values[:, :longest] if rows.are_tokens_judged else values
        for name, values in taken.targets.items()
    }
    return TaskBatch(
        copy_to(device, taken.input_ids[:, :longest].long()),
        copy_to(device, real) if is_padded else None,
        copy_to(device, types) if has_pairs else None,
        {name: copy_to(device, values) for name, values in targets.items()},
        copy_to(device, taken.begins) if len(taken.lengths) > len(taken) else None,
    )
