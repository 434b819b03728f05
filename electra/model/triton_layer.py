"""A post-norm layer with the Triton kernels: what `PostNormLayer` computes, for a GPU.

GELU and its gradient are computed inside the matrix products, and attention over short rows writes
the gradients of query, key and value where the next product reads them. `PostNormLayer` remains
the definition.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head, M = B * L, H hidden
size, F feed-forward size, J = 3H, R blocks of rows, X = F + H.
"""

from typing import Any

import torch
from torch import Tensor

from electra.model import triton_kernels as kernels
from electra.model.dropout import DropoutMasks
from electra.model.layer import PostNormLayer
from electra.model.mixed_precision import Linear


class TritonPostNormLayer(PostNormLayer):
    """The layer for a CUDA device with Triton.

    Parameters and their names are those of `PostNormLayer`. `attention`, `intermediate` and
    `output` are not called, their parameters are read: hooks on them never fire. Rows longer than
    `triton_kernels.LONGEST` take torch's attention.
    """

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return what `PostNormLayer.forward` returns."""
        B, L, H = x_BLH.shape
        attention = self.attention
        if kernels.can_attend(L, H // attention.num_heads):
            prob = attention.dropout.prob if self.training else 0.0
            seed = torch.randint(2**31 - 1, (1,), device=x_BLH.device)
            context_BLND: Tensor = _Attend.apply(
                x_BLH, *cast_parameters(attention.qkv, x_BLH.dtype), mask_BNLL, seed, prob,
                attention.num_heads,
            )  # fmt: skip
            attended_BLH = attention.output(context_BLND.reshape(B, L, H))
        else:
            attended_BLH = attention(x_BLH, mask_BNLL, masks)
        x_BLH = self.attention_norm(x_BLH + self.dropout(attended_BLH, masks))
        inner = cast_parameters(self.intermediate, x_BLH.dtype)
        outer = cast_parameters(self.output, x_BLH.dtype)
        y_MH: Tensor = _FeedForward.apply(x_BLH.reshape(B * L, H), *inner, *outer)
        return self.output_norm(x_BLH + self.dropout(y_MH.view(B, L, H), masks))


def cast_parameters(linear: Linear, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return weight and bias in a dtype."""
    return linear.weight.to(dtype), linear.bias.to(dtype)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BLH: Tensor,
        weight_JH: Tensor,
        bias_J: Tensor,
        mask_BNLL: Tensor | None,
        seed: Tensor,
        prob: float,
        num_heads: int,
    ) -> Tensor:
        B, L, H = x_BLH.shape
        x_MH = x_BLH.reshape(B * L, H)
        qkv_BL3ND = torch.addmm(bias_J, x_MH, weight_JH.T).view(B, L, 3, num_heads, -1)
        ctx.prob, ctx.scale = prob, qkv_BL3ND.shape[-1] ** -0.5
        ctx.save_for_backward(x_MH, weight_JH, qkv_BL3ND, mask_BNLL, seed)
        attended: Tensor = kernels.attend(qkv_BL3ND, mask_BNLL, seed, prob, ctx.scale)
        return attended

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, weight_JH, *attended = ctx.saved_tensors
        B, L = grads[0].shape[:2]
        grad_qkv, sums_B3ND = kernels.attend_backward(
            grads[0].contiguous(), *attended, ctx.prob, ctx.scale
        )
        grad_MJ = grad_qkv.view(B * L, -1)
        grad_bias_J = sums_B3ND.sum(dim=0).flatten().to(weight_JH.dtype)
        grad_x_BLH = (grad_MJ @ weight_JH).view(B, L, -1)
        return grad_x_BLH, grad_MJ.T @ x_MH, grad_bias_J, None, None, None, None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, in_FH: Tensor, in_F: Tensor, out_HF: Tensor, out_H: Tensor
    ) -> Tensor:
        inner_MF, gelu_MF = kernels.linear_gelu(x_MH, in_FH, in_F)
        ctx.save_for_backward(x_MH, in_FH, out_HF, inner_MF, gelu_MF)
        return torch.addmm(out_H, gelu_MF, out_HF.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x_MH, in_FH, out_HF, inner_MF, gelu_MF = ctx.saved_tensors
        grad_MH = grads[0].contiguous()
        grad_inner_MF, sums_RX = kernels.linear_gelu_backward(grad_MH, out_HF, inner_MF)
        sums_X = sums_RX.sum(dim=0).to(in_FH.dtype)
        return (
            grad_inner_MF @ in_FH,
            grad_inner_MF.T @ x_MH,
            sums_X[: len(in_FH)],
            grad_MH.T @ gelu_MF,
            sums_X[len(in_FH) :],
        )
