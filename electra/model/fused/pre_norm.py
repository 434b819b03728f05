"""ModernBERT's layer, written out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.model.config import EncoderConfig
from electra.model.fused.products import (
    Gradients,
    Kept,
    attend,
    attend_back,
    bias_gradient,
    cast_to,
    map_back,
    map_rows,
    parameters_of,
    score,
    score_back,
    weight_gradient,
)
from electra.model.modernbert import Places, PreNormLayer
from electra.model.parts import DropoutMasks


class FusedPreNormLayer(PreNormLayer):
    """`PreNormLayer` for training and evaluation on a CPU."""

    @classmethod
    def mask_sizes(cls, config: EncoderConfig, num_rows: int, length: int) -> tuple[int, ...]:
        """Return the sizes of the dropout masks of a pass."""
        widths = config.hidden_size, config.intermediate_size, config.num_attention_heads * length
        return tuple(num_rows * length * width for width in widths)

    def forward(self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None) -> Tensor:
        """Return what `PreNormLayer.forward` returns; without `masks` nothing is dropped."""
        B, L, H = x_BLH.shape
        attention, num_heads = self.attention, self.attention.num_heads
        num_blocks = -(-L // places.block) if places.block else 1
        shape = (B * num_heads * num_blocks, places.block or L, 3 * places.block or L)
        of_probs = Kept.draw(attention.dropout, shape, masks)
        of_attended = Kept.draw(attention.dropout, (B * L, H), masks)
        of_inner = Kept.draw(self.dropout, (B * L, self.output.in_features), masks)
        normed_BLH = self.attention_norm(x_BLH) if self.attention_norm else None
        x_1_MH: Tensor = _PreAttention.apply(
            *(x_BLH, normed_BLH, places, of_probs, of_attended, num_heads),
            *parameters_of(attention.qkv, attention.output),
        )
        parameters = parameters_of(self.intermediate_and_gate, self.output)
        normed_MH = self.feed_forward_norm(x_1_MH)
        y_MH: Tensor = _PreFeedForward.apply(x_1_MH, normed_MH, of_inner, *parameters)
        return y_MH.view(B, L, H)


class _PreAttention(torch.autograd.Function):
    """x + dropout(attention(normed x)): (B, L, H) to (M, H), in the compute dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BLH: Tensor,
        normed_BLH: Tensor | None,
        places: Places,
        of_probs: Kept,
        of_attended: Kept,
        num_heads: int,
        *parameters: Tensor | None,
    ) -> Tensor:
        B, L, H = x_BLH.shape
        N, D = num_heads, H // num_heads
        W_qkv, b_qkv, W_o, b_o = (cast_to(each, x_BLH.dtype) for each in parameters)
        assert W_qkv is not None
        assert W_o is not None
        x_MH = x_BLH.reshape(-1, H)
        normed_MH = x_MH if normed_BLH is None else normed_BLH.reshape(-1, H)
        mapped_3BNLD = map_rows(normed_MH, W_qkv, b_qkv).view(B, L, 3, N, D).permute(2, 0, 3, 1, 4)
        qkv_3BNLD = torch.empty((3, B, N, L, D), dtype=x_BLH.dtype)
        _rotate(mapped_3BNLD[:2], places, 1, qkv_3BNLD[:2])
        qkv_3BNLD[2].copy_(mapped_3BNLD[2])
        q, k, v = _arrange(qkv_3BNLD, places)
        context, probs_ZQX = attend(score(q, k), v, places.mask, (B, N), of_probs)
        context_BNLD = context.view(B, N, -1, D)[:, :, :L]
        context_MH = context_BNLD.transpose(1, 2).reshape(-1, H)
        if of_attended.mask is None and b_o is None:
            x_1_MH = torch.addmm(x_MH, context_MH, W_o.t())
        else:
            x_1_MH = of_attended.add(x_MH, map_rows(context_MH, W_o, b_o))
        if any(ctx.needs_input_grad):
            ctx.size, ctx.places, ctx.kept = (B, L, N, D), places, (of_probs, of_attended)
            ctx.has_bias = b_qkv is not None, b_o is not None
            ctx.has_norm = normed_BLH is not None
            ctx.save_for_backward(normed_MH, qkv_3BNLD, probs_ZQX, context_MH, W_qkv, W_o)
        return x_1_MH

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        normed_MH, qkv_3BNLD, probs_ZQX, context_MH, W_qkv, W_o = ctx.saved_tensors
        (B, L, N, D), places, (of_probs, of_attended) = ctx.size, ctx.places, ctx.kept
        qkv_has_bias, output_has_bias = ctx.has_bias
        dx_1_MH = grad_outputs[0]
        dattended_MH = of_attended.drop(dx_1_MH)
        dW_o = weight_gradient(dattended_MH, context_MH, of_attended.scale)
        db_o = bias_gradient(dattended_MH, of_attended.scale) if output_has_bias else None
        dcontext_MH = map_back(dattended_MH, W_o, of_attended.scale)
        dcontext_BNLD = dcontext_MH.view(B, L, N, D).transpose(1, 2)
        if places.block:
            dcontext_ZQD = places.cut(dcontext_BNLD).flatten(0, 2)
        else:
            dcontext_ZQD = dcontext_BNLD.reshape(-1, L, D)
        q, k, v = _arrange(qkv_3BNLD, places)
        dscores_ZQX, dv = attend_back(dcontext_ZQD, v, probs_ZQX, of_probs)
        dq, dk = score_back(dscores_ZQX, q, k, D**-0.5)
        dmapped_MJ = torch.empty((B * L, 3 * N * D), dtype=W_qkv.dtype)
        dmapped_3BNLD = dmapped_MJ.view(B, L, 3, N, D).permute(2, 0, 3, 1, 4)
        _rotate(dq.view(B, N, -1, D)[:, :, :L], places, -1, dmapped_3BNLD[0])
        _rotate(_gather(dk, (B, N, L, D), places), places, -1, dmapped_3BNLD[1])
        dmapped_3BNLD[2].copy_(_gather(dv, (B, N, L, D), places))
        dW_qkv = weight_gradient(dmapped_MJ, normed_MH)
        db_qkv = bias_gradient(dmapped_MJ) if qkv_has_bias else None
        dx_BLH, dnormed_BLH = dx_1_MH.view(B, L, -1), None
        if ctx.has_norm:
            dnormed_BLH = (dmapped_MJ @ W_qkv).view(B, L, -1)
        else:
            dx_BLH = torch.addmm(dx_1_MH, dmapped_MJ, W_qkv).view(B, L, -1)
        return dx_BLH, dnormed_BLH, None, None, None, None, dW_qkv, db_qkv, dW_o, db_o


