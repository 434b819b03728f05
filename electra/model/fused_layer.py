"""A post-norm layer as one step of autograd: what `PostNormLayer` computes, faster on a CPU.

On a CPU much of a plain layer's time goes into operations between the matrix products: copies,
casts, masks, one pass over memory each. Here forward and backward are written out with as few
passes as torch's operations allow: scales are applied inside the products, residuals in the
accumulators of dropout and of the backward products, dropout multiplies by a slice of a mask drawn
once per pass, and gradients of query, key and value are written where the next product reads them.
`PostNormLayer` remains the definition; docs/PERFORMANCE.md has what this gives.

Shape suffixes: B rows of the batch, L positions, M = B * L, H hidden size, N heads, Z = B * N,
D size of a head, J = 3H (query, key and value), F feed-forward size; 3 stands for query, key and
value. In functions of any matrix: I and O input and output size of a linear map, I, J, K rows,
inner and columns of a product.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.config import EncoderConfig
from electra.model.dropout import DropoutMasks
from electra.model.layer import PostNormLayer


class FusedPostNormLayer(PostNormLayer):
    """The layer for training and evaluation on a CPU: forward and backward written out.

    Parameters and their names are those of `PostNormLayer`. Losses agree with it to 1e-6 relative
    in float32 and gradients to 1e-5 of their largest element; in bfloat16 both are as far from
    float32 as each other.

    Sub-modules are not called, their parameters are read: forward hooks on them never fire, and
    what replaces one (an adapter) takes no part. Whoever needs either builds `PostNormLayer`.
    """

    @classmethod
    def draw_masks(
        cls, config: EncoderConfig, num_rows: int, length: int, dtype: torch.dtype
    ) -> DropoutMasks:
        """Return the dropout masks of one pass of `num_rows` rows in training."""
        widths = (config.embedding_size, config.hidden_size, config.num_attention_heads * length)
        probs = {config.hidden_dropout_prob, config.attention_probs_dropout_prob} - {0.0}
        return DropoutMasks(num_rows * length * max(widths), dtype, sorted(probs))

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return what `PostNormLayer.forward` returns; without `masks` nothing is dropped."""
        B, L, H = x_BLH.shape
        attention = self.attention
        kept_probs = attention.dropout.draw((B * attention.num_heads, L, L), masks)
        kept_attention, kept_inner = (self.dropout.draw((B * L, H), masks) for _ in range(2))
        shape = _Shape(
            attention.num_heads,
            self.output_norm.eps,
            1.0 if kept_probs is None else attention.dropout.scale,
            1.0 if kept_inner is None else self.dropout.scale,
        )
        maps = (
            *(attention.qkv, attention.output, self.attention_norm),
            *(self.intermediate, self.output, self.output_norm),
        )
        parameters = [tensor for each in maps for tensor in (each.weight, each.bias)]
        y_BLH: Tensor = _FusedLayer.apply(
            *(x_BLH, mask_BNLL, kept_probs, kept_attention, kept_inner), shape, *parameters
        )
        return y_BLH


class _Shape(NamedTuple):
    """What `_FusedLayer` needs beside tensors."""

    num_heads: int
    eps: float
    """Epsilon of both layer norms."""
    attention_scale: float
    """Factor of the attention probabilities that dropout keeps; 1 without dropout."""
    hidden_scale: float
    """Factor of the other two tensors' elements that dropout keeps; 1 without dropout."""


