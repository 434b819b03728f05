"""Triton kernels for a GPU: attention for short rows, and products with GELU inside.

Each is a torch operation with a plain definition in `layer.py`; `triton_layer.py` puts them
together. No GPU has run them yet. tests/test_triton_layer.py runs them in Triton's interpreter and
compiles them for compute capability 9.0.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head, M = B * L, H hidden
size, F feed-forward size, R blocks of rows.
"""

# mypy: allow-untyped-defs
# A kernel's arguments are pointers and numbers.

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 128
"""Longest rows of `attend`, positions: a head's scores stay in the registers of one program."""
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
    q, k, mask, rows, L: tl.constexpr, mask_row, mask_column, scale, MASKED: tl.constexpr
):
    """Return the attention probabilities of one head, float32."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    columns = rows
    inside = columns[None, :] < L
    if MASKED:
        places = rows[:, None] * mask_row + columns[None, :] * mask_column
        scores += tl.load(mask + places, mask=(rows[:, None] < L) & inside, other=0.0).to(
            tl.float32
        )
    scores = tl.where(inside, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _dropout_scale(seed, head, rows, L: tl.constexpr, prob):
    """Return what dropout multiplies the probabilities of one head by: 0 or 1 / (1 - prob)."""
    places = (head * L + rows[:, None]) * L + rows[None, :]
    kept = tl.rand(tl.load(seed), places) >= prob
    return tl.where(kept, 1.0 / (1.0 - prob), 0.0)


@triton.jit
def _attend(
    qkv, mask, seed, out, N, scale, prob, mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch, number = head // N, head % N
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, D)
    start = qkv + batch.to(tl.int64) * L * 3 * N * D + number * D
    q = _load_head(start, rows, columns, 3 * N * D, L)
    k = _load_head(start + N * D, rows, columns, 3 * N * D, L)
    v = _load_head(start + 2 * N * D, rows, columns, 3 * N * D, L)
    probs = _probabilities(
        q, k, mask + batch * mask_batch, rows, L, mask_row, mask_column, scale, MASKED
    )
    if DROPS:
        probs *= _dropout_scale(seed, head, rows, L, prob)
    context = tl.dot(probs.to(v.dtype), v, input_precision="ieee")
    places = (batch.to(tl.int64) * L + rows[:, None]) * N * D + number * D + columns[None, :]
    tl.store(out + places, context.to(out.dtype.element_ty), mask=rows[:, None] < L)


@triton.jit
def _attend_backward(
    grad, qkv, mask, seed, grad_qkv, N, scale, prob, mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch, number = head // N, head % N
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, D)
    first = batch.to(tl.int64) * L * 3 * N * D + number * D
    q = _load_head(qkv + first, rows, columns, 3 * N * D, L)
    k = _load_head(qkv + first + N * D, rows, columns, 3 * N * D, L)
    v = _load_head(qkv + first + 2 * N * D, rows, columns, 3 * N * D, L)
    g = _load_head(grad + batch.to(tl.int64) * L * N * D + number * D, rows, columns, N * D, L)
    probs = _probabilities(
        q, k, mask + batch * mask_batch, rows, L, mask_row, mask_column, scale, MASKED
    )
    grad_probs = tl.dot(g, tl.trans(v), input_precision="ieee")
    dropped = probs
    if DROPS:
        kept = _dropout_scale(seed, head, rows, L, prob)
        dropped = probs * kept
        grad_probs *= kept
    grad_v = tl.dot(tl.trans(dropped.to(g.dtype)), g, input_precision="ieee")
    grad_scores = probs * (grad_probs - tl.sum(grad_probs * probs, axis=1)[:, None]) * scale
    grad_scores = grad_scores.to(q.dtype)
    grad_q = tl.dot(grad_scores, k, input_precision="ieee")
    grad_k = tl.dot(tl.trans(grad_scores), q, input_precision="ieee")
    places = first + rows[:, None] * 3 * N * D + columns[None, :]
    inside = rows[:, None] < L
    dtype = grad_qkv.dtype.element_ty
    tl.store(grad_qkv + places, grad_q.to(dtype), mask=inside)
    tl.store(grad_qkv + places + N * D, grad_k.to(dtype), mask=inside)
    tl.store(grad_qkv + places + 2 * N * D, grad_v.to(dtype), mask=inside)


@triton.jit
def _linear_gelu(
    x, weight, bias, inner, out, M, F, H: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for low in range(0, H, BLOCK_K):
        deep = low + tl.arange(0, BLOCK_K)
        left = tl.load(
            x + rows[:, None] * H + deep[None, :],
            mask=(rows[:, None] < M) & (deep[None, :] < H),
            other=0.0,
        )
        right = tl.load(
            weight + columns[None, :] * H + deep[:, None],
            mask=(columns[None, :] < F) & (deep[:, None] < H),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
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
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for low in range(0, H, BLOCK_K):
        deep = low + tl.arange(0, BLOCK_K)
        left = tl.load(
            grad + rows[:, None] * H + deep[None, :],
            mask=(rows[:, None] < M) & (deep[None, :] < H),
            other=0.0,
        )
        right = tl.load(
            weight + deep[:, None] * F + columns[None, :],
            mask=(deep[:, None] < H) & (columns[None, :] < F),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    places = rows[:, None] * F + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < F)
    h = tl.load(inner + places, mask=inside, other=0.0).to(tl.float32)
    slope = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476))
    slope += h * tl.exp(-0.5 * h * h) * 0.3989422804014327
    total *= slope
    tl.store(grad_inner + places, total.to(grad_inner.dtype.element_ty), mask=inside)
    # Outside the rows the products are 0.
    tl.store(sums + tl.program_id(0) * F + columns, tl.sum(total, axis=0), mask=columns < F)


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
        mask_BNLL: Added to the scores, alike for all heads; broadcasts to (B, 1, L, L). None:
            nothing is added.
        seed: Seed of the dropout, int64, one element.
        prob: Probability with which dropout zeroes an attention probability.
        scale: Factor of the scores.
    """
    B, L, _, N, D = qkv_BL3ND.shape
    out = qkv_BL3ND.new_empty(B, L, N, D)
    mask, strides, constants = _describe(qkv_BL3ND, mask_BNLL, prob)
    with torch.cuda.device_of(qkv_BL3ND):
        _attend[(B * N,)](qkv_BL3ND, mask, seed, out, N, scale, prob, *strides, **constants)
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
) -> Tensor:
    """Return the gradient of query, key and value side by side (B, L, 3, N, D).

    Args:
        grad_BLND: Gradient of what `attend` returned, contiguous. The others are those of `attend`.
        qkv_BL3ND: As in `attend`.
        mask_BNLL: As in `attend`.
        seed: As in `attend`.
        prob: As in `attend`.
        scale: As in `attend`.
    """
    B, _, _, N, _ = qkv_BL3ND.shape
    grad_qkv = torch.empty_like(qkv_BL3ND)
    mask, strides, constants = _describe(qkv_BL3ND, mask_BNLL, prob)
    with torch.cuda.device_of(qkv_BL3ND):
        _attend_backward[(B * N,)](
            grad_BLND, qkv_BL3ND, mask, seed, grad_qkv, N, scale, prob, *strides, **constants
        )
    return grad_qkv


