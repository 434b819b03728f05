"""Linear maps and layer normalisation with float32 parameters, in any compute dtype.

Activations and matrix products have the encoder's `compute_dtype`. Every weight is cast where it is
used, so that gradients reach the float32 parameters without an autocast context. Normalisation
keeps its statistics in float32 whatever the dtype.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def runs_operations(device: torch.device) -> bool:
    """Return whether operations run one by one on a CPU, not compiled and not on a GPU.

    There a matrix product is the fastest way to a sum. A compiler fuses sums and choices with the
    operations around them.
    """
    return device.type == "cpu" and not torch.compiler.is_compiling()


class Linear(nn.Linear):
    """A linear map whose float32 weights follow the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.out_features == 1 and not runs_operations(x.device):
            # A sum, which a compiler fuses with what computes x; a product would read x again.
            column = (x * self.weight[0].to(x.dtype)).sum(dim=-1, keepdim=True)
            return column if bias is None else column + bias
        return F.linear(x, self.weight.to(x.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation with float32 statistics and parameters, in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if x.dtype == torch.float32 or x.device.type == "cpu":  # the CPU kernel mixes dtypes itself
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


SPREAD = 1 << 16
"""Number of places in a pool at which a mask may begin."""
ONE = 1 << 16
"""Number of values of 16 random bits: probabilities are whole multiples of its inverse."""


class DropoutMasks:
    """The masks of one pass through an encoder on a CPU: slices of pools of random flags.

    Drawing every element of every mask takes a seventh of a step. Here one pool per probability, a
    little larger than the largest mask, is drawn once per pass, and a mask is a view of it that
    begins at a random place. The elements of one mask are independent. Two elements of two masks
    are the same flag with probability 1 / SPREAD, so that their correlation is at most that. An
    element is kept with the probability asked for, to 1 / 131072.

    Args:
        largest: Number of elements of the largest mask.
        dtype: Dtype of the masks.
        probs: Probabilities with which elements are dropped. All pools are drawn at once, so that a
            layer that is computed twice (recomputed activations) finds the same flags.
    """

    def __init__(self, largest: int, dtype: torch.dtype, probs: Iterable[float]):
        self.dtype = dtype
        self.pools = {prob: self._draw_pool(prob, largest + SPREAD) for prob in probs}

    def _draw_pool(self, prob: float, size: int) -> Tensor:
        words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        bits = words.view(torch.int16)[:size]
        return (bits < num_kept(prob) - ONE // 2).to(self.dtype)

    def draw(self, prob: float, shape: tuple[int, ...]) -> Tensor:
        """Return a mask of this shape: 1 where an element is kept, 0 where it is dropped.

        It is a view of the pool of `prob` and must not be written to.
        """
        first = int(torch.randint(SPREAD, ()))
        return self.pools[prob][first : first + torch.Size(shape).numel()].view(shape)


def num_kept(prob: float) -> int:
    """Return how many of the `ONE` values of 16 random bits keep an element."""
    return round((1 - prob) * ONE)


class Dropout(nn.Module):
    """Zero elements with probability `prob` and scale the others up, in training only."""

    def __init__(self, prob: float):
        super().__init__()
        self.prob = prob

    @property
    def scale(self) -> float:
        """Factor of the elements that a mask of DropoutMasks keeps."""
        return ONE / num_kept(self.prob)

    def draw(self, shape: tuple[int, ...], masks: DropoutMasks | None) -> Tensor | None:
        """Return the next mask of this shape; None without masks, or where nothing is dropped."""
        if masks is None or not self.training or self.prob == 0:
            return None
        return masks.draw(self.prob, shape)

    def forward(self, x: Tensor, masks: DropoutMasks | None = None) -> Tensor:
        """Return x, any shape, after dropout by the next of `masks`; None: by torch's own."""
        if masks is None:
            return F.dropout(x, self.prob, self.training)
        kept = self.draw(tuple(x.shape), masks)
        return x if kept is None else x * kept * self.scale
