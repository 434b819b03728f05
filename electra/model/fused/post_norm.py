"""ELECTRA's layer, written out; its attention may be disentangled (disentangled.py)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.model.config import EncoderConfig
from electra.model.electra import PostNormLayer
from electra.model.fused.distances import Distances
from electra.model.fused.products import (
    Gradients,
    Kept,
    attend,
    attend_back,
    bias_gradient,
    map_back,
    map_rows,
    parameters_of,
    score,
    score_back,
    weight_gradient,
)
from electra.model.parts import DropoutMasks


class FusedPostNormLayer(PostNormLayer):
    """`PostNormLayer` for training and evaluation on a CPU."""

    @classmethod
    def mask_sizes(cls, config: EncoderConfig, num_rows: int, length: int) -> tuple[int, ...]:
        """Return the sizes of the dropout masks of a pass."""
        widths = (config.embedding_size, config.hidden_size, config.num_attention_heads * length)
        return tuple(num_rows * length * width for width in widths)

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return what `PostNormLayer.forward` returns; without `masks` nothing is dropped."""
        return apply_post_norm(self, x_BLH, mask_BNLL, masks)


def apply_post_norm(
    layer: PostNormLayer,
    x_BLH: Tensor,
    mask_BNLL: Tensor | None,
    masks: DropoutMasks | None,
    queries_BLH: Tensor | None = None,
    table_RH: Tensor | None = None,
    rows_T: Tensor | None = None,
) -> Tensor:
    """Return the states of a layer, whose parameters are read; arguments as in its definition.

    `table_RH` and `rows_T` are those of `RelativePlaces`; None: attention is by content alone.
    """
    B, L, H = x_BLH.shape
    attention, num_heads = layer.attention, layer.attention.num_heads
    of_probs = Kept.draw(attention.dropout, (B * num_heads, L, L), masks)
    of_attended, of_output = (Kept.draw(layer.dropout, (B * L, H), masks) for _ in range(2))
    sum_MH = _PostAttention.apply(
        *(x_BLH, queries_BLH, table_RH, rows_T, mask_BNLL, of_probs, of_attended, num_heads),
        *parameters_of(attention.qkv, attention.output),
    )
    parameters = parameters_of(layer.intermediate, layer.output)
    sum_MH = _PostFeedForward.apply(layer.attention_norm(sum_MH), of_output, *parameters)
    return layer.output_norm(sum_MH).view(B, L, H)


