"""Linear maps and layer normalisation with float32 parameters, in any compute dtype.

Activations and matrix products have the encoder's `compute_dtype`. Every weight is cast where it is
used, so that gradients reach the float32 parameters without an autocast context. Normalisation
keeps its statistics in float32 whatever the dtype.
"""

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
