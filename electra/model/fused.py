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
from electra.model.electra import PostNormLayer
from electra.model.modernbert import Places, PreNormLayer, cut, cut_with_neighbours
from electra.model.parts import DropoutMasks


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
