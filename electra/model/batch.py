"""A batch of rows, as every network reads it; and rows of any lengths, run in batches.

Shape suffixes: B rows, L positions.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class Batch(NamedTuple):
    """Rows of token ids, with masks and numbers per position, and a label of each row."""

    input_ids_BL: Tensor
    """int64."""
    attention_mask_BL: Tensor | None
    """bool, True at tokens and False at padding; None: no row is padded."""
    token_type_ids_BL: Tensor
    """Segment: 0 in [CLS] A [SEP], 1 in B [SEP], 0 at padding; int64."""
    document_ids_BL: Tensor | None = None
    """Number of each token's document in its row, from 1, and 0 at padding; int64. Tokens attend
    within their document. None: within the whole row."""
    is_next_B: Tensor | None = None
    """Label of next-sentence prediction: whether B follows A in a document, bool. None: there are
    no labels."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """The tensors of the rows that an encoder reads, in the order of Encoder.forward."""
        return self[:4]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the copy to a CUDA device is asynchronous."""
        return self.each(lambda tensor: copy_to(device, tensor))

    def rows(self, rows: slice) -> "Batch":
        """Return the rows of a slice of the batch."""
        return self.each(lambda tensor: tensor[rows])

    def each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each of its tensors changed."""
        changed: Any = (None if tensor is None else change(tensor) for tensor in self)
        return Batch(*changed)


def copy_to(device: torch.device, tensor: Tensor) -> Tensor:
    """Return the tensor on a device; the copy to a CUDA device is asynchronous."""
    if device.type == "cuda":  # from pinned memory, which torch keeps until it is copied
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def find_real(batch: Batch) -> Tensor:
    """Return True at tokens, False at padding (B, L)."""
    if batch.attention_mask_BL is None:
        return torch.ones_like(batch.input_ids_BL, dtype=torch.bool)
    return batch.attention_mask_BL


def count_real(batch: Batch) -> Tensor:
    """Return the number of tokens that are not padding."""
    if batch.attention_mask_BL is None:
        return torch.full((), batch.input_ids_BL.numel(), device=batch.input_ids_BL.device)
    return batch.attention_mask_BL.sum()


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, types: Sequence[Sequence[int]] | None = None
) -> Batch:
    """Return rows of token ids as a batch, padded at their ends to the longest row."""
    input_ids_BL = pad_sequence([torch.tensor(row) for row in rows], True, pad_id)
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    types_BL = torch.zeros_like(input_ids_BL)
    if types is not None:
        types_BL = pad_sequence([torch.tensor(row) for row in types], True)
    return Batch(input_ids_BL, torch.arange(input_ids_BL.shape[1]) < lengths_B1, types_BL)


def split_by_length(
    lengths: Sequence[int], max_rows: int, max_tokens: int | None = None
) -> Iterator[list[int]]:
    """Yield the numbers of the rows of each batch: rows of like length together, the longest first.

    Args:
        lengths: Tokens of each row.
        max_rows: Rows of a batch.
        max_tokens: Tokens of a batch, padding included; a longer row is a batch of its own. None:
            any number.
    """
    numbers = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    start = 0
    while start < len(numbers):
        size = max_rows
        if max_tokens is not None:
            size = max(1, min(size, max_tokens // max(1, lengths[numbers[start]])))
        yield numbers[start : start + size]
        start += size
