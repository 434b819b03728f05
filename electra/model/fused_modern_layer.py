"""ModernBERT's layer as one step of autograd: what `PreNormLayer` computes, faster on a CPU.

Forward and backward are written out with as few passes over memory as torch's operations allow, as
in fused_layer.py: residuals are added in the accumulators of matrix products, queries and keys are
turned while they are copied to where the products of attention read them, and gradients are turned
back while they are copied to where the next product reads them. `PreNormLayer` remains the
definition; docs/PERFORMANCE.md has what this gives.

Shape suffixes: those of modern_layer.py, and M = B * L, Z = B * N, G = 2F (feed-forward and its
gate), Y = Z, or Z * J in blocks, Q queries that meet the same keys: L, or C in blocks.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.config import EncoderConfig
from electra.model.dropout import DropoutMasks
from electra.model.fused_layer import (
    add_dropped,
    map_back,
    map_rows,
    product,
    weight_gradient,
)
from electra.model.modern_layer import Places, PreNormLayer, cut, cut_with_neighbours


class FusedPreNormLayer(PreNormLayer):
    """The layer for training and evaluation on a CPU: forward and backward written out.

    Parameters and their names are those of `PreNormLayer`. Losses agree with it to 1e-6 relative
    in float32 and gradients to 1e-5 of their largest element; in bfloat16 both are as far from
    float32 as each other.

    Sub-modules are not called, their parameters are read: forward hooks on them never fire, and
    what replaces one (an adapter) takes no part. Whoever needs either builds `PreNormLayer`.
    """

    @classmethod
    def draw_masks(
        cls, config: EncoderConfig, num_rows: int, length: int, dtype: torch.dtype
    ) -> DropoutMasks:
        """Return the dropout masks of one pass of `num_rows` rows in training."""
        sizes = config.hidden_size, config.intermediate_size, config.num_attention_heads * length
        probs = {config.hidden_dropout_prob, config.attention_probs_dropout_prob} - {0.0}
        return DropoutMasks(num_rows * length * max(sizes), dtype, sorted(probs))

    def forward(self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None) -> Tensor:
        """Return what `PreNormLayer.forward` returns; without `masks` nothing is dropped."""
        B, L, H = x_BLH.shape
        attention, norm, num_heads = self.attention, self.attention_norm, self.attention.num_heads
        num_blocks = -(-L // places.block) if places.block else 1
        keys = 3 * places.block or L
        shape = (B * num_heads * num_blocks, places.block or L, keys)
        kept_probs = attention.dropout.draw(shape, masks)
        kept_attended = attention.dropout.draw((B * L, H), masks)
        kept_inner = self.dropout.draw((B * L, self.output.in_features), masks)
        facts = _Facts(
            num_heads,
            places.block,
            self.feed_forward_norm.eps,
            1.0 if kept_probs is None else attention.dropout.scale,
            1.0 if kept_attended is None else attention.dropout.scale,
            1.0 if kept_inner is None else self.dropout.scale,
        )
        maps = (
            *(norm, attention.qkv, attention.output),
            *(self.feed_forward_norm, self.intermediate_and_gate, self.output),
        )
        parameters = [
            tensor
            for each in maps
            for tensor in ((each.weight, each.bias) if each else (None,) * 2)
        ]
        y_BLH: Tensor = _FusedModernLayer.apply(
            *(x_BLH, places.mask, places.cos_LD, places.sin_LD),
            *(kept_probs, kept_attended, kept_inner, facts),
            *parameters,
        )
        return y_BLH


class _Facts(NamedTuple):
    """What `_FusedModernLayer` needs beside tensors."""

    num_heads: int
    block: int
    """Positions of a block of local attention; 0: no blocks."""
    eps: float
    """Epsilon of both layer norms."""
    probs_scale: float
    """Factor of the attention probabilities that dropout keeps; 1 without dropout."""
    attended_scale: float
    """The same of the attention output."""
    inner_scale: float
    """The same inside the feed-forward."""


class _FusedModernLayer(torch.autograd.Function):
    """The written-out layer, of x (B, L, H) in the compute dtype; returns the same shape and dtype.

    The masks `kept_...` are 1 where dropout keeps an element and 0 elsewhere, in the dtype of x:
    (Y, Q, X) of the attention probabilities, (M, H) of the attention output and (M, F) inside the
    feed-forward. `parameters` are float32, weight and bias in turn, None where there is none: of
    the attention's norm, of query, key and value, of the attention output, of the feed-forward's
    norm, of its first and of its second product.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BLH: Tensor,
        mask: Tensor | None,
        cos_LD: Tensor,
        sin_LD: Tensor,
        kept_probs: Tensor | None,
        kept_attended: Tensor | None,
        kept_inner: Tensor | None,
        facts: _Facts,
        *parameters: Tensor | None,
    ) -> Tensor:
        B, L, H = x_BLH.shape
        N, dtype = facts.num_heads, x_BLH.dtype
        D = H // N
        g_1, h_1, W_qkv, b_qkv, W_o, b_o, g_2, h_2, W_i, b_i, W_f, b_f = (
            # Norms take float32 parameters as they are; products need those of their input.
            each if each is None or place in (0, 1, 6, 7) else each.to(dtype)
            for place, each in enumerate(parameters)
        )
        assert W_qkv is not None
        assert W_o is not None
        assert W_i is not None
        assert W_f is not None
        x_MH = x_BLH.reshape(-1, H)
        mean_1 = rstd_1 = None
        normed_MH = x_MH
        if g_1 is not None:
            normed_MH, mean_1, rstd_1 = torch.native_layer_norm(x_MH, [H], g_1, h_1, facts.eps)
        cos_LD, sin_LD = cos_LD.to(dtype), sin_LD.to(dtype)
        mapped_3BNLD = map_rows(normed_MH, W_qkv, b_qkv).view(B, L, 3, N, D).permute(2, 0, 3, 1, 4)
        qkv_3BNLD = torch.empty((3, B, N, L, D), dtype=dtype)
        _turn(mapped_3BNLD[:2], cos_LD, sin_LD, qkv_3BNLD[:2])
        qkv_3BNLD[2].copy_(mapped_3BNLD[2])
        q_YQD, k_YXD, v_YXD = _arrange(qkv_3BNLD, facts.block)
        scores_YQX = product(q_YQD, k_YXD.transpose(1, 2), D**-0.5)
        if mask is not None:
            scores_YQX.view(B, N, *mask.shape[2:-2], *scores_YQX.shape[1:]).add_(mask)
        probs_YQX = scores_YQX.softmax(dim=-1)
        dropped_YQX = probs_YQX if kept_probs is None else probs_YQX * kept_probs
        context_BNLD = product(dropped_YQX, v_YXD, facts.probs_scale).view(B, N, -1, D)[:, :, :L]
        context_MH = context_BNLD.transpose(1, 2).reshape(-1, H)
        if kept_attended is None and b_o is None:
            sum_MH = torch.addmm(x_MH, context_MH, W_o.t())
        else:
            attended_MH = map_rows(context_MH, W_o, b_o)
            sum_MH = add_dropped(x_MH, attended_MH, kept_attended, facts.attended_scale)
        normed_2_MH, mean_2, rstd_2 = torch.native_layer_norm(sum_MH, [H], g_2, h_2, facts.eps)
        inner_MG = map_rows(normed_2_MH, W_i, b_i)
        inner_MF, gate_MF = inner_MG.chunk(2, dim=1)
        active_MF = F.gelu(inner_MF)
        gated_MF = active_MF * gate_MF
        if kept_inner is not None:
            gated_MF.mul_(kept_inner)
        y_MH = torch.addmm(sum_MH, gated_MF, W_f.t(), alpha=facts.inner_scale)
        if b_f is not None:
            y_MH.add_(b_f)
        if any(ctx.needs_input_grad):
            ctx.facts, ctx.size = facts, (B, L, H)
            ctx.has_bias = [each is not None for each in (h_1, b_qkv, b_o, h_2, b_i, b_f)]
            ctx.save_for_backward(
                *(x_MH, mean_1, rstd_1, normed_MH, cos_LD, sin_LD, qkv_3BNLD, probs_YQX),
                *(kept_probs, context_MH, kept_attended, sum_MH, mean_2, rstd_2, normed_2_MH),
                *(inner_MG, active_MF, gated_MF, kept_inner),
                *(g_1, h_1, W_qkv, W_o, g_2, h_2, W_i, W_f),
            )
        return y_MH.view(B, L, H)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        x_MH, mean_1, rstd_1, normed_MH, cos_LD, sin_LD, qkv_3BNLD, probs_YQX = saved[:8]
        kept_probs, context_MH, kept_attended, sum_MH, mean_2, rstd_2, normed_2_MH = saved[8:15]
        inner_MG, active_MF, gated_MF, kept_inner = saved[15:19]
        g_1, h_1, W_qkv, W_o, g_2, h_2, W_i, W_f = saved[19:]
        facts, (B, L, H) = ctx.facts, ctx.size
        norm_1_has, qkv_has, output_has, norm_2_has, inner_has, outer_has = ctx.has_bias
        N, D = facts.num_heads, H // facts.num_heads

        # A leading d: the gradient of the loss with respect to the tensor named after it.
        dy_MH = grad_outputs[0].reshape(-1, H)
        db_f = dy_MH.sum(dim=0).float() if outer_has else None
        dW_f = weight_gradient(dy_MH, gated_MF, facts.inner_scale)
        dgated_MF = map_back(dy_MH, W_f, facts.inner_scale)
        if kept_inner is not None:
            dgated_MF.mul_(kept_inner)
        inner_MF, gate_MF = inner_MG.chunk(2, dim=1)
        dinner_MG = torch.empty_like(inner_MG)
        dinner_MF, dgate_MF = dinner_MG.chunk(2, dim=1)
        torch.mul(dgated_MF, active_MF, out=dgate_MF)
        dgated_MF.mul_(gate_MF)
        torch.ops.aten.gelu_backward.grad_input(dgated_MF, inner_MF, grad_input=dinner_MF)
        db_i = dinner_MG.sum(dim=0).float() if inner_has else None
        dW_i = weight_gradient(dinner_MG, normed_2_MH)
        dsum_MH, dg_2, dh_2 = torch.ops.aten.native_layer_norm_backward(
            dinner_MG @ W_i, sum_MH, [H], mean_2, rstd_2, g_2, h_2, [True, True, norm_2_has]
        )
        dsum_MH.add_(dy_MH)
        dattended_MH = dsum_MH if kept_attended is None else dsum_MH * kept_attended
        dW_o = weight_gradient(dattended_MH, context_MH, facts.attended_scale)
        db_o = None
        if output_has:
            db_o = dattended_MH.sum(dim=0).float().mul_(facts.attended_scale)
        dcontext_MH = map_back(dattended_MH, W_o, facts.attended_scale)
        dcontext_BNLD = dcontext_MH.view(B, L, N, D).transpose(1, 2)
        if facts.block:
            dcontext_YQD = cut(dcontext_BNLD, facts.block).flatten(0, 2)
        else:
            dcontext_YQD = dcontext_BNLD.reshape(-1, L, D)

        q_YQD, k_YXD, v_YXD = _arrange(qkv_3BNLD, facts.block)
        dropped_YQX = probs_YQX if kept_probs is None else probs_YQX * kept_probs
        dv_YXD = product(dropped_YQX.transpose(1, 2), dcontext_YQD, facts.probs_scale)
        dprobs_YQX = product(dcontext_YQD, v_YXD.transpose(1, 2), facts.probs_scale)
        if kept_probs is not None:
            dprobs_YQX.mul_(kept_probs)
        dscores_YQX = torch._softmax_backward_data(dprobs_YQX, probs_YQX, -1, probs_YQX.dtype)
        dq_YQD = product(dscores_YQX, k_YXD, D**-0.5)
        dk_YXD = product(dscores_YQX.transpose(1, 2), q_YQD, D**-0.5)
        dmapped_MJ = torch.empty((B * L, 3 * H), dtype=x_MH.dtype)
        dmapped_3BNLD = dmapped_MJ.view(B, L, 3, N, D).permute(2, 0, 3, 1, 4)
        dq_BNLD = dq_YQD.view(B, N, -1, D)[:, :, :L]
        dk_BNLD, dv_BNLD = (_gather(each, B, N, L, facts.block) for each in (dk_YXD, dv_YXD))
        _turn(dq_BNLD, cos_LD, -sin_LD, dmapped_3BNLD[0])
        _turn(dk_BNLD, cos_LD, -sin_LD, dmapped_3BNLD[1])
        dmapped_3BNLD[2].copy_(dv_BNLD)
        db_qkv = dmapped_MJ.sum(dim=0).float() if qkv_has else None
        dW_qkv = weight_gradient(dmapped_MJ, normed_MH)
        dg_1 = dh_1 = None
        if g_1 is None:
            dx_MH = torch.addmm(dsum_MH, dmapped_MJ, W_qkv)
        else:
            dx_MH, dg_1, dh_1 = torch.ops.aten.native_layer_norm_backward(
                dmapped_MJ @ W_qkv, x_MH, [H], mean_1, rstd_1, g_1, h_1, [True, True, norm_1_has]
            )
            dx_MH.add_(dsum_MH)
        return (
            *(dx_MH.view(B, L, H), *[None] * 7),
            *(dg_1, dh_1, dW_qkv, db_qkv, dW_o, db_o, dg_2, dh_2, dW_i, db_i, dW_f, db_f),
        )


