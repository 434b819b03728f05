"""Stand-in for the fine-tuning loop's side of a task family, until that side is here."""

from typing import NamedTuple

import torch
from torch import Tensor

Outputs = dict[str, Tensor]
"""What a head says; first dimension B, or N where it was collected over all rows."""


class Rows(NamedTuple):
    """Examples, ready to be batched."""

    input_ids: Tensor
    """(N, L) int32, padded at the end."""
    lengths: Tensor
    """(N,) tokens that are not padding."""
    first_lengths: Tensor
    """(N,) tokens of segment 0, which is [CLS] a [SEP]."""
    targets: dict[str, Tensor]
    """What the loss reads; -1 where unknown."""
    num_cut: int
    """Examples of which tokens were cut off."""
    rows_per_item: int = 1


class Batch(NamedTuple):
    """Rows of similar length, padded to the longest of them."""

    input_ids: Tensor
    attention_mask: Tensor | None
    token_type_ids: Tensor | None
    targets: dict[str, Tensor]


def make_batch(rows: Rows, index: Tensor, device: torch.device) -> Batch:
    """Return the rows of these numbers, padded to the longest of them."""
    lengths, longest = rows.lengths[index], int(rows.lengths[index].max())
    positions = torch.arange(longest)
    real = positions < lengths[:, None]
    types = (positions >= rows.first_lengths[index][:, None]) & real
    return Batch(
        rows.input_ids[index, :longest].long().to(device),
        None if bool(real.all()) else real.to(device),
        types.long().to(device),
        {name: values[index].to(device) for name, values in rows.targets.items()},
    )
