"""Dropout, and on a CPU masks that cost next to nothing."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SPREAD = 1 << 16
"""Places of the pool at which a mask may begin."""
ONE = 1 << 16


class DropoutMasks:
    """Every mask of one pass through an encoder on a CPU: slices of one pool of random flags.

    To draw each element of each mask by itself takes a seventh of a step. Here a pool a little
    larger than the largest mask is drawn once, and a mask is a view of it that begins at a random
    place: its elements are independent, and any two elements of two masks are one and the same flag
    with probability 1 / SPREAD, so that their correlation is no more than that. An element is kept
    with the probability asked for, to 1 / 131072.

    Args:
        largest: Elements of the largest mask.
        dtype: Of the masks.
        probs: With which elements are dropped. All pools are drawn at once: a layer that is
            computed twice must find the same.
    """

    def __init__(self, largest: int, dtype: torch.dtype, probs: Iterable[float]):
        self.dtype = dtype
        self.pools = {prob: self._draw_pool(prob, largest + SPREAD) for prob in probs}

    def _draw_pool(self, prob: float, size: int) -> Tensor:
        words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        bits = words.view(torch.int16)[:size]
        return (bits < num_kept(prob) - ONE // 2).to(self.dtype)

    def draw(self, prob: float, shape: tuple[int, ...]) -> Tensor:
        """Return 1 where an element is kept, 0 where it is dropped; not to be written to."""
        first = int(torch.randint(SPREAD, ()))
        return self.pools[prob][first : first + torch.Size(shape).numel()].view(shape)


def num_kept(prob: float) -> int:
    """Return how many of the values that 16 bits take keep an element."""
    return round((1 - prob) * ONE)


class Dropout(nn.Module):
    """Zero elements with a probability and scale the others up, in training only."""

    def __init__(self, prob: float):
        super().__init__()
        self.prob = prob

    @property
    def scale(self) -> float:
        """By which the survivors of DropoutMasks are multiplied."""
        return ONE / num_kept(self.prob)

    def draw(self, shape: tuple[int, ...], masks: DropoutMasks | None) -> Tensor | None:
        """Return a mask; None where nothing is to be dropped."""
        if masks is None or not self.training or self.prob == 0:
            return None
        return masks.draw(self.prob, shape)

    def forward(self, x: Tensor, masks: DropoutMasks | None = None) -> Tensor:
        """Drop by the next of the masks; None: by torch's own."""
        if masks is None:
            return F.dropout(x, self.prob, self.training)
        kept = self.draw(tuple(x.shape), masks)
        return x if kept is None else x * kept * self.scale