class _FusedLayer(torch.autograd.Function):
    """The written-out layer, of x (B, L, H) in the compute dtype; returns the same shape and dtype.

    The masks `kept_...` are 1 where dropout keeps an element and 0 elsewhere, in the dtype of x:
    (Z, L, L) of the attention probabilities, (M, H) of the attention output and of the feed-forward
    output. `parameters` are float32: weight and bias of query, key and value, of the attention
    output and its norm, of the feed-forward's first and second product and its norm.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BLH: Tensor,
        mask_BNLL: Tensor | None,
        kept_probs: Tensor | None,
        kept_attention: Tensor | None,
        kept_inner: Tensor | None,
        shape: _Shape,
        *parameters: Tensor,
    ) -> Tensor:
        B, L, H = x_BLH.shape
        N, dtype = shape.num_heads, x_BLH.dtype
        D, Z = H // N, B * N
        W_qkv, b_qkv, W_o, b_o, g_1, h_1, W_i, b_i, W_f, b_f, g_2, h_2 = (
            # Norms take float32 parameters as they are; products need those of their input.
            parameter if place in (4, 5, 10, 11) else parameter.to(dtype)
            for place, parameter in enumerate(parameters)
        )
        x_MH = x_BLH.reshape(-1, H)
        qkv_3ZLD = (
            map_rows(x_MH, W_qkv, b_qkv)
            .view(B, L, 3, N, D)
            .permute(2, 0, 3, 1, 4)
            .reshape(3, Z, L, D)
        )
        q_ZLD, k_ZLD, v_ZLD = qkv_3ZLD.unbind(0)
        scores_ZLL = product(q_ZLD, k_ZLD.transpose(1, 2), D**-0.5)
        if mask_BNLL is not None:
            scores_ZLL.view(B, N, L, L).add_(mask_BNLL)
        probs_ZLL = scores_ZLL.softmax(dim=-1)
        dropped_ZLL = probs_ZLL if kept_probs is None else probs_ZLL * kept_probs
        context_MH = (
            product(dropped_ZLL, v_ZLD, shape.attention_scale)
            .view(B, N, L, D)
            .transpose(1, 2)
            .reshape(-1, H)
        )
        attended_MH = map_rows(context_MH, W_o, b_o)
        sum_1_MH = add_dropped(x_MH, attended_MH, kept_attention, shape.hidden_scale)
        x_1_MH, mean_1, rstd_1 = torch.native_layer_norm(sum_1_MH, [H], g_1, h_1, shape.eps)
        inner_MF = map_rows(x_1_MH, W_i, b_i)
        active_MF = F.gelu(inner_MF)
        output_MH = map_rows(active_MF, W_f, b_f)
        sum_2_MH = add_dropped(x_1_MH, output_MH, kept_inner, shape.hidden_scale)
        y_MH, mean_2, rstd_2 = torch.native_layer_norm(sum_2_MH, [H], g_2, h_2, shape.eps)
        if any(ctx.needs_input_grad):
            ctx.shape, ctx.size = shape, (B, L, H)
            ctx.save_for_backward(
                *(x_MH, qkv_3ZLD, probs_ZLL, kept_probs, context_MH, kept_attention),
                *(sum_1_MH, mean_1, rstd_1, x_1_MH, inner_MF, active_MF, kept_inner),
                *(sum_2_MH, mean_2, rstd_2, W_qkv, W_o, g_1, h_1, W_i, W_f, g_2, h_2),
            )
        return y_MH.view(B, L, H)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        x_MH, qkv_3ZLD, probs_ZLL, kept_probs, context_MH, kept_attention = saved[:6]
        sum_1_MH, mean_1, rstd_1, x_1_MH, inner_MF, active_MF, kept_inner = saved[6:13]
        sum_2_MH, mean_2, rstd_2, W_qkv, W_o, g_1, h_1, W_i, W_f, g_2, h_2 = saved[13:]
        shape, (B, L, H) = ctx.shape, ctx.size
        N, D = shape.num_heads, H // shape.num_heads
        every = [True, True, True]

        # A leading d: the gradient of the loss with respect to the tensor named after it.
        dsum_2_MH, dg_2, dh_2 = torch.ops.aten.native_layer_norm_backward(
            grad_outputs[0].reshape(-1, H), sum_2_MH, [H], mean_2, rstd_2, g_2, h_2, every
        )
        # Gradient of dropout's input, still without dropout's scale.
        doutput_MH = dsum_2_MH if kept_inner is None else dsum_2_MH * kept_inner
        dW_f, db_f = weight_gradients(doutput_MH, active_MF, shape.hidden_scale)
        dactive_MF = map_back(doutput_MH, W_f, shape.hidden_scale)
        dinner_MF = torch.ops.aten.gelu_backward(dactive_MF, inner_MF)
        dW_i, db_i = weight_gradients(dinner_MF, x_1_MH)
        dx_1_MH = torch.addmm(dsum_2_MH, dinner_MF, W_i)
        dsum_1_MH, dg_1, dh_1 = torch.ops.aten.native_layer_norm_backward(
            dx_1_MH, sum_1_MH, [H], mean_1, rstd_1, g_1, h_1, every
        )
        dattended_MH = dsum_1_MH if kept_attention is None else dsum_1_MH * kept_attention
        dW_o, db_o = weight_gradients(dattended_MH, context_MH, shape.hidden_scale)
        dcontext_MH = map_back(dattended_MH, W_o, shape.hidden_scale)
        dcontext_ZLD = dcontext_MH.view(B, L, N, D).transpose(1, 2).reshape(-1, L, D)

        q_ZLD, k_ZLD, v_ZLD = qkv_3ZLD.unbind(0)
        dqkv_3ZLD = torch.empty_like(qkv_3ZLD)
        dropped_ZLL = probs_ZLL if kept_probs is None else probs_ZLL * kept_probs
        product(dropped_ZLL.transpose(1, 2), dcontext_ZLD, shape.attention_scale, dqkv_3ZLD[2])
        dprobs_ZLL = product(dcontext_ZLD, v_ZLD.transpose(1, 2), shape.attention_scale)
        if kept_probs is not None:
            dprobs_ZLL.mul_(kept_probs)
        dscores_ZLL = torch._softmax_backward_data(dprobs_ZLL, probs_ZLL, -1, probs_ZLL.dtype)
        product(dscores_ZLL, k_ZLD, D**-0.5, dqkv_3ZLD[0])
        product(dscores_ZLL.transpose(1, 2), q_ZLD, D**-0.5, dqkv_3ZLD[1])
        dqkv_MJ = dqkv_3ZLD.view(3, B, N, L, D).permute(1, 3, 0, 2, 4).reshape(B * L, 3 * H)
        dW_qkv, db_qkv = weight_gradients(dqkv_MJ, x_MH)
        dx_MH = torch.addmm(dsum_1_MH, dqkv_MJ, W_qkv)
        return (
            *(dx_MH.view(B, L, H), None, None, None, None, None),
            *(dW_qkv, db_qkv, dW_o, db_o, dg_1, dh_1, dW_i, db_i, dW_f, db_f, dg_2, dh_2),
        )


def product(a_ZIJ: Tensor, b_ZJK: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale * a @ b (Z, I, K); the scale is applied inside the product."""
    if out is None:
        out = a_ZIJ.new_empty(a_ZIJ.shape[0], a_ZIJ.shape[1], b_ZJK.shape[2])
    return torch.baddbmm(out, a_ZIJ, b_ZJK, beta=0, alpha=scale, out=out)


def add_dropped(x_MH: Tensor, y_MH: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    """Return x + dropout(y)."""
    return x_MH + y_MH if kept is None else torch.addcmul(x_MH, y_MH, kept, value=scale)


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


def weight_gradients(dy_MO: Tensor, x_MI: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return scale times the gradients of weight and bias of y = x W^T + b, float32."""
    return weight_gradient(dy_MO, x_MI, scale), dy_MO.sum(dim=0).float().mul_(scale)


def weight_gradient(dy_MO: Tensor, x_MI: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale times the gradient of the weight of y = x W^T + b, float32."""
    return map_back(dy_MO.t(), x_MI, scale).float()


_HAS_ONEDNN = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