class _PostAttention(torch.autograd.Function):
    """x + dropout(attention(x)): (B, L, H) to (M, H), in the compute dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BLH: Tensor,
        queries_BLH: Tensor | None,
        table_RH: Tensor | None,
        rows_T: Tensor | None,
        mask_BNLL: Tensor | None,
        of_probs: Kept,
        of_attended: Kept,
        num_heads: int,
        *parameters: Tensor,
    ) -> Tensor:
        B, L, H = x_BLH.shape
        N, D = num_heads, H // num_heads
        swaps = table_RH is not None  # attention is disentangled, and heads come before rows
        W_qkv, b_qkv, W_o, b_o = (each.to(x_BLH.dtype) for each in parameters)
        x_MH = x_BLH.reshape(-1, H)
        queries_MH = x_MH if queries_BLH is None else queries_BLH.reshape(-1, H)
        qkv_MJ = map_rows(x_MH, W_qkv, b_qkv)
        if queries_BLH is not None:
            qkv_MJ[:, :H] = map_rows(queries_MH, W_qkv[:H], b_qkv[:H])
        qkv_3BNLD = qkv_MJ.view(B, L, 3, N, D).permute(2, 0, 3, 1, 4)
        qkv_3ZLD = _swap(qkv_3BNLD, 1, swaps).reshape(3, B * N, L, D)
        distances = None
        if table_RH is not None and rows_T is not None:
            qk_RJ = map_rows(table_RH, W_qkv[: 2 * H], b_qkv[: 2 * H])
            q_NRD, k_NRD = qk_RJ.view(-1, 2, N, D).permute(1, 2, 0, 3)
            distances = Distances(q_NRD[:, rows_T], k_NRD[:, rows_T.flip(0)])
            mask_BNLL = None if mask_BNLL is None else mask_BNLL.transpose(0, 1)
        size = (N, B) if swaps else (B, N)
        q, k, v = qkv_3ZLD.unbind(0)
        scores_ZLL = score(q, k) if distances is None else distances.score(q, k)
        context_ZLD, probs_ZLL = attend(scores_ZLL, v, mask_BNLL, size, of_probs)
        context_BNLD = _swap(context_ZLD.view(*size, L, D), 0, swaps)
        context_MH = context_BNLD.transpose(1, 2).reshape(-1, H)
        if any(ctx.needs_input_grad):
            ctx.size, ctx.kept = (B, L, N, D), (of_probs, of_attended)
            ctx.distances, ctx.has_queries = distances, queries_BLH is not None
            ctx.save_for_backward(
                *(x_MH, queries_MH, table_RH, rows_T, qkv_3ZLD, probs_ZLL, context_MH, W_qkv, W_o)
            )
        return of_attended.add(queries_MH, map_rows(context_MH, W_o, b_o))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        x_MH, queries_MH, table_RH, rows_T, *saved = ctx.saved_tensors
        qkv_3ZLD, probs_ZLL, context_MH, W_qkv, W_o = saved
        (B, L, N, D), (of_probs, of_attended), distances = ctx.size, ctx.kept, ctx.distances
        swaps, dsum_MH = distances is not None, grad_outputs[0]
        dattended_MH = of_attended.drop(dsum_MH)
        dW_o = weight_gradient(dattended_MH, context_MH, of_attended.scale)
        db_o = bias_gradient(dattended_MH, of_attended.scale)
        dcontext_MH = map_back(dattended_MH, W_o, of_attended.scale)
        dcontext_BNLD = dcontext_MH.view(B, L, N, D).transpose(1, 2)
        dcontext_ZLD = _swap(dcontext_BNLD, 0, swaps).reshape(-1, L, D)
        dqkv_3ZLD = torch.empty_like(qkv_3ZLD)
        (q, k, v), (dq, dk, dv) = qkv_3ZLD.unbind(0), dqkv_3ZLD.unbind(0)
        dscores_ZLL, _ = attend_back(dcontext_ZLD, v, probs_ZLL, of_probs, dv)
        if distances is None:
            score_back(dscores_ZLL, q, k, D**-0.5, dq, dk)
        else:
            dq_NTD, dk_NTD = distances.score_back(dscores_ZLL, q, k, dq, dk)
        dqkv_3BNLD = _swap(dqkv_3ZLD.view(3, *((N, B) if swaps else (B, N)), L, D), 1, swaps)
        dqkv_MJ = dqkv_3BNLD.permute(1, 3, 0, 2, 4).reshape(B * L, -1)
        db_qkv, dqueries_BLH, dtable_RH = bias_gradient(dqkv_MJ), None, None
        if ctx.has_queries:
            H = N * D
            dq_MH, dkv_MJ = dqkv_MJ[:, :H], dqkv_MJ[:, H:]
            dqueries_BLH = torch.addmm(dsum_MH, dq_MH, W_qkv[:H]).view(B, L, -1)
            dx_MH = dkv_MJ @ W_qkv[H:]
            parts = weight_gradient(dq_MH, queries_MH), weight_gradient(dkv_MJ, x_MH)
            dW_qkv = torch.cat(parts)
        else:
            dx_MH = torch.addmm(dsum_MH, dqkv_MJ, W_qkv)
            dW_qkv = weight_gradient(dqkv_MJ, x_MH)
        if distances is not None:
            dqk_RJ = _gather_rows(dq_NTD, dk_NTD, rows_T, len(table_RH)).to(table_RH.dtype)
            dtable_RH = dqk_RJ @ W_qkv[: dqk_RJ.shape[1]]
            dW_qkv[: dqk_RJ.shape[1]] += weight_gradient(dqk_RJ, table_RH)
            db_qkv[: dqk_RJ.shape[1]] += bias_gradient(dqk_RJ)
        return (
            *(dx_MH.view(B, L, -1), dqueries_BLH, dtable_RH),
            *(None,) * 5,
            *(dW_qkv, db_qkv, dW_o, db_o),
        )


class _PostFeedForward(torch.autograd.Function):
    """x + dropout(feed_forward(x)), (M, H)."""

    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, of_output: Kept, *parameters: Tensor) -> Tensor:
        W_i, b_i, W_f, b_f = (each.to(x_MH.dtype) for each in parameters)
        inner_MF = map_rows(x_MH, W_i, b_i)
        active_MF = F.gelu(inner_MF)
        if any(ctx.needs_input_grad):
            ctx.kept = of_output
            ctx.save_for_backward(x_MH, inner_MF, active_MF, W_i, W_f)
        return of_output.add(x_MH, map_rows(active_MF, W_f, b_f))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        (x_MH, inner_MF, active_MF, W_i, W_f), kept = ctx.saved_tensors, ctx.kept
        dsum_MH = grad_outputs[0]
        doutput_MH = kept.drop(dsum_MH)
        dW_f = weight_gradient(doutput_MH, active_MF, kept.scale)
        db_f = bias_gradient(doutput_MH, kept.scale)
        dactive_MF = map_back(doutput_MH, W_f, kept.scale)
        dinner_MF = torch.ops.aten.gelu_backward(dactive_MF, inner_MF)
        dW_i, db_i = weight_gradient(dinner_MF, x_MH), bias_gradient(dinner_MF)
        dx_MH = torch.addmm(dsum_MH, dinner_MF, W_i)
        return dx_MH, None, dW_i, db_i, dW_f, db_f


def _swap(x: Tensor, axis: int, swaps: bool) -> Tensor:
    """Return a tensor with the axes of rows and heads exchanged, or as it is."""
    return x.transpose(axis, axis + 1) if swaps else x


def _gather_rows(dq_NTD: Tensor, dk_NTD: Tensor, rows_T: Tensor, num_rows: int) -> Tensor:
    """Return the gradients of queries and keys of the table's rows (R, 2H), float32."""
    N, _, D = dq_NTD.shape
    dqk_2NRD = torch.zeros(2, N, num_rows, D)
    dqk_2NRD[0].index_add_(1, rows_T, dq_NTD)
    dqk_2NRD[1].index_add_(1, rows_T.flip(0), dk_NTD)
    return dqk_2NRD.permute(2, 0, 1, 3).reshape(num_rows, -1)
