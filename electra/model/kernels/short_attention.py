"""Attention over short rows as Triton kernels; the definition is `attend` in parts.py.

A whole row of scores is in registers, in base 2: the forward pass keeps log2 of each row's sum, so
that the backward pass needs neither maximum nor sum nor division.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head.
"""

# mypy: allow-untyped-defs
# A kernel's arguments are pointers and numbers.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 128
"""Longest rows of `attend`, positions: the scores of a row stay in registers."""
ROWS, NUM_WARPS, NUM_WARPS_BACKWARD = 64, 4, 8
"""Rows of scores that a program of the forward pass holds, and warps of a program: by the registers
and instructions of the cubin for compute capability 9.0 (no spills; several programs a processor
forward, one backward)."""
LEAST_BLOCK = 32
"""Least padded length, for `find_kept`."""
HIDDEN = tl.constexpr(-16384.0)
"""Score of a hidden position, in base 2: its exponential is 0, and a float32 can still add to it
the log2 of the number of positions of a row in which everything is hidden."""


@triton.jit
def load_head(start, rows, columns, stride, length):
    """Return some rows of one head, 0 from `length` on."""
    return tl.load(
        start + rows[:, None] * stride + columns[None, :], mask=rows[:, None] < length, other=0.0
    )


@triton.jit
def _scores(
    q, k, mask, rows, columns, mask_row, mask_column, scale,
    L: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the masked scores of some rows of one head in base 2, float32."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    return hide(scores, mask, rows, columns, mask_row, mask_column, L, BLOCK, MASKED)


@triton.jit
def hide(
    scores, mask, rows, columns, mask_row, mask_column,
    L: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return scores in base 2 with the mask added, and without the columns outside."""
    if MASKED == 1:  # alike for all rows
        added = tl.load(mask + columns * mask_column, mask=columns < L, other=0.0)[None, :]
    if MASKED == 2:
        places = rows[:, None] * mask_row + columns[None, :] * mask_column
        inside = (rows[:, None] < L) & (columns[None, :] < L)
        added = tl.load(mask + places, mask=inside, other=0.0)
    if MASKED:
        scores = tl.maximum(scores + added.to(tl.float32) * 1.4426950408889634, HIDDEN)
    if L % BLOCK:
        scores = tl.where(columns[None, :] < L, scores, float("-inf"))
    return scores


@triton.jit
def pair_numbers(words):
    """Return two numbers in the upper 16 bits of a word, for each word."""
    words = words.to(tl.uint32, bitcast=True)
    return tl.join(words << 16, words)


@triton.jit
def find_kept(
    seed, head, rows, first, num_dropped,
    LENGTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Return which probabilities of some rows of one head dropout keeps, from a column on."""
    eighths = first // 8 + tl.arange(0, BLOCK // 8)
    places = (head * LENGTH + rows[:, None]) * (LENGTH // 8) + eighths[None, :]
    a, b, c, d = tl.randint4x(tl.load(seed), places, n_rounds=7)
    numbers = tl.join(
        tl.join(pair_numbers(a), pair_numbers(b)), tl.join(pair_numbers(c), pair_numbers(d))
    )
    # The eight numbers of a call belong to the columns that one thread holds of a product of
    # tensor cores: four pairs, eight columns apart. Their layout is then not converted.
    numbers = tl.reshape(numbers, (ROWS, BLOCK // 32, 4, 4, 2))
    numbers = tl.reshape(tl.permute(numbers, (0, 1, 3, 2, 4)), (ROWS, BLOCK))
    return numbers >= (tl.cast(num_dropped, tl.uint32) << 16)


@triton.jit
def _attend(
    qkv, mask, seed, out, sums, N, scale, num_dropped, factor, mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch, number = head // N, head % N
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns, deep = tl.arange(0, BLOCK), tl.arange(0, D)
    start = qkv + batch.to(tl.int64) * L * 3 * N * D + number * D
    q = load_head(start, rows, deep, 3 * N * D, L)
    k = load_head(start + N * D, columns, deep, 3 * N * D, L)
    v = load_head(start + 2 * N * D, columns, deep, 3 * N * D, L)
    scores = _scores(
        q, k, mask + batch * mask_batch, rows, columns, mask_row, mask_column, scale,
        L, BLOCK, MASKED,
    )  # fmt: skip
    largest = tl.max(scores, axis=1)
    weights = tl.exp2(scores - largest[:, None])
    total = tl.sum(weights, axis=1)
    tl.store(sums + head * L + rows, largest + tl.log2(total), mask=rows < L)
    if DROPS:
        kept = find_kept(seed, head, rows, 0, num_dropped, BLOCK, BLOCK, ROWS)
        weights = tl.where(kept, weights, 0.0)
    context = tl.dot(weights.to(v.dtype), v, input_precision="ieee") * (factor / total)[:, None]
    places = (batch.to(tl.int64) * L + rows[:, None]) * N * D + number * D + deep[None, :]
    tl.store(out + places, context.to(out.dtype.element_ty), mask=rows[:, None] < L)


@triton.jit
def _attend_backward(
    grad, out, sums, qkv, mask, seed, grad_qkv, grad_bias, N, scale, num_dropped, factor,
    mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch, number = head // N, head % N
    rows, deep = tl.arange(0, BLOCK), tl.arange(0, D)
    inside = rows[:, None] < L
    first = batch.to(tl.int64) * L * 3 * N * D + number * D
    of_out = batch.to(tl.int64) * L * N * D + number * D
    q = load_head(qkv + first, rows, deep, 3 * N * D, L)
    k = load_head(qkv + first + N * D, rows, deep, 3 * N * D, L)
    v = load_head(qkv + first + 2 * N * D, rows, deep, 3 * N * D, L)
    g = load_head(grad + of_out, rows, deep, N * D, L)
    context = load_head(out + of_out, rows, deep, N * D, L)
    scores = _scores(
        q, k, mask + batch * mask_batch, rows, rows, mask_row, mask_column, scale, L, BLOCK, MASKED
    )
    # Dropout's factor is part of the probabilities. Rows outside have infinite sums: all are 0.
    total = tl.load(sums + head * L + rows, mask=rows < L, other=float("inf")) - tl.log2(factor)
    probs = tl.exp2(scores - total[:, None])
    grad_probs = tl.dot(g, tl.trans(v), input_precision="ieee")
    dropped = probs
    if DROPS:
        kept = find_kept(seed, head, rows, 0, num_dropped, BLOCK, BLOCK, BLOCK)
        dropped = tl.where(kept, probs, 0.0)
        grad_probs = tl.where(kept, grad_probs, 0.0)
    grad_v = tl.dot(tl.trans(dropped.to(g.dtype)), g, input_precision="ieee")
    mean = tl.sum(g.to(tl.float32) * context.to(tl.float32), axis=1) / factor
    grad_scores = (probs * (grad_probs - mean[:, None])).to(q.dtype)
    grad_q = tl.dot(grad_scores, k, input_precision="ieee") * scale
    grad_k = tl.dot(tl.trans(grad_scores), q, input_precision="ieee") * scale
    places = grad_qkv + first + rows[:, None] * 3 * N * D + deep[None, :]
    dtype = grad_qkv.dtype.element_ty
    tl.store(places, grad_q.to(dtype), mask=inside)
    tl.store(places + N * D, grad_k.to(dtype), mask=inside)
    tl.store(places + 2 * N * D, grad_v.to(dtype), mask=inside)
    of_head = grad_bias + batch * 3 * N * D + number * D + deep
    tl.store(of_head, tl.sum(grad_q, axis=0))
    # What is added to all keys alike changes no softmax: its gradient is 0.
    tl.store(of_head + N * D, tl.zeros((D,), dtype=tl.float32))
    tl.store(of_head + 2 * N * D, tl.sum(grad_v, axis=0))


def can_attend(x_BLH: Tensor, num_heads: int) -> bool:
    """Return whether `attend` takes heads of these hidden states.

    On a GPU, float32 is refused: it uses no tensor cores, and most of a row is spilled.
    """
    _, L, H = x_BLH.shape
    size = H // num_heads
    is_power = size & (size - 1) == 0
    is_16_bit = x_BLH.device.type == "cpu" or x_BLH.dtype != torch.float32
    return L <= LONGEST and is_power and 16 <= size <= 128 and is_16_bit


@torch.library.custom_op("electra::attend", mutates_args=())
def attend(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, seed: Tensor, prob: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the attention of short rows (B, L, N, D), and log2 of the rows' sums (B, N, L).

    A sum is that of a row's exponentials before dropout.

    Args:
        qkv_BL3ND: Query, key and value, contiguous; of hidden states that `can_attend` takes.
        mask_BNLL: Added to the scores, alike for all heads; broadcasts to (B, 1, L, L). Scores
            below -16384 log(2) count as that.
        seed: Seed of the dropout, int64, one element.
        prob: Probability with which dropout zeroes an attention probability, to 1 / 131072.
        scale: Factor of the scores.
    """
    B, L, _, N, D = qkv_BL3ND.shape
    out = qkv_BL3ND.new_empty(B, L, N, D)
    sums_BNL = qkv_BL3ND.new_empty(B, N, L, dtype=torch.float32)
    mask, numbers, constants = _describe(qkv_BL3ND, mask_BNLL, prob)
    rows = min(constants["BLOCK"], ROWS)
    with torch.cuda.device_of(qkv_BL3ND):
        _attend[(B * N, triton.cdiv(L, rows))](
            *(qkv_BL3ND, mask, seed, out, sums_BNL, N, scale, *numbers),
            **constants,
            ROWS=rows,
            num_warps=NUM_WARPS,
        )
    return out, sums_BNL


@attend.register_fake
def _(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, seed: Tensor, prob: float, scale: float
) -> tuple[Tensor, Tensor]:
    B, L, _, N, D = qkv_BL3ND.shape
    return qkv_BL3ND.new_empty(B, L, N, D), qkv_BL3ND.new_empty(B, N, L, dtype=torch.float32)


@torch.library.custom_op("electra::attend_backward", mutates_args=())
def attend_backward(
    grad_BLND: Tensor,
    out_BLND: Tensor,
    sums_BNL: Tensor,
    qkv_BL3ND: Tensor,
    mask_BNLL: Tensor | None,
    seed: Tensor,
    prob: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of query, key and value (B, L, 3, N, D), and its sums (B, 3, N, D).

    `grad_BLND` is the contiguous gradient of `out_BLND`, which `attend` returned with `sums_BNL`
    for the other arguments.
    """
    B, _, _, N, D = qkv_BL3ND.shape
    grad_qkv = torch.empty_like(qkv_BL3ND)
    bias_B3ND = qkv_BL3ND.new_empty(B, 3, N, D, dtype=torch.float32)
    mask, numbers, constants = _describe(qkv_BL3ND, mask_BNLL, prob)
    with torch.cuda.device_of(qkv_BL3ND):
        _attend_backward[(B * N,)](
            *(grad_BLND, out_BLND, sums_BNL, qkv_BL3ND, mask, seed, grad_qkv, bias_B3ND),
            *(N, scale, *numbers),
            **constants,
            num_warps=NUM_WARPS_BACKWARD,
        )
    return grad_qkv, bias_B3ND


@attend_backward.register_fake
def _(
    grad_BLND: Tensor, out_BLND: Tensor, sums_BNL: Tensor, qkv_BL3ND: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    B, _, _, N, D = qkv_BL3ND.shape
    return torch.empty_like(qkv_BL3ND), qkv_BL3ND.new_empty(B, 3, N, D, dtype=torch.float32)


def _describe(
    qkv_BL3ND: Tensor, mask_BNLL: Tensor | None, prob: float
) -> tuple[Tensor, tuple[float, ...], dict[str, int]]:
    """Return the mask of a kernel of attention, its numbers (dropout, strides) and constants."""
    _, L, _, _, D = qkv_BL3ND.shape
    mask, numbers, constants = describe_mask(qkv_BL3ND, mask_BNLL, prob)
    block = max(LEAST_BLOCK, triton.next_power_of_2(L))
    return mask, numbers, constants | {"L": L, "D": D, "BLOCK": block}


def describe_mask(
    q: Tensor, mask_BNLL: Tensor | None, prob: float
) -> tuple[Tensor, tuple[float, ...], dict[str, int]]:
    """Return mask, numbers (dropout, strides) and constants of what `hide` and `find_kept` do.

    `q` is any tensor that begins with rows and positions; it is the mask if there is none.
    """
    num_dropped = min(round(65536 * prob), 65535)
    mask, kind, strides = q, 0, (0, 0, 0)
    if mask_BNLL is not None:
        kind = 1 if mask_BNLL.shape[2] == 1 else 2
        mask = mask_BNLL.expand(q.shape[0], 1, q.shape[1], q.shape[1])
        strides = mask.stride(0), mask.stride(2), mask.stride(3)
    constants = {"MASKED": kind, "DROPS": int(prob > 0)}
    return mask, (num_dropped, 65536 / (65536 - num_dropped), *strides), constants