def _turn(x: Tensor, cos_LD: Tensor, sin_LD: Tensor, out: Tensor) -> None:
    """Write vectors (..., L, D), turned by the angles of their positions, to `out`."""
    half = x.shape[-1] // 2
    torch.mul(x, cos_LD, out=out)
    out[..., :half].addcmul_(x[..., half:], sin_LD[:, :half])
    out[..., half:].addcmul_(x[..., :half], sin_LD[:, half:])


def _arrange(qkv_3BNLD: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (Y, Q, D), and the keys and values (Y, X, D) that they meet."""
    if not block:
        q, k, v = qkv_3BNLD.flatten(1, 2).unbind(0)
        return q, k, v
    q = cut(qkv_3BNLD[0], block).flatten(0, 2)
    k, v = (cut_with_neighbours(each, block).flatten(0, 2) for each in qkv_3BNLD[1:])
    return q, k, v


def _gather(x_YXD: Tensor, B: int, N: int, L: int, block: int) -> Tensor:
    """Return the gradients of keys or values (B, N, L, D), summed over the queries' blocks."""
    D = x_YXD.shape[-1]
    if not block:
        return x_YXD.view(B, N, L, D)
    x_BNJ3CD = x_YXD.view(B, N, -1, 3, block, D)
    num_blocks = x_BNJ3CD.shape[2]
    total = x_BNJ3CD[:, :, :, 1].clone()
    if num_blocks > 1:
        total[:, :, :-1] += x_BNJ3CD[:, :, 1:, 0]
        total[:, :, 1:] += x_BNJ3CD[:, :, :-1, 2]
    return total.view(B, N, num_blocks * block, D)[:, :, :L]
