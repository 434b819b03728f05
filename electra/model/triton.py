"""Triton kernels for a GPU, and ELECTRA's layer of them: attention, products with GELU inside.

Each kernel is a torch operation with a plain definition in `electra.py`.
tests/test_triton_layer.py runs them in Triton's interpreter and compiles them for compute
capability 9.0; results/gpu/small-triton.md has their times.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head, M = B * L, H hidden
size, F feed-forward size, R blocks of rows, X = F + H.
"""

# mypy: allow-untyped-defs
# A kernel's arguments are pointers and numbers.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.model.electra import PostNormLayer
from electra.model.parts import DropoutMasks, Linear

LONGEST = 128
"""Longest rows of `attend`, positions: the scores of some rows stay in registers."""
ROWS, ROWS_BACKWARD = 64, 32
"""Rows of scores that a program of attention holds at a time; more do not fit into its registers
(seen in the cubin for compute capability 9.0)."""
NUM_WARPS = 8
BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 32
"""Blocks of the products: rows, columns and inner size."""


@triton.jit
def _load_head(start, rows, columns, stride, length):
    return tl.load(
        start + rows[:, None] * stride + columns[None, :], mask=rows[:, None] < length, other=0.0
    )


@triton.jit
def _probabilities(
    q, k, mask, rows, columns, L: tl.constexpr, mask_row, mask_column, scale, MASKED: tl.constexpr
):
    """Return the attention probabilities of some rows of one head, float32."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    inside = columns[None, :] < L
    if MASKED:
        places = rows[:, None] * mask_row + columns[None, :] * mask_column
        added = tl.load(mask + places, mask=(rows[:, None] < L) & inside, other=0.0)
        scores += added.to(tl.float32)
    scores = tl.where(inside, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _halves(words):
    words = words.to(tl.uint32, bitcast=True)
    return tl.join(words & 0xFFFF, words >> 16)


@triton.jit
def _dropout_scale(seed, head, rows, num_dropped, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Return dropout's factors, 0 or 1 / (1 - prob), of some rows of one head."""
    eighths = tl.arange(0, BLOCK // 8)
    places = (head * BLOCK + rows[:, None]) * (BLOCK // 8) + eighths[None, :]
    a, b, c, d = tl.randint4x(tl.load(seed), places, n_rounds=7)  # two numbers of 16 bits each
    numbers = tl.join(tl.join(_halves(a), _halves(b)), tl.join(_halves(c), _halves(d)))
    kept = tl.reshape(numbers, (ROWS, BLOCK)) >= num_dropped
    return tl.where(kept, 65536.0 / (65536 - num_dropped), 0.0)


@triton.jit
def _attend(
    qkv, mask, seed, out, N, scale, num_dropped, mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch, number = head // N, head % N
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns, deep = tl.arange(0, BLOCK), tl.arange(0, D)
    start = qkv + batch.to(tl.int64) * L * 3 * N * D + number * D
    q = _load_head(start, rows, deep, 3 * N * D, L)
    k = _load_head(start + N * D, columns, deep, 3 * N * D, L)
    v = _load_head(start + 2 * N * D, columns, deep, 3 * N * D, L)
    probs = _probabilities(
        q, k, mask + batch * mask_batch, rows, columns, L, mask_row, mask_column, scale, MASKED
    )
    if DROPS:
        probs *= _dropout_scale(seed, head, rows, num_dropped, BLOCK, ROWS)
    context = tl.dot(probs.to(v.dtype), v, input_precision="ieee")
    places = (batch.to(tl.int64) * L + rows[:, None]) * N * D + number * D + deep[None, :]
    tl.store(out + places, context.to(out.dtype.element_ty), mask=rows[:, None] < L)


@triton.jit
def _attend_backward(
    grad, qkv, mask, seed, grad_qkv, sums, N, scale, num_dropped,
    mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch, number = head // N, head % N
    columns, deep = tl.arange(0, BLOCK), tl.arange(0, D)
    first = batch.to(tl.int64) * L * 3 * N * D + number * D
    k = _load_head(qkv + first + N * D, columns, deep, 3 * N * D, L)
    v = _load_head(qkv + first + 2 * N * D, columns, deep, 3 * N * D, L)
    dtype = grad_qkv.dtype.element_ty
    sum_q = tl.zeros((D,), dtype=tl.float32)
    grad_k = tl.zeros((BLOCK, D), dtype=tl.float32)
    grad_v = tl.zeros((BLOCK, D), dtype=tl.float32)
    for low in range(0, BLOCK, ROWS):
        rows = low + tl.arange(0, ROWS)
        q = _load_head(qkv + first, rows, deep, 3 * N * D, L)
        of_grad = grad + batch.to(tl.int64) * L * N * D + number * D
        g = _load_head(of_grad, rows, deep, N * D, L)
        probs = _probabilities(
            q, k, mask + batch * mask_batch, rows, columns, L, mask_row, mask_column, scale, MASKED
        )
        grad_probs = tl.dot(g, tl.trans(v), input_precision="ieee")
        dropped = probs
        if DROPS:
            kept = _dropout_scale(seed, head, rows, num_dropped, BLOCK, ROWS)
            dropped = probs * kept
            grad_probs *= kept
        grad_v = tl.dot(tl.trans(dropped.to(g.dtype)), g, grad_v, input_precision="ieee")
        grad_scores = probs * (grad_probs - tl.sum(grad_probs * probs, axis=1)[:, None]) * scale
        grad_scores = grad_scores.to(q.dtype)
        grad_q = tl.dot(grad_scores, k, input_precision="ieee")
        grad_k = tl.dot(tl.trans(grad_scores), q, grad_k, input_precision="ieee")
        places = first + rows[:, None] * 3 * N * D + deep[None, :]
        tl.store(grad_qkv + places, grad_q.to(dtype), mask=rows[:, None] < L)
        sum_q += tl.sum(tl.where(rows[:, None] < L, grad_q, 0.0), axis=0)
    places = first + columns[:, None] * 3 * N * D + deep[None, :]
    inside = columns[:, None] < L
    tl.store(grad_qkv + places + N * D, grad_k.to(dtype), mask=inside)
    tl.store(grad_qkv + places + 2 * N * D, grad_v.to(dtype), mask=inside)
    # Outside the rows the gradients of keys and values are 0.
    of_head = sums + batch * 3 * N * D + number * D + deep
    tl.store(of_head, sum_q)
    tl.store(of_head + N * D, tl.sum(grad_k, axis=0))
    tl.store(of_head + 2 * N * D, tl.sum(grad_v, axis=0))


@triton.jit
def _load_tile(start, rows, columns, row_stride, column_stride, num_rows, num_columns):
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    places = rows[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(start + places, mask=inside, other=0.0)


@triton.jit
def _multiply(
    x, weight, rows, columns, M, F, H: tl.constexpr, deep_stride, column_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return a block of the product of x (M, H) and weight (H, F) with these strides, float32."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for low in range(0, H, BLOCK_K):
        deep = low + tl.arange(0, BLOCK_K)
        left = _load_tile(x, rows, deep, H, 1, M, H)
        right = _load_tile(weight, deep, columns, deep_stride, column_stride, H, F)
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def _linear_gelu(
    x, weight, bias, inner, out, M, F, H: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = _multiply(x, weight, rows, columns, M, F, H, 1, H, BLOCK_M, BLOCK_N, BLOCK_K)
    total += tl.load(bias + columns, mask=columns < F, other=0.0).to(tl.float32)[None, :]
    places = rows[:, None] * F + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < F)
    rounded = total.to(inner.dtype.element_ty)
    tl.store(inner + places, rounded, mask=inside)
    h = rounded.to(tl.float32)
    gelu = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    tl.store(out + places, gelu.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _linear_gelu_backward(
    grad, weight, inner, grad_inner, sums, M, F, H: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = _multiply(grad, weight, rows, columns, M, F, H, F, 1, BLOCK_M, BLOCK_N, BLOCK_K)
    places = rows[:, None] * F + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < F)
    h = tl.load(inner + places, mask=inside, other=0.0).to(tl.float32)
    slope = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476))
    slope += h * tl.exp(-0.5 * h * h) * 0.3989422804014327
    total *= slope
    tl.store(grad_inner + places, total.to(grad_inner.dtype.element_ty), mask=inside)
    # Outside the rows the products are 0.
    of_rows = sums + tl.program_id(0) * (F + H)
    tl.store(of_rows + columns, tl.sum(total, axis=0), mask=columns < F)
    if tl.program_id(1) == 0:
        for low in range(0, H, BLOCK_K):
            deep = low + tl.arange(0, BLOCK_K)
            left = _load_tile(grad, rows, deep, H, 1, M, H)
            tl.store(of_rows + F + deep, tl.sum(left.to(tl.float32), axis=0), mask=deep < H)


def can_attend(length: int, head_size: int) -> bool:
    """Return whether `attend` takes rows of this length and heads of this size."""
    is_power = head_size & (head_size - 1) == 0
    return length <= LONGEST and is_power and 16 <= head_size <= 128


@torch.library.custom_op("electra::attend", mutates_args=())
def attend(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, seed: Tensor, prob: float, scale: float
) -> Tensor:
    """Return the attention of short rows (B, L, N, D).

    Args:
        qkv_BL3ND: Query, key and value, contiguous; `can_attend` says of which sizes.
        mask_BNLL: Added to the scores, alike for all heads; broadcasts to (B, 1, L, L).
        seed: Seed of the dropout, int64, one element.
        prob: Probability with which dropout zeroes an attention probability, to 1 / 131072.
        scale: Factor of the scores.
    """
    B, L, _, N, D = qkv_BL3ND.shape
    out = qkv_BL3ND.new_empty(B, L, N, D)
    mask, numbers, constants = _describe(qkv_BL3ND, mask_BNLL, prob, ROWS)
    grid = (B * N, triton.cdiv(L, constants["ROWS"]))
    with torch.cuda.device_of(qkv_BL3ND):
        _attend[grid](qkv_BL3ND, mask, seed, out, N, scale, *numbers, **constants)
    return out


@attend.register_fake
def _(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, seed: Tensor, prob: float, scale: float
) -> Tensor:
    B, L, _, N, D = qkv_BL3ND.shape
    return qkv_BL3ND.new_empty(B, L, N, D)


@torch.library.custom_op("electra::attend_backward", mutates_args=())
def attend_backward(
    grad_BLND: Tensor,
    qkv_BL3ND: Tensor,
    mask_BNLL: Tensor | None,
    seed: Tensor,
    prob: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of query, key and value (B, L, 3, N, D), and its sums (B, 3, N, D).

    `grad_BLND` is the contiguous gradient of what `attend` returned for the other arguments.
    """
    B, _, _, N, D = qkv_BL3ND.shape
    grad_qkv = torch.empty_like(qkv_BL3ND)
    sums_B3ND = qkv_BL3ND.new_empty(B, 3, N, D, dtype=torch.float32)
    mask, numbers, constants = _describe(qkv_BL3ND, mask_BNLL, prob, ROWS_BACKWARD)
    with torch.cuda.device_of(qkv_BL3ND):
        _attend_backward[(B * N,)](
            *(grad_BLND, qkv_BL3ND, mask, seed, grad_qkv, sums_B3ND),
            *(N, scale, *numbers),
            **constants,
        )
    return grad_qkv, sums_B3ND


@attend_backward.register_fake
def _(
    grad_BLND: Tensor,
    qkv_BL3ND: Tensor,
    mask_BNLL: Tensor | None,
    seed: Tensor,
    prob: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    B, _, _, N, D = qkv_BL3ND.shape
    sums_B3ND = qkv_BL3ND.new_empty(B, 3, N, D, dtype=torch.float32)
    return torch.empty_like(qkv_BL3ND), sums_B3ND


def _describe(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, prob: float, rows: int
) -> tuple[Tensor, tuple[int, ...], dict[str, int]]:
    """Return the mask of a kernel of attention, its numbers (dropout, strides) and constants."""
    B, L, _, _, D = qkv_BL3ND.shape
    mask = qkv_BL3ND if mask_BNLL is None else mask_BNLL.expand(B, 1, L, L)
    strides = (0, 0, 0) if mask_BNLL is None else (mask.stride(0), mask.stride(2), mask.stride(3))
    block = max(16, triton.next_power_of_2(L))
    constants = {"L": L, "D": D, "BLOCK": block, "ROWS": min(block, rows)}
    flags = {"MASKED": int(mask_BNLL is not None), "DROPS": int(prob > 0)}
    numbers = (round(65536 * prob), *strides)
    return mask, numbers, constants | flags | {"num_warps": NUM_WARPS}


@torch.library.custom_op("electra::linear_gelu", mutates_args=())
def linear_gelu(x_MH: Tensor, weight_FH: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    """Return h = x weight^T + bias and gelu(h), both (M, F); all tensors are contiguous."""
    inner_MF = x_MH.new_empty(len(x_MH), len(weight_FH))
    out_MF = torch.empty_like(inner_MF)
    M, F, H = *inner_MF.shape, x_MH.shape[1]
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(F, BLOCK_N))
    with torch.cuda.device_of(x_MH):
        _linear_gelu[grid](
            x_MH, weight_FH, bias_F, inner_MF, out_MF, M, F, H,
            BLOCK_M, BLOCK_N, BLOCK_K, num_warps=NUM_WARPS, num_stages=3,
        )  # fmt: skip
    return inner_MF, out_MF


@linear_gelu.register_fake
def _(x_MH: Tensor, weight_FH: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    inner_MF = x_MH.new_empty(len(x_MH), len(weight_FH))
    return inner_MF, torch.empty_like(inner_MF)


@torch.library.custom_op("electra::linear_gelu_backward", mutates_args=())
def linear_gelu_backward(
    grad_MH: Tensor, weight_HF: Tensor, inner_MF: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of h in gelu(h) weight^T (M, F), and sums over blocks of rows (R, F + H).

    The sums are those of this gradient, and beside them those of `grad_MH`, the gradient of the
    product. All tensors are contiguous; `inner_MF` is h.
    """
    grad_inner_MF = torch.empty_like(inner_MF)
    M, F, H = *inner_MF.shape, grad_MH.shape[1]
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(F, BLOCK_N))
    sums_RX = grad_MH.new_empty(grid[0], F + H, dtype=torch.float32)
    with torch.cuda.device_of(grad_MH):
        _linear_gelu_backward[grid](
            grad_MH, weight_HF, inner_MF, grad_inner_MF, sums_RX, M, F, H,
            BLOCK_M, BLOCK_N, BLOCK_K, num_warps=NUM_WARPS, num_stages=3,
        )  # fmt: skip
    return grad_inner_MF, sums_RX


@linear_gelu_backward.register_fake
def _(grad_MH: Tensor, weight_HF: Tensor, inner_MF: Tensor) -> tuple[Tensor, Tensor]:
    width = inner_MF.shape[1] + grad_MH.shape[1]
    sums_RX = inner_MF.new_empty(-(-len(inner_MF) // BLOCK_M), width, dtype=torch.float32)
    return torch.empty_like(inner_MF), sums_RX


class TritonPostNormLayer(PostNormLayer):
    """The layer for a CUDA device with Triton.

    Parameters and their names are those of `PostNormLayer`. `attention`, `intermediate` and
    `output` are not called, their parameters are read: hooks on them never fire. Rows longer than
    `LONGEST` take torch's attention.
    """

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return what `PostNormLayer.forward` returns."""
        B, L, H = x_BLH.shape
        attention = self.attention
        if can_attend(L, H // attention.num_heads):
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
        attended: Tensor = attend(qkv_BL3ND, mask_BNLL, seed, prob, ctx.scale)
        return attended

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, weight_JH, *attended = ctx.saved_tensors
        B, L = grads[0].shape[:2]
        grad_qkv, sums_B3ND = attend_backward(grads[0].contiguous(), *attended, ctx.prob, ctx.scale)
        grad_MJ = grad_qkv.view(B * L, -1)
        grad_bias_J = sums_B3ND.sum(dim=0).flatten().to(weight_JH.dtype)
        grad_x_BLH = (grad_MJ @ weight_JH).view(B, L, -1)
        return grad_x_BLH, grad_MJ.T @ x_MH, grad_bias_J, None, None, None, None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, in_FH: Tensor, in_F: Tensor, out_HF: Tensor, out_H: Tensor
    ) -> Tensor:
        inner_MF, gelu_MF = linear_gelu(x_MH, in_FH, in_F)
        ctx.save_for_backward(x_MH, in_FH, out_HF, inner_MF, gelu_MF)
        return torch.addmm(out_H, gelu_MF, out_HF.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x_MH, in_FH, out_HF, inner_MF, gelu_MF = ctx.saved_tensors
        grad_MH = grads[0].contiguous()
        grad_inner_MF, sums_RX = linear_gelu_backward(grad_MH, out_HF, inner_MF)
        sums_X = sums_RX.sum(dim=0).to(in_FH.dtype)
        return (
            grad_inner_MF @ in_FH,
            grad_inner_MF.T @ x_MH,
            sums_X[: len(in_FH)],
            grad_MH.T @ gelu_MF,
            sums_X[len(in_FH) :],
        )
