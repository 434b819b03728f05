"""Layers with Triton kernels for a GPU: attention, and GELU and residuals with their norms.

The definitions are `PostNormLayer`, `DisentangledLayer` and `PreNormLayer`.
results/gpu/small-triton.md has the times of an earlier form of the first.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head, M = B * L, H hidden
size, F feed-forward size, J = 3 * H, P programs; R rows of the table of distances, T distances.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from electra.model.deberta import DisentangledLayer, RelativePlaces
from electra.model.electra import PostNormLayer
from electra.model.kernels.disentangled_attention import (
    attend_back_to_distances,
    attend_back_to_keys,
    attend_back_to_queries,
    attend_back_to_scores,
    attend_by_distance,
    can_attend_by_distance,
    join_distances,
    pad_length,
)
from electra.model.kernels.elementwise import add_norm, add_norm_backward, gelu
from electra.model.kernels.short_attention import attend, attend_backward, can_attend
from electra.model.modernbert import Places, PreNormLayer, RotaryAttention
from electra.model.modernbert_config import ModernBertConfig
from electra.model.parts import Dropout, DropoutMasks, LayerNorm, Linear
from electra.model.parts import attend as attend_plainly


class TritonPostNormLayer(PostNormLayer):
    """The layer for a CUDA device with Triton.

    Parameters and their names are those of `PostNormLayer`. Of its modules only `intermediate` is
    called; only the parameters of the others are read, so hooks on them never fire. Rows longer
    than `LONGEST`, and float32, use torch's attention.
    """

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return what `PostNormLayer.forward` returns."""
        seed_3 = torch.randint(2**31 - 1, (3,), device=x_BLH.device)
        context_BLH = self._attend(x_BLH, mask_BNLL, seed_3[:1], masks)
        return self._finish(x_BLH, context_BLH, seed_3[1:])

    def _finish(self, x_BLH: Tensor, context_BLH: Tensor, seed_2: Tensor) -> Tensor:
        """Return the hidden states after the layer, given the heads' results."""
        x_BLH = self._add(
            x_BLH, context_BLH, self.attention.output, self.attention_norm, seed_2[:1]
        )
        inner_BLF = self.intermediate(x_BLH)
        inner_BLF = _Gelu.apply(inner_BLF) if self.training else F.gelu(inner_BLF)
        return self._add(x_BLH, inner_BLF, self.output, self.output_norm, seed_2[1:])

    def _attend(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, seed: Tensor, masks: DropoutMasks | None
    ) -> Tensor:
        """Return the heads' results side by side (B, L, H)."""
        attention = self.attention
        if not can_attend(x_BLH, attention.num_heads):
            heads = attention.map_heads(x_BLH)
            context_BNLD = attend_plainly(*heads, mask_BNLL, attention.dropout, masks)
            return context_BNLD.transpose(1, 2).flatten(2)
        weights = cast_parameters(attention.qkv, x_BLH.dtype)
        prob = self._prob(attention.dropout)
        context_BLND: Tensor = _Attend.apply(
            x_BLH, *weights, mask_BNLL, seed, prob, attention.num_heads
        )
        return context_BLND.flatten(2)

    def _add(
        self, x_BLH: Tensor, inner: Tensor, linear: Linear, norm: LayerNorm, seed: Tensor
    ) -> Tensor:
        """Return norm(x + dropout(linear(inner)))."""
        weight, bias_H = cast_parameters(linear, x_BLH.dtype)
        y_BLH = F.linear(inner, weight)
        prob = self._prob(self.dropout)
        added: Tensor = _AddNorm.apply(
            x_BLH, y_BLH, bias_H, norm.weight, norm.bias, seed, prob, norm.eps
        )
        return added

    def _prob(self, dropout: Dropout) -> float:
        return dropout.prob if self.training else 0.0


