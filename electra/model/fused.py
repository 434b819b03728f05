"""Layers written out for autograd: what the definitions compute, faster on a CPU.

On a CPU much of a plain layer's time goes into operations between the matrix products: copies,
casts, masks, one pass over memory each. Here forward and backward of attention and feed-forward are
written out with as few passes as torch's operations allow: scales are applied inside the products,
residuals in the accumulators of dropout and of the backward products, dropout multiplies by a slice
of a mask drawn once per pass, and gradients of query, key and value are written where the next
product reads them. docs/PERFORMANCE.md has what this gives.

The classes have the parameters of the definitions under the same names. Losses agree with them to
1e-6 relative in float32 and gradients to 1e-5 of their largest element; in bfloat16 both are as far
from float32 as each other. Sub-modules are not called, their parameters are read: forward hooks on
them never fire, and what replaces one (an adapter) takes no part. Whoever needs either builds the
definition.

Shape suffixes: B rows of the batch, L positions, M = B * L, H hidden size, N heads, D size of a
head, Z = B * N heads, times the blocks where attention is in blocks, Q queries and X keys of one of
them, J = 3H (query, key and value), F feed-forward size, G = 2F; 3 stands for query, key and value.
R rows of a table of distances, of which there are T = 2 L - 1.
In functions of any matrix: I and O input and output size of a linear map, I, J, K rows, inner and
columns of a product. A leading d: the gradient of the loss with respect to the tensor named after
it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.config import EncoderConfig
from electra.model.deberta import DisentangledLayer, RelativePlaces
from electra.model.electra import PostNormLayer
from electra.model.modernbert import Places, PreNormLayer
from electra.model.parts import Dropout, DropoutMasks, Linear

Gradients = tuple[Tensor | None, ...]


class Kept(NamedTuple):
    """What dropout keeps of a tensor."""

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
        return _apply_post_norm(self, x_BLH, mask_BNLL, masks)


class FusedDisentangledLayer(DisentangledLayer):
    """`DisentangledLayer` for training and evaluation on a CPU."""

    @classmethod
    def mask_sizes(cls, config: EncoderConfig, num_rows: int, length: int) -> tuple[int, ...]:
        """Return the sizes of the dropout masks of a pass; the last is that of the table."""
        widths = config.hidden_size, config.num_attention_heads * length
        of_rows = (num_rows * length * width for width in widths)
        return *of_rows, 2 * config.position_buckets * config.hidden_size

    def forward(  # type: ignore[override]
        self,
        x_BLH: Tensor,
        places: RelativePlaces,
        masks: DropoutMasks | None,
        queries_BLH: Tensor | None = None,
    ) -> Tensor:
        """Return what `DisentangledLayer.forward` returns; without `masks` nothing is dropped."""
        table_RH = places.table_RH
        kept = Kept.draw(self.attention.relative_dropout, tuple(table_RH.shape), masks)
        if kept.mask is not None:
            table_RH = table_RH * kept.mask * kept.scale
        more = queries_BLH, table_RH, places.rows_T
        return _apply_post_norm(self, x_BLH, places.mask, masks, *more)


def _apply_post_norm(
    layer: PostNormLayer,
    x_BLH: Tensor,
    mask_BNLL: Tensor | None,
    masks: DropoutMasks | None,
    queries_BLH: Tensor | None = None,
    table_RH: Tensor | None = None,
    rows_T: Tensor | None = None,
) -> Tensor:
    """Return a layer's states; queries of `DisentangledLayer`, table, rows of `RelativePlaces`."""
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


