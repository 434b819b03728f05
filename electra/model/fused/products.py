"""Dropout, attention and matrix products of all layers that are written out."""

from typing import NamedTuple

import torch
from torch import Tensor

from electra.model.parts import Dropout, DropoutMasks, Linear

Gradients = tuple[Tensor | None, ...]

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Kept(NamedTuple):
    """The elements of a tensor that dropout keeps."""

    mask: Tensor | None
    """1 where an element is kept and 0 elsewhere, in the compute dtype; None: all is kept."""
    scale: float
    """Factor of the elements that are kept."""

    @classmethod
    def draw(cls, dropout: Dropout, shape: tuple[int, ...], masks: DropoutMasks | None) -> "Kept":
        """Return the next of the masks; without `masks` nothing is dropped."""
        mask = dropout.draw(shape, masks)
        return cls(mask, 1.0 if mask is None else dropout.scale)

    def drop(self, x: Tensor) -> Tensor:
        """Return dropout(x), or the gradient of its input, without the scale."""
        return x if self.mask is None else x * self.mask

    def drop_(self, x: Tensor) -> Tensor:
        """Return `drop`, written over x."""
        return x if self.mask is None else x.mul_(self.mask)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + dropout(y)."""
        return x + y if self.mask is None else torch.addcmul(x, y, self.mask, value=self.scale)


def score(q_ZQD: Tensor, k_ZXD: Tensor) -> Tensor:
    """Return q k^T / sqrt(D), (Z, Q, X)."""
    return product(q_ZQD, k_ZXD.transpose(1, 2), q_ZQD.shape[2] ** -0.5)


def score_back(
    dscores_ZQX: Tensor, q_ZQD: Tensor, k_ZXD: Tensor, scale: float, *out: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and key of scale * q k^T, written to `out` if that is given."""
    dq, dk = out or (None, None)
    return (
        product(dscores_ZQX, k_ZXD, scale, dq),
        product(dscores_ZQX.transpose(1, 2), q_ZQD, scale, dk),
    )


def attend(
    scores_ZQX: Tensor, v_ZXD: Tensor, mask: Tensor | None, size: tuple[int, int], of_probs: Kept
) -> tuple[Tensor, Tensor]:
    """Return dropout(softmax(scores + mask)) v (Z, Q, D), and the softmax (Z, Q, X).

    The mask broadcasts to (*size, ..., Q, X), where `size` is (B, N), or with distances (N, B). It
    is added to the scores in place.
    """
    if mask is not None:
        scores_ZQX.view(*size, *mask.shape[2:-2], *scores_ZQX.shape[1:]).add_(mask)
    probs_ZQX = scores_ZQX.softmax(dim=-1)
    return product(of_probs.drop(probs_ZQX), v_ZXD, of_probs.scale), probs_ZQX


def attend_back(
    dcontext_ZQD: Tensor, v_ZXD: Tensor, probs_ZQX: Tensor, of_probs: Kept, dv: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores and values, the latter written to `dv` if that is given."""
    scale = of_probs.scale
    dv = product(of_probs.drop(probs_ZQX).transpose(1, 2), dcontext_ZQD, scale, dv)
    dprobs_ZQX = of_probs.drop_(product(dcontext_ZQD, v_ZXD.transpose(1, 2), scale))
    return torch._softmax_backward_data(dprobs_ZQX, probs_ZQX, -1, probs_ZQX.dtype), dv


def product(a_ZIJ: Tensor, b_ZJK: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale * a @ b (Z, I, K); the scale is applied inside the product."""
    if out is None:
        out = a_ZIJ.new_empty(a_ZIJ.shape[0], a_ZIJ.shape[1], b_ZJK.shape[2])
    return torch.baddbmm(out, a_ZIJ, b_ZJK, beta=0, alpha=scale, out=out)


def map_rows(x_MI: Tensor, W_OI: Tensor, b_O: Tensor | None) -> Tensor:
    """Return x W^T + b."""
    if b_O is None:
        return x_MI @ W_OI.t()
    if x_MI.dtype == torch.bfloat16 and _HAS_ONEDNN:  # the bias inside the product: a fifth less
        y_MO: Tensor = torch.ops.mkldnn._linear_pointwise(x_MI, W_OI, b_O, "none", [], "")
        return y_MO
    return torch.addmm(b_O, x_MI, W_OI.t())


def map_back(x_MO: Tensor, W_OI: Tensor, scale: float) -> Tensor:
    """Return scale * x W; the scale is applied inside the product."""
    out = x_MO.new_empty(x_MO.shape[0], W_OI.shape[1])
    return torch.addmm(out, x_MO, W_OI, beta=0, alpha=scale, out=out)


def weight_gradient(dy_MO: Tensor, x_MI: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale times the gradient of the weight of y = x W^T + b, float32."""
    return map_back(dy_MO.t(), x_MI, scale).float()


def bias_gradient(dy_MO: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale times the gradient of the bias of y = x W^T + b, float32."""
    return dy_MO.sum(dim=0).float().mul_(scale)


def parameters_of(*maps: Linear) -> list[Tensor]:
    """Return weight and bias of each map; no bias is None."""
    return [tensor for each in maps for tensor in (each.weight, each.bias)]


def cast_to(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a parameter in the dtype of the products; no bias is None."""
    return None if parameter is None else parameter.to(dtype)