class TritonDisentangledLayer(TritonPostNormLayer, DisentangledLayer):
    """DeBERTa's layer for a CUDA device with Triton, as `TritonPostNormLayer`.

    Where `can_attend_by_distance` is false, as in float32, it is the plain layer.
    """

    def forward(  # type: ignore[override]
        self,
        x_BLH: Tensor,
        places: RelativePlaces,
        masks: DropoutMasks | None,
        queries_BLH: Tensor | None = None,
    ) -> Tensor:
        """Return what `DisentangledLayer.forward` returns."""
        if not can_attend_by_distance(x_BLH, self.attention.num_heads):
            return DisentangledLayer.forward(self, x_BLH, places, masks, queries_BLH)
        asking_BLH = x_BLH if queries_BLH is None else queries_BLH
        seed_3 = torch.randint(2**31 - 1, (3,), device=x_BLH.device)
        context_BLH = self._attend_by_distance(x_BLH, asking_BLH, places, seed_3[:1], masks)
        return self._finish(asking_BLH, context_BLH, seed_3[1:])

    def _attend_by_distance(
        self,
        x_BLH: Tensor,
        asking_BLH: Tensor,
        places: RelativePlaces,
        seed: Tensor,
        masks: DropoutMasks | None,
    ) -> Tensor:
        """Return the heads' results side by side (B, L, H)."""
        attention, H = self.attention, x_BLH.shape[2]
        weight_JH, bias_J = cast_parameters(attention.qkv, x_BLH.dtype)
        relative_RH = attention.relative_dropout(places.table_RH, masks)
        relative_RJ = F.linear(relative_RH, weight_JH[: 2 * H], bias_J[: 2 * H])
        # A look-up as a product: the gradient of a row is then a sum in a fixed order.
        distances_TJ = _choose_rows(places, x_BLH.shape[1], x_BLH.dtype) @ relative_RJ
        q_BLJ = F.linear(asking_BLH, weight_JH[:H], bias_J[:H])
        kv_BLJ = F.linear(x_BLH, weight_JH[H:], bias_J[H:])
        context_BLND: Tensor = _AttendByDistance.apply(
            q_BLJ.unflatten(2, (attention.num_heads, -1)),
            kv_BLJ.unflatten(2, (2, attention.num_heads, -1)),
            distances_TJ.unflatten(1, (2, attention.num_heads, -1)),
            *(places.mask, seed, self._prob(attention.dropout)),
        )
        return context_BLND.flatten(2)