@attend_backward.register_fake
def _(
    grad_BLND: Tensor,
    qkv_BL3ND: Tensor,
    mask_BNLL: Tensor | None,
    seed: Tensor,
    prob: float,
    scale: float,
) -> Tensor:
    return torch.empty_like(qkv_BL3ND)


def _describe(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, prob: float
) -> tuple[Tensor, tuple[int, ...], dict[str, int]]:
    """Return the mask, its strides along rows of the batch, positions and keys, and constants."""
    B, L, _, _, D = qkv_BL3ND.shape
    mask = qkv_BL3ND if mask_BNLL is None else mask_BNLL.expand(B, 1, L, L)
    strides = (0, 0, 0) if mask_BNLL is None else (mask.stride(0), mask.stride(2), mask.stride(3))
    constants = {"L": L, "D": D, "BLOCK": max(16, triton.next_power_of_2(L))}
    flags = {"MASKED": int(mask_BNLL is not None), "DROPS": int(prob > 0)}
    return mask, strides, constants | flags | {"num_warps": NUM_WARPS}


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
    """Return the gradient of h in gelu(h) weight^T (M, F), and its sums over blocks of rows (R, F).

    Args:
        grad_MH: Gradient of the product. All tensors are contiguous.
        weight_HF: The weight.
        inner_MF: h.
    """
    grad_inner_MF = torch.empty_like(inner_MF)
    M, F, H = *inner_MF.shape, grad_MH.shape[1]
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(F, BLOCK_N))
    sums_RF = torch.empty(grid[0], F, dtype=torch.float32, device=grad_MH.device)
    with torch.cuda.device_of(grad_MH):
        _linear_gelu_backward[grid](
            grad_MH, weight_HF, inner_MF, grad_inner_MF, sums_RF, M, F, H,
            BLOCK_M, BLOCK_N, BLOCK_K, num_warps=NUM_WARPS, num_stages=3,
        )  # fmt: skip
    return grad_inner_MF, sums_RF


@linear_gelu_backward.register_fake
def _(grad_MH: Tensor, weight_HF: Tensor, inner_MF: Tensor) -> tuple[Tensor, Tensor]:
    num_blocks = -(-len(inner_MF) // BLOCK_M)
    return torch.empty_like(inner_MF), inner_MF.new_empty(
        num_blocks, inner_MF.shape[1], dtype=torch.float32
    )
