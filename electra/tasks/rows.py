"""Examples as rows of token ids, and batches of rows of similar length.

A row is [CLS] a [SEP], or [CLS] a [SEP] b [SEP]. B rows of a batch, L positions, N rows in all.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra.corpus.tokenizer import Tokenizer
from electra.tasks.task import Example, Task
from electra.training.device import step_seed

POOL_BATCHES = 32
"""Batches that are sorted by length together: the more, the less padding and the less mixing."""


class Rows(NamedTuple):
    """Examples, ready to be batched."""

    input_ids: Tensor
    """(N, L) int32, padded at the end. Of TaskRows: places in its `token_ids`."""
    lengths: Tensor
    """(N,) tokens that are not padding."""
    first_lengths: Tensor
    """(N,) tokens of segment 0, which is [CLS] a [SEP]."""
    labels: Tensor
    """(N,) int64, -1 where unknown; of a regression float32 in [0, 1], NaN where unknown."""
    num_cut: int
    """Examples of which tokens were cut off."""


class TaskRows(NamedTuple):
    """All rows of a task, over the part of the vocabulary that occurs in it."""

    token_ids: Tensor
    """Ids that occur in any of the rows, ascending. Training with only their embeddings is the same
    as with the whole table, whose other rows get no gradient, and spares the optimizer most of a
    small model's parameters."""
    train: Rows
    dev: Rows
    test: Rows
    """Without rows if there is no test file."""


class Batch(NamedTuple):
    """What the classifier reads, padded to the longest row of the batch."""

    input_ids: Tensor
    """(B, L) int64."""
    attention_mask: Tensor | None
    """(B, L) bool; None: nothing is padding."""
    token_type_ids: Tensor | None
    """(B, L) int64; None: single texts only."""
    labels: Tensor
    """(B,) as those of Rows."""


def encode_task(task: Task, tokenizer: Tokenizer, sequence_length: int) -> TaskRows:
    """Return every example of a task as a row of at most `sequence_length` tokens."""
    splits = [
        _encode_rows(examples, tokenizer, sequence_length, task.label_range)
        for examples in (task.train, task.dev, task.test)
    ]
    counts = torch.zeros(tokenizer.vocab_size, dtype=torch.int64)
    for rows in splits:
        counts += torch.bincount(rows.input_ids.flatten(), minlength=tokenizer.vocab_size)
    token_ids = counts.nonzero().squeeze(1)
    places = torch.zeros(tokenizer.vocab_size, dtype=torch.int32)
    places[token_ids] = torch.arange(len(token_ids), dtype=torch.int32)
    train, dev, test = (rows._replace(input_ids=places[rows.input_ids.long()]) for rows in splits)
    return TaskRows(token_ids, train, dev, test)


def _encode_rows(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    sequence_length: int,
    label_range: tuple[float, float] | None,
) -> Rows:
    firsts = tokenizer.encode_batch([example.text_a for example in examples])
    seconds = iter(tokenizer.encode_batch([e.text_b for e in examples if e.text_b is not None]))
    rows, first_lengths, num_cut = [], [], 0
    for example, first in zip(examples, firsts, strict=True):
        second = None if example.text_b is None else next(seconds)
        row, first_length = pack_row(
            first, second, sequence_length, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id
        )
        num_cut += len(first) + len(second or []) > len(row) - (2 if second is None else 3)
        rows.append(row)
        first_lengths.append(first_length)
    padded = np.full((len(rows), max(map(len, rows), default=0)), tokenizer.pad_id, np.int32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return Rows(
        torch.from_numpy(padded),
        torch.tensor([len(row) for row in rows], dtype=torch.int64),
        torch.tensor(first_lengths, dtype=torch.int64),
        _scale_labels([example.label for example in examples], label_range),
        num_cut,
    )


def _scale_labels(
    labels: Sequence[int | float | None], label_range: tuple[float, float] | None
) -> Tensor:
    if label_range is None:
        return torch.tensor([-1 if label is None else label for label in labels], dtype=torch.int64)
    least, greatest = label_range
    known = torch.tensor([math.nan if label is None else label for label in labels])
    return (known - least) / (greatest - least)


def pack_row(
    first: Sequence[int],
    second: Sequence[int] | None,
    sequence_length: int,
    *,
    cls_id: int,
    sep_id: int,
) -> tuple[list[int], int]:
    """Return the ids of [CLS] a [SEP] (b [SEP]), cut to fit, and the length of segment 0."""
    if second is None:
        row = [cls_id, *first[: sequence_length - 2], sep_id]
        return row, len(row)
    size_a, size_b = cut_pair(len(first), len(second), sequence_length - 3)
    row = [cls_id, *first[:size_a], sep_id, *second[:size_b], sep_id]
    return row, size_a + 2


def cut_pair(size_a: int, size_b: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept when one is cut off the longer until both fit.

    Of two equally long texts the second is cut. Source: classification_tasks.py
    _truncate_seq_pair, which does it a token at a time.
    """
    kept_b = min(size_b, max(room // 2, room - size_a))
    return min(size_a, room - kept_b), kept_b


def choose_batches(lengths: Tensor, batch_size: int, *, seed: int, epoch: int) -> list[Tensor]:
    """Return an epoch's batches as row numbers: every row once, rows of a batch of similar length.

    A pure function of its arguments: rows are shuffled and dealt into pools, each pool is sorted by
    length and cut into batches, and the batches are shuffled. The last batch to be cut is the rest.
    """
    rng = torch.Generator().manual_seed(step_seed(seed, "order", epoch))
    batches: list[Tensor] = []
    for pool in torch.randperm(len(lengths), generator=rng).split(POOL_BATCHES * batch_size):
        by_length = pool[lengths[pool].argsort(stable=True)]
        batches.extend(by_length.split(batch_size))
    return [batches[place] for place in torch.randperm(len(batches), generator=rng)]


def make_batch(rows: Rows, index: Tensor, device: torch.device) -> Batch:
    """Return the rows of these numbers, padded to the longest of them."""
    lengths = rows.lengths[index]
    first_lengths = rows.first_lengths[index]
    longest = int(lengths.max())
    positions = torch.arange(longest)
    is_padded = bool((lengths < longest).any())
    has_pairs = bool((first_lengths < lengths).any())
    real = positions < lengths[:, None]
    types = ((positions >= first_lengths[:, None]) & real).long()
    return Batch(
        rows.input_ids[index, :longest].long().to(device),
        real.to(device) if is_padded else None,
        types.to(device) if has_pairs else None,
        rows.labels[index].to(device),
    )
