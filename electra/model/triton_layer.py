"""A post-norm layer with the Triton kernels: what `PostNormLayer` computes, for a GPU.

GELU and its gradient are computed inside the matrix products, and attention over short rows writes
the gradients of query, key and value where the next product reads them. `PostNormLayer` remains
the definition.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head, M = B * L, H hidden
size, F feed-forward size.
"""

from typing import Any

import torch
from torch import Tensor

from electra.model import triton_kernels as kernels
from electra.model.dropout import DropoutMasks
from electra.model.layer import PostNormLayer


class TritonPostNormLayer(PostNormLayer):
    """The layer for a CUDA device with Triton.

    Parameters and their names are those of `PostNormLayer`. `intermediate` and `attention` are not
    called, their parameters are read: hooks on them never fire. Rows longer than
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
            qkv_BL3ND = attention.qkv(x_BLH).view(B, L, 3, attention.num_heads, -1)
            seed = torch.randint(2**31 - 1, (1,), device=x_BLH.device)
            context_BLND: Tensor = _Attend.apply(qkv_BL3ND, mask_BNLL, seed, prob)
            attended_BLH = attention.output(context_BLND.reshape(B, L, H))
        else:
            attended_BLH = attention(x_BLH, mask_BNLL, masks)
        x_BLH = self.attention_norm(x_BLH + self.dropout(attended_BLH, masks))
        parameters = [
            parameter.to(x_BLH.dtype)
            for each in (self.intermediate, self.output)
            for parameter in (each.weight, each.bias)
        ]
        y_MH: Tensor = _FeedForward.apply(x_BLH.reshape(B * L, H), *parameters)
        return self.output_norm(x_BLH + self.dropout(y_MH.view(B, L, H), masks))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, seed: Tensor, prob: float
    ) -> Tensor:
        ctx.prob, ctx.scale = prob, qkv_BL3ND.shape[-1] ** -0.5
        ctx.save_for_backward(qkv_BL3ND, mask_BNLL, seed)
        attended: Tensor = kernels.attend(qkv_BL3ND, mask_BNLL, seed, prob, ctx.scale)
        return attended

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_qkv = kernels.attend_backward(
            grads[0].contiguous(), *ctx.saved_tensors, ctx.prob, ctx.scale
        )
        return grad_qkv, None, None, None


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
        grad_inner_MF, sums_RF = kernels.linear_gelu_backward(grad_MH, out_HF, inner_MF)
        return (
            grad_inner_MF @ in_FH,
            grad_inner_MF.T @ x_MH,
            sums_RF.sum(dim=0).to(in_FH.dtype),
            grad_MH.T @ gelu_MF,
            grad_MH.sum(dim=0),
        )