class Distances(NamedTuple):
    """Queries and keys of all distances between two positions, in disentangled attention.

    What position i gives j by their distance is a column of the product of i with all keys, one
    further to the right for each j: all of them are a strided view of the products. No score is
    gathered, and no gradient scattered, but those of the T distances. A band of b positions reads
    W = L + b - 1 of the distances, and products are computed a band at a time. Z = N * B, not
    B * N; P = B * b.
    """

    q_NTD: Tensor
    """From distance -(L - 1) to L - 1, query less key."""
    k_NTD: Tensor
    """From distance L - 1 to -(L - 1)."""

    @property
    def scale(self) -> float:
        """Factor of the three scores together."""
        return float((3 * self.k_NTD.shape[2]) ** -0.5)

    def score(self, q_ZLD: Tensor, k_ZLD: Tensor) -> Tensor:
        """Return scale * (q k^T + the two scores by distance), (Z, L, L)."""
        by_query_ZLL = q_ZLD.new_empty(*q_ZLD.shape[:2], q_ZLD.shape[1])
        for rows, columns in _bands(q_ZLD.shape[1]):
            by_query_ZLL[:, rows].copy_(self._multiply(k_ZLD, rows, self.q_NTD[:, columns]))
        # Transposed all at once: to add transposed bands, torch has no vectorised loop.
        scores_ZLL = torch.baddbmm(
            by_query_ZLL.transpose(1, 2), q_ZLD, k_ZLD.transpose(1, 2), alpha=self.scale
        )
        for rows, columns in _bands(q_ZLD.shape[1]):
            scores_ZLL[:, rows].add_(self._multiply(q_ZLD, rows, self.k_NTD[:, columns]))
        return scores_ZLL

    def _multiply(self, x_ZLD: Tensor, rows: slice, other_NWD: Tensor) -> Tensor:
        """Return the scores (Z, b, L) of a band."""
        x_NPD = _cut(x_ZLD, rows, len(other_NWD))
        return _skew(product(x_NPD, other_NWD.transpose(1, 2), self.scale), x_ZLD.shape[1])

    def score_back(
        self, dscores_ZLL: Tensor, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add to the gradients of query and key; return those of `q_NTD` and `k_NTD`, float32."""
        (N, T, D), (Z, L, _) = self.k_NTD.shape, dscores_ZLL.shape
        found = []
        for x_ZLD, dx_ZLD, other_NTD, d_ZLL in (
            (k, dk, self.q_NTD, dscores_ZLL.transpose(1, 2).contiguous()),
            (q, dq, self.k_NTD, dscores_ZLL),
        ):
            dother_NTD = torch.zeros(N, T, D)
            for rows, columns in _bands(L):
                other_NWD, x_NPD = other_NTD[:, columns], _cut(x_ZLD, rows, N)
                # What no pair reads stays zero.
                d_NPW = d_ZLL.new_zeros(N, x_NPD.shape[1], other_NWD.shape[1])
                _skew(d_NPW, L).copy_(d_ZLL[:, rows])
                dx_ZLD[:, rows] += product(d_NPW, other_NWD, self.scale).view(Z, -1, D)
                dother_NTD[:, columns] += product(d_NPW.transpose(1, 2), x_NPD, self.scale)
            found.append(dother_NTD)
        return found[0], found[1]


_BAND = 64
"""Positions of a band: fewer make small products, more compute distances that none reads."""


def _bands(length: int) -> Iterator[tuple[slice, slice]]:
    """Yield the positions of each band, and the columns of the distances that they read."""
    for start in range(0, length, _BAND):
        stop = min(start + _BAND, length)
        yield slice(start, stop), slice(length - stop, 2 * length - 1 - start)


def _cut(x_ZLD: Tensor, rows: slice, num_heads: int) -> Tensor:
    """Return the positions of a band, of each head those of all rows (N, B * b, D)."""
    return x_ZLD[:, rows].reshape(num_heads, -1, x_ZLD.shape[2])


def _skew(products: Tensor, length: int) -> Tensor:
    """Return the view (Z, b, L) of (N, B * b, W): row i, column j has column j - i + b - 1."""
    width = products.shape[2]
    band = width - length + 1
    shape = products.numel() // (band * width), band, length
    return products.as_strided(shape, (band * width, width - 1, 1), band - 1)


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
        context_ZLD, probs_ZLL = attend(q, k, v, mask_BNLL, size, of_probs, distances)
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
        *_, of_distances = attend_back(
            *(dcontext_ZLD, *qkv_3ZLD.unbind(0), probs_ZLL, of_probs, *dqkv_3ZLD.unbind(0)),
            distances=distances,
        )
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
        if of_distances is not None:
            dqk_RJ = _gather_rows(*of_distances, rows_T, len(table_RH)).to(table_RH.dtype)
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
        W_qkv, b_qkv, W_o, b_o = (_cast(each, x_BLH.dtype) for each in parameters)
        assert W_qkv is not None
        assert W_o is not None
        x_MH = x_BLH.reshape(-1, H)
        normed_MH = x_MH if normed_BLH is None else normed_BLH.reshape(-1, H)
        mapped_3BNLD = map_rows(normed_MH, W_qkv, b_qkv).view(B, L, 3, N, D).permute(2, 0, 3, 1, 4)
        qkv_3BNLD = torch.empty((3, B, N, L, D), dtype=x_BLH.dtype)
        _rotate(mapped_3BNLD[:2], places, 1, qkv_3BNLD[:2])
        qkv_3BNLD[2].copy_(mapped_3BNLD[2])
        context, probs_ZQX = attend(*_arrange(qkv_3BNLD, places), places.mask, (B, N), of_probs)
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
        dq, dk, dv, _ = attend_back(dcontext_ZQD, *_arrange(qkv_3BNLD, places), probs_ZQX, of_probs)
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
        W_i, b_i, W_f, b_f = (_cast(each, x_MH.dtype) for each in parameters)
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


def attend(
    q_ZQD: Tensor,
    k_ZXD: Tensor,
    v_ZXD: Tensor,
    mask: Tensor | None,
    size: tuple[int, int],
    of_probs: Kept,
    distances: Distances | None = None,
) -> tuple[Tensor, Tensor]:
    """Return dropout(softmax(q k^T / sqrt(D) + mask)) v (Z, Q, D), and the softmax (Z, Q, X).

    The mask broadcasts to (*size, ..., Q, X), where `size` is (B, N), or with distances (N, B).
    """
    if distances is None:
        scores_ZQX = product(q_ZQD, k_ZXD.transpose(1, 2), q_ZQD.shape[2] ** -0.5)
    else:
        scores_ZQX = distances.score(q_ZQD, k_ZXD)
    if mask is not None:
        scores_ZQX.view(*size, *mask.shape[2:-2], *scores_ZQX.shape[1:]).add_(mask)
    probs_ZQX = scores_ZQX.softmax(dim=-1)
    return product(of_probs.drop(probs_ZQX), v_ZXD, of_probs.scale), probs_ZQX


def attend_back(
    dcontext_ZQD: Tensor,
    q_ZQD: Tensor,
    k_ZXD: Tensor,
    v_ZXD: Tensor,
    probs_ZQX: Tensor,
    of_probs: Kept,
    *out: Tensor,
    distances: Distances | None = None,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Return the gradients of query, key and value, written to `out` if that is given.

    The last result is that of the distances' queries and keys, if there are any.
    """
    dq, dk, dv = out or (None, None, None)
    scale_scores = q_ZQD.shape[2] ** -0.5 if distances is None else distances.scale
    scale = of_probs.scale
    dv = product(of_probs.drop(probs_ZQX).transpose(1, 2), dcontext_ZQD, scale, dv)
    dprobs_ZQX = of_probs.drop_(product(dcontext_ZQD, v_ZXD.transpose(1, 2), scale))
    dscores_ZQX = torch._softmax_backward_data(dprobs_ZQX, probs_ZQX, -1, probs_ZQX.dtype)
    dq = product(dscores_ZQX, k_ZXD, scale_scores, dq)
    dk = product(dscores_ZQX.transpose(1, 2), q_ZQD, scale_scores, dk)
    back = distances and distances.score_back(dscores_ZQX, q_ZQD, k_ZXD, dq, dk)
    return dq, dk, dv, back


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


def _cast(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameter is None else parameter.to(dtype)


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


_HAS_ONEDNN = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