class TritonRotaryAttention(RotaryAttention):
    """ModernBERT's attention, with Triton kernels for rows that `can_attend` accepts.

    In longer rows, windows use torch's Flash kernels, which have no dropout; separate documents and
    attention to the whole of a long row use `RotaryAttention`.
    """

    def forward(  # type: ignore[override]
        self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None
    ) -> Tensor:
        """Return what `RotaryAttention.forward` returns."""
        B, L, _ = x_BLH.shape
        prob = self.dropout.prob if self.training else 0.0
        has_windows = places.has_rows and prob == 0 and x_BLH.dtype in (torch.bfloat16, torch.half)
        if not has_windows and (places.block or not can_attend(x_BLH, self.num_heads)):
            return super().forward(x_BLH, places, masks)
        qkv_3BNLD = self.qkv(x_BLH).view(B, L, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        turned_3BNLD = torch.cat([places.rotate(qkv_3BNLD[:2]), qkv_3BNLD[2:]])
        turned_BL3ND = turned_3BNLD.permute(1, 3, 0, 2, 4).contiguous()
        if has_windows:
            context = _attend_to_windows(turned_BL3ND, places)
        else:
            seed = torch.randint(2**31 - 1, (1,), device=x_BLH.device)
            context = _AttendTurned.apply(turned_BL3ND, places.mask, seed, prob)
        return self.dropout(self.output(context.reshape(B, L, -1)), masks)


def _attend_to_windows(qkv_BL3ND: Tensor, places: Places) -> Tensor:
    """Return local attention (B * L, N, D); the padding of a row is a sequence of its own."""
    B, L = qkv_BL3ND.shape[:2]
    ends = torch.arange(0, B * L + 1, L, device=qkv_BL3ND.device)
    if places.lengths_B is not None:
        inside = torch.stack([ends[:-1], ends[:-1] + places.lengths_B], dim=1)
        ends = torch.cat([inside.flatten(), ends[-1:]])
    q, k, v = qkv_BL3ND.flatten(0, 1).unbind(1)
    ends, window = ends.int(), (places.block, places.block)
    return cast(Tensor, varlen_attn(q, k, v, ends, ends, L, L, window_size=window))


class TritonPreNormLayer(PreNormLayer):
    """ModernBERT's layer for a CUDA device with Triton; all its modules are called."""

    def __init__(self, config: ModernBertConfig, number: int):
        super().__init__(config, number)
        self.attention = TritonRotaryAttention(config)


def _choose_rows(places: RelativePlaces, length: int, dtype: torch.dtype) -> Tensor:
    """Return 1 where a distance has a row of the table, else 0 (T, R)."""
    R, padded, device = len(places.table_RH), pad_length(length), places.rows_T.device
    distance_T = torch.arange(1 - padded, padded + 1, device=device)
    row_T = places.rows_T[(distance_T + length - 1).clamp(0, 2 * length - 2)]
    return (row_T[:, None] == torch.arange(R, device=device)).to(dtype)


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
        out_BLND, sums_BNL = attend(qkv_BL3ND, mask_BNLL, seed, prob, ctx.scale)
        ctx.save_for_backward(x_MH, weight_JH, out_BLND, sums_BNL, qkv_BL3ND, mask_BNLL, seed)
        return out_BLND

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, weight_JH, *attended = ctx.saved_tensors
        B, L = grads[0].shape[:2]
        grad_qkv, bias_B3ND = attend_backward(grads[0].contiguous(), *attended, ctx.prob, ctx.scale)
        grad_MJ = grad_qkv.view(B * L, -1)
        grad_bias_J = bias_B3ND.sum(dim=0).flatten().to(weight_JH.dtype)
        grad_x_BLH = (grad_MJ @ weight_JH).view(B, L, -1)
        return grad_x_BLH, grad_MJ.T @ x_MH, grad_bias_J, None, None, None, None


class _AttendTurned(torch.autograd.Function):
    """Attention of given queries and keys, as `_Attend` has it of hidden states."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, seed: Tensor, prob: float
    ) -> Tensor:
        ctx.prob, ctx.scale = prob, qkv_BL3ND.shape[-1] ** -0.5
        out_BLND, sums_BNL = attend(qkv_BL3ND, mask_BNLL, seed, prob, ctx.scale)
        ctx.save_for_backward(out_BLND, sums_BNL, qkv_BL3ND, mask_BNLL, seed)
        return out_BLND

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_BLND = grads[0].contiguous()
        grad_qkv, _ = attend_backward(grad_BLND, *ctx.saved_tensors, ctx.prob, ctx.scale)
        return grad_qkv, None, None, None


class _AttendByDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_BLND: Tensor,
        kv_BL2ND: Tensor,
        distances_T2ND: Tensor,
        mask_BNLL: Tensor | None,
        seed: Tensor,
        prob: float,
    ) -> Tensor:
        ctx.prob, ctx.scale = prob, (3 * q_BLND.shape[3]) ** -0.5
        given = q_BLND, kv_BL2ND, distances_T2ND, mask_BNLL, seed
        out_BLND, sums_BNL = attend_by_distance(*given, prob, ctx.scale)
        ctx.save_for_backward(out_BLND, sums_BNL, *given)
        return out_BLND

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_BLND, scale = grads[0].contiguous(), ctx.scale
        _, _, q_BLND, kv_BL2ND, distances_T2ND, *_ = ctx.saved_tensors
        probs, grad_scores = attend_back_to_scores(grad_BLND, *ctx.saved_tensors, ctx.prob, scale)
        grad_q = attend_back_to_queries(grad_scores, kv_BL2ND, distances_T2ND, scale)
        grad_kv = attend_back_to_keys(grad_BLND, probs, grad_scores, q_BLND, distances_T2ND, scale)
        sums = attend_back_to_distances(grad_scores, q_BLND, kv_BL2ND, scale)
        grad_distances = join_distances(sums).to(distances_T2ND.dtype)
        return grad_q, grad_kv, grad_distances, None, None, None


class _Gelu(torch.autograd.Function):
    """GELU that keeps its slope instead of its argument."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        out, slope = gelu(h)
        ctx.save_for_backward(slope)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope


class _AddNorm(torch.autograd.Function):
    """norm(x + dropout(y + bias)), which keeps x, y and two statistics a row."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BLH: Tensor,
        y_BLH: Tensor,
        bias_H: Tensor,
        weight_H: Tensor,
        shift_H: Tensor,
        seed: Tensor,
        prob: float,
        eps: float,
    ) -> Tensor:
        x_MH, y_MH = x_BLH.reshape(-1, len(bias_H)), y_BLH.reshape(-1, len(bias_H))
        ctx.prob = prob
        out_MH, statistics_M2 = add_norm(x_MH, y_MH, bias_H, weight_H, shift_H, seed, prob, eps)
        ctx.save_for_backward(x_MH, y_MH, bias_H, weight_H, seed, statistics_M2)
        return out_MH.view_as(x_BLH)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, *others = ctx.saved_tensors
        grad_x_MH, grad_y_MH, sums_P3H = add_norm_backward(
            grads[0].reshape(x_MH.shape).contiguous(), x_MH, *others, ctx.prob
        )
        grad_bias_H, grad_weight_H, grad_shift_H = sums_P3H.sum(dim=0)
        grad_x = grad_x_MH.view(grads[0].shape)
        grad_y = grad_y_MH.view(grads[0].shape) if ctx.prob > 0 else grad_x
        of_bias = grad_bias_H.to(others[1].dtype)
        return grad_x, grad_y, of_bias, grad_weight_H, grad_shift_H, None, None, None
