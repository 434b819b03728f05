"""A batch of rows, as every network reads it.

Shape suffixes: B rows, L positions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Rows of token ids, with masks and numbers per position, in the order of Encoder.forward."""

    input_ids_BL: Tensor
    """int64."""
    attention_mask_BL: Tensor | None
    """bool, True at tokens and False at padding; None: no row is padded."""
    token_type_ids_BL: Tensor
    """Segment: 0 in [CLS] A [SEP], 1 in B [SEP], 0 at padding; int64."""
    document_ids_BL: Tensor | None = None
    """Number of each token's document in its row, from 1, and 0 at padding; int64. Tokens attend
    within their document. None: within the whole row."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the copy to a CUDA device is asynchronous."""
        if device.type == "cuda":  # from pinned memory, which torch keeps until it is copied
            return self._each(lambda tensor: tensor.pin_memory().to(device, non_blocking=True))
        return self._each(lambda tensor: tensor.to(device))

    def rows(self, rows: slice) -> "Batch":
        """Return the rows of a slice of the batch."""
        return self._each(lambda tensor: tensor[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        mask, documents = self.attention_mask_BL, self.document_ids_BL
        return Batch(
            change(self.input_ids_BL),
            None if mask is None else change(mask),
            change(self.token_type_ids_BL),
            None if documents is None else change(documents),
        )


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