class _PreFeedForward(torch.autograd.Function):
    """x + feed_forward(normed), gated, with dropout inside; (M, H)."""

    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, normed_MH: Tensor, of_inner: Kept, *parameters: Tensor | None
    ) -> Tensor:
        W_i, b_i, W_f, b_f = (cast_to(each, x_MH.dtype) for each in parameters)
        assert W_i is not None
        assert W_f is not None
        inner_MG = map_rows(normed_MH, W_i, b_i)
        inner_MF, gate_MF = inner_MG.chunk(2, dim=1)
        active_MF = F.gelu(inner_MF)
        gated_MF = of_inner.drop_(active_MF * gate_MF)
        y_MH = torch.addmm(x_MH, gated_MF, W_f.t(), alpha=of_inner.scale)
        if b_f is not None:
            y_MH.add_(b_f)
        if any(ctx.needs_input_grad):
            ctx.kept, ctx.has_bias = of_inner, (b_i is not None, b_f is not None)
            ctx.save_for_backward(normed_MH, inner_MG, active_MF, gated_MF, W_i, W_f)
        return y_MH

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        normed_MH, inner_MG, active_MF, gated_MF, W_i, W_f = ctx.saved_tensors
        dy_MH, of_inner, (inner_has_bias, output_has_bias) = grad_outputs[0], ctx.kept, ctx.has_bias
        dW_f = weight_gradient(dy_MH, gated_MF, of_inner.scale)
        db_f = bias_gradient(dy_MH) if output_has_bias else None
        dgated_MF = of_inner.drop_(map_back(dy_MH, W_f, of_inner.scale))
        inner_MF, gate_MF = inner_MG.chunk(2, dim=1)
        dinner_MG = torch.empty_like(inner_MG)
        dinner_MF, dgate_MF = dinner_MG.chunk(2, dim=1)
        torch.mul(dgated_MF, active_MF, out=dgate_MF)
        dgated_MF.mul_(gate_MF)
        torch.ops.aten.gelu_backward.grad_input(dgated_MF, inner_MF, grad_input=dinner_MF)
        dW_i = weight_gradient(dinner_MG, normed_MH)
        db_i = bias_gradient(dinner_MG) if inner_has_bias else None
        return dy_MH, dinner_MG @ W_i, None, dW_i, db_i, dW_f, db_f


def _rotate(x: Tensor, places: Places, direction: int, out: Tensor) -> None:
    """Write vectors (..., L, D), turned by the angles of their positions or back, to `out`."""
    cos_LD, sin_LD = places.cos_LD.to(x.dtype), (direction * places.sin_LD).to(x.dtype)
    half = x.shape[-1] // 2
    torch.mul(x, cos_LD, out=out)
    out[..., :half].addcmul_(x[..., half:], sin_LD[:, :half])
    out[..., half:].addcmul_(x[..., :half], sin_LD[:, half:])


def _arrange(qkv_3BNLD: Tensor, places: Places) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (Z, Q, D), and the keys and values (Z, X, D) that they meet."""
    if not places.block:
        q, k, v = qkv_3BNLD.flatten(1, 2).unbind(0)
        return q, k, v
    k, v = (places.cut_with_neighbours(each).flatten(0, 2) for each in qkv_3BNLD[1:])
    return places.cut(qkv_3BNLD[0]).flatten(0, 2), k, v


def _gather(x_ZXD: Tensor, size: tuple[int, int, int, int], places: Places) -> Tensor:
    """Return the gradients of keys or values (B, N, L, D), summed over the queries' blocks."""
    B, N, L, D = size
    if not places.block:
        return x_ZXD.view(size)
    x_BNJ3CD = x_ZXD.view(B, N, -1, 3, places.block, D)
    total = x_BNJ3CD[:, :, :, 1].clone()
    if total.shape[2] > 1:
        total[:, :, :-1] += x_BNJ3CD[:, :, 1:, 0]
        total[:, :, 1:] += x_BNJ3CD[:, :, :-1, 2]
    return total.flatten(2, 3)[:, :, :L]
