"""Attention by content and distance as Triton kernels; the definition is in deberta.py.

The distances of a tile of queries i and keys j are in two consecutive blocks of the tables of all
distances: the low one where i <= j, the high one elsewhere. In the products of a query with both
blocks the key j is in column (i - j - 1) mod BLOCK of one of them. So a choice between two products
and a gather within its rows give the scores of a tile, and a gather and a choice give back the
gradients: nothing is scattered, and no sum depends on the order of programs.

Shape suffixes: B rows of the batch, L positions, N heads, D size of a head, T = 2 * padded length
distances, query less key, the first of which is 1 - padded length; P parts of the batch, K = 2 *
blocks - 1 diagonals of tiles, W distances of a block.
"""

# mypy: allow-untyped-defs
# A kernel's arguments are pointers and numbers.

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from electra.model.kernels.short_attention import describe_mask, find_kept, hide, load_head

BLOCK = 64
"""Queries and keys of a tile."""
NUM_WARPS, NUM_WARPS_DISTANCES = 4, 8
"""Warps of a program: by the registers of the cubin for compute capability 9.0 (no spills; two
programs of four warps a processor)."""
NUM_STAGES_SCORES, NUM_STAGES = 1, 2
"""1: a program loads a tile when it needs it. 2: one tile ahead, where registers are left."""
PARTS = 4
"""Parts of the batch whose gradients by distance are summed apart."""


@triton.jit
def _load_block(
    distances, block, stride, D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr
):
    """Return one head's rows of a block of distances, which ends at `block * BLOCK`."""
    rows = block * BLOCK + PADDED - BLOCK + tl.arange(0, BLOCK)
    return tl.load(distances + rows[:, None] * stride + tl.arange(0, D)[None, :])


@triton.jit
def _score(
    q, k, high, of_distances, block, stride, first, last,
    D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Return the scores of a tile, and the queries' products with the keys of its low block."""
    # `first`, where the tile's keys begin, is a multiple of BLOCK, and `last` is BLOCK - 1, as an
    # argument: a compiler that knew both would hold the indices of the gathers in registers.
    down, right = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    queries, keys = of_distances, of_distances + stride // 2
    by_query = _load_block(queries, block, stride, D, BLOCK, PADDED)
    by_query = tl.dot(k, tl.trans(by_query), input_precision="ieee").to(q.dtype)
    above = _load_block(queries, block + 1, stride, D, BLOCK, PADDED)
    above = tl.dot(k, tl.trans(above), input_precision="ieee").to(q.dtype)
    chosen = tl.where(down + right >= BLOCK - 1, by_query, above)
    scores = tl.trans(tl.gather(chosen, (first + right - down - 1) & last, 1)).to(tl.float32)
    low = _load_block(keys, block, stride, D, BLOCK, PADDED)
    low = tl.dot(q, tl.trans(low), input_precision="ieee").to(q.dtype)
    chosen = tl.where(right >= down, low, high)
    scores += tl.gather(chosen, (first + down - right - 1) & last, 1)
    return tl.dot(q, tl.trans(k), scores, input_precision="ieee"), low


@triton.jit
def _attend(
    q, kv, distances, mask, seed, out, sums, N, scale, last, num_dropped, factor,
    mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0) % (PADDED // BLOCK), tl.program_id(0) // (PADDED // BLOCK)
    batch, number = head // N, head % N
    rows, deep = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    of_head = batch.to(tl.int64) * L * N * D + number * D
    keys = kv + batch.to(tl.int64) * L * 2 * N * D + number * D
    queries = load_head(q + of_head, rows, deep, N * D, L)
    high = _load_block(distances + (N + number) * D, block + 1, 2 * N * D, D, BLOCK, PADDED)
    high = tl.dot(queries, tl.trans(high), input_precision="ieee").to(queries.dtype)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    context = tl.zeros((BLOCK, D), tl.float32)
    for first in range(0, L, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        if DROPS:
            kept = find_kept(seed, head, rows, first, num_dropped, PADDED, BLOCK, BLOCK)
        k = load_head(keys, columns, deep, 2 * N * D, L)
        scores, high = _score(
            queries, k, high, distances + number * D, block - first // BLOCK, 2 * N * D,
            first, last, D, BLOCK, PADDED,
        )  # fmt: skip
        scores = hide(
            scores * (scale * 1.4426950408889634), mask + batch * mask_batch, rows, columns,
            mask_row, mask_column, L, BLOCK, MASKED,
        )  # fmt: skip
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - larger[:, None])
        before = tl.exp2(largest - larger)
        largest = larger
        total = total * before + tl.sum(weights, axis=1)
        if DROPS:
            weights = tl.where(kept, weights, 0.0)
        v = load_head(keys + N * D, columns, deep, 2 * N * D, L)
        context = tl.dot(weights.to(v.dtype), v, context * before[:, None], input_precision="ieee")
    tl.store(sums + head * L + rows, largest + tl.log2(total), mask=rows < L)
    context *= (factor / total)[:, None]
    places = out + of_head + rows[:, None] * N * D + deep[None, :]
    tl.store(places, context.to(out.dtype.element_ty), mask=rows[:, None] < L)


@triton.jit
def _back_to_scores(
    grad, out, sums, q, kv, distances, mask, seed, probs, grad_scores,
    N, scale, last, num_dropped, factor, mask_batch, mask_row, mask_column,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0) % (PADDED // BLOCK), tl.program_id(0) // (PADDED // BLOCK)
    batch, number = head // N, head % N
    rows, deep = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    of_head = batch.to(tl.int64) * L * N * D + number * D
    keys = kv + batch.to(tl.int64) * L * 2 * N * D + number * D
    queries = load_head(q + of_head, rows, deep, N * D, L)
    g = load_head(grad + of_head, rows, deep, N * D, L)
    context = load_head(out + of_head, rows, deep, N * D, L)
    mean = tl.sum(g.to(tl.float32) * context.to(tl.float32), axis=1) / factor
    # Dropout's factor is part of the probabilities. Rows outside have infinite sums: all are 0.
    total = tl.load(sums + head * L + rows, mask=rows < L, other=float("inf")) - tl.log2(factor)
    high = _load_block(distances + (N + number) * D, block + 1, 2 * N * D, D, BLOCK, PADDED)
    high = tl.dot(queries, tl.trans(high), input_precision="ieee").to(queries.dtype)
    for first in range(0, L, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        k = load_head(keys, columns, deep, 2 * N * D, L)
        scores, high = _score(
            queries, k, high, distances + number * D, block - first // BLOCK, 2 * N * D,
            first, last, D, BLOCK, PADDED,
        )  # fmt: skip
        scores = hide(
            scores * (scale * 1.4426950408889634), mask + batch * mask_batch, rows, columns,
            mask_row, mask_column, L, BLOCK, MASKED,
        )  # fmt: skip
        weights = tl.exp2(scores - total[:, None])
        places = head.to(tl.int64) * L * L + (rows[:, None] * L + columns[None, :])
        inside = (rows[:, None] < L) & (columns[None, :] < L)
        dropped = weights
        if DROPS:
            kept = find_kept(seed, head, rows, first, num_dropped, PADDED, BLOCK, BLOCK)
            dropped = tl.where(kept, weights, 0.0)
        tl.store(probs + places, dropped.to(q.dtype.element_ty), mask=inside)
        v = load_head(keys + N * D, columns, deep, 2 * N * D, L)
        grad_weights = tl.dot(g, tl.trans(v), input_precision="ieee")
        if DROPS:
            grad_weights = tl.where(kept, grad_weights, 0.0)
        turned = (weights * (grad_weights - mean[:, None])).to(queries.dtype)
        tl.store(grad_scores + places, turned, mask=inside)


@triton.jit
def _back_to_queries(
    grad_scores, kv, distances, grad_q, N, scale,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0) % (PADDED // BLOCK), tl.program_id(0) // (PADDED // BLOCK)
    batch, number = head // N, head % N
    rows, deep = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    down, right = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    keys = kv + batch.to(tl.int64) * L * 2 * N * D + number * D
    result = tl.zeros((BLOCK, D), tl.float32)
    for first in range(0, L, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        places = head.to(tl.int64) * L * L + (rows[:, None] * L + columns[None, :])
        inside = (rows[:, None] < L) & (columns[None, :] < L)
        turned = tl.load(grad_scores + places, mask=inside, other=0.0)
        k = load_head(keys, columns, deep, 2 * N * D, L)
        result = tl.dot(turned, k, result, input_precision="ieee")
        moved = tl.gather(turned, (down - right - 1) & (BLOCK - 1), 1)
        lower = block - first // BLOCK
        for_low = tl.where(right >= down, moved, 0.0).to(k.dtype)
        low = _load_block(distances + (N + number) * D, lower, 2 * N * D, D, BLOCK, PADDED)
        result = tl.dot(for_low, low, result, input_precision="ieee")
        for_high = tl.where(right < down, moved, 0.0).to(k.dtype)
        above = _load_block(distances + (N + number) * D, lower + 1, 2 * N * D, D, BLOCK, PADDED)
        result = tl.dot(for_high, above, result, input_precision="ieee")
    places = grad_q + batch.to(tl.int64) * L * N * D + number * D
    places += rows[:, None] * N * D + deep[None, :]
    tl.store(places, (result * scale).to(grad_q.dtype.element_ty), mask=rows[:, None] < L)


@triton.jit
def _back_to_keys(
    grad, probs, grad_scores, q, distances, grad_kv, N, scale,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0) % (PADDED // BLOCK), tl.program_id(0) // (PADDED // BLOCK)
    batch, number = head // N, head % N
    columns, deep = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    down, right = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    of_head = batch.to(tl.int64) * L * N * D + number * D
    grad_k = tl.zeros((BLOCK, D), tl.float32)
    grad_v = tl.zeros((BLOCK, D), tl.float32)
    for first in range(0, L, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        places = head.to(tl.int64) * L * L + (rows[:, None] * L + columns[None, :])
        inside = (rows[:, None] < L) & (columns[None, :] < L)
        g = load_head(grad + of_head, rows, deep, N * D, L)
        dropped = tl.load(probs + places, mask=inside, other=0.0)
        grad_v = tl.dot(tl.trans(dropped), g, grad_v, input_precision="ieee")
        queries = load_head(q + of_head, rows, deep, N * D, L)
        turned = tl.trans(tl.load(grad_scores + places, mask=inside, other=0.0))
        grad_k = tl.dot(turned, queries, grad_k, input_precision="ieee")
        moved = tl.gather(turned, (down + right + 1) & (BLOCK - 1), 1)
        is_low = down + right >= BLOCK - 1
        lower = first // BLOCK - block
        for_low = tl.where(is_low, moved, 0.0).to(queries.dtype)
        low = _load_block(distances + number * D, lower, 2 * N * D, D, BLOCK, PADDED)
        grad_k = tl.dot(for_low, low, grad_k, input_precision="ieee")
        for_high = tl.where(is_low, 0.0, moved).to(queries.dtype)
        above = _load_block(distances + number * D, lower + 1, 2 * N * D, D, BLOCK, PADDED)
        grad_k = tl.dot(for_high, above, grad_k, input_precision="ieee")
    places = grad_kv + of_head + batch.to(tl.int64) * L * N * D
    places += columns[:, None] * 2 * N * D + deep[None, :]
    dtype = grad_kv.dtype.element_ty
    tl.store(places, (grad_k * scale).to(dtype), mask=columns[:, None] < L)
    tl.store(places + N * D, grad_v.to(dtype), mask=columns[:, None] < L)


@triton.jit
def _back_to_distances(
    grad_scores, q, kv, sums, B, N, scale,
    L: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    number, part, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    blocks = PADDED // BLOCK
    diagonal = tl.program_id(0) - (blocks - 1)
    deep = tl.arange(0, D)
    down, right = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    low_queries = tl.zeros((BLOCK, D), tl.float32)
    low_keys = tl.zeros((BLOCK, D), tl.float32)
    high_queries = tl.zeros((BLOCK, D), tl.float32)
    high_keys = tl.zeros((BLOCK, D), tl.float32)
    start = tl.maximum(diagonal, 0)
    num_tiles = blocks - tl.abs(diagonal)
    for tile in range(0, (B - part + parts - 1) // parts * num_tiles):
        batch = part + tile // num_tiles * parts
        rows = (start + tile % num_tiles) * BLOCK + tl.arange(0, BLOCK)
        columns = rows - diagonal * BLOCK
        places = (batch * N + number).to(tl.int64) * L * L + (rows[:, None] * L + columns[None, :])
        inside = (rows[:, None] < L) & (columns[None, :] < L)
        turned = tl.load(grad_scores + places, mask=inside, other=0.0)
        of_head = batch.to(tl.int64) * L * N * D + number * D
        queries = load_head(q + of_head, rows, deep, N * D, L)
        moved = tl.trans(tl.gather(turned, (down - right - 1) & (BLOCK - 1), 1))
        for_low = tl.where(down >= right, moved, 0.0).to(queries.dtype)
        low_keys = tl.dot(for_low, queries, low_keys, input_precision="ieee")
        for_high = tl.where(down < right, moved, 0.0).to(queries.dtype)
        high_keys = tl.dot(for_high, queries, high_keys, input_precision="ieee")
        k = load_head(kv + 2 * of_head - number * D, columns, deep, 2 * N * D, L)
        moved = tl.trans(tl.gather(tl.trans(turned), (down + right + 1) & (BLOCK - 1), 1))
        is_low = down + right >= BLOCK - 1
        for_low = tl.where(is_low, moved, 0.0).to(k.dtype)
        low_queries = tl.dot(for_low, k, low_queries, input_precision="ieee")
        for_high = tl.where(is_low, 0.0, moved).to(k.dtype)
        high_queries = tl.dot(for_high, k, high_queries, input_precision="ieee")
    of_program = (part * N + number) * tl.num_programs(0) + tl.program_id(0)
    places = sums + of_program * 4 * BLOCK * D + down * D + deep[None, :]
    tl.store(places, low_queries * scale)
    tl.store(places + BLOCK * D, low_keys * scale)
    tl.store(places + 2 * BLOCK * D, high_queries * scale)
    tl.store(places + 3 * BLOCK * D, high_keys * scale)


def can_attend_by_distance(x_BLH: Tensor, num_heads: int) -> bool:
    """Return whether `attend_by_distance` takes heads of these hidden states.

    On a GPU, float32 is refused: a tile has no room for it.
    """
    size = x_BLH.shape[2] // num_heads
    is_16_bit = x_BLH.device.type == "cpu" or x_BLH.dtype != torch.float32
    return size & (size - 1) == 0 and 16 <= size <= 64 and is_16_bit


def pad_length(length: int) -> int:
    """Return the length of rows whose tiles are whole."""
    return -(-length // BLOCK) * BLOCK


@torch.library.custom_op("electra::attend_by_distance", mutates_args=())
def attend_by_distance(
    q_BLND: Tensor,
    kv_BL2ND: Tensor,
    distances_T2ND: Tensor,
    mask_BNLL: Tensor | None,
    seed: Tensor,
    prob: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the attention (B, L, N, D), and log2 of the rows' sums (B, N, L) before dropout.

    Args:
        q_BLND: Queries; contiguous, like all tensors but the mask, and from hidden states that
            `can_attend_by_distance` accepts.
        kv_BL2ND: Keys and values.
        distances_T2ND: Queries and keys of the distances.
        mask_BNLL: Added to the scores, alike for all heads; broadcasts to (B, 1, L, L). Scores
            below -16384 log(2) count as that.
        seed: Seed of the dropout, int64, one element.
        prob: Probability with which dropout zeroes an attention probability, to 1 / 131072.
        scale: Factor of the three scores of a pair.
    """
    B, L, N, _ = q_BLND.shape
    out_BLND = torch.empty_like(q_BLND)
    sums_BNL = q_BLND.new_empty(B, N, L, dtype=torch.float32)
    mask, numbers, constants = _describe(q_BLND, mask_BNLL, prob)
    with torch.cuda.device_of(q_BLND):
        _attend[(triton.cdiv(L, BLOCK) * B * N,)](
            *(q_BLND, kv_BL2ND, distances_T2ND, mask, seed, out_BLND, sums_BNL),
            *(N, scale, BLOCK - 1, *numbers),
            **constants,
            num_warps=NUM_WARPS,
        )
    return out_BLND, sums_BNL


@attend_by_distance.register_fake
def _(q_BLND: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    B, L, N, _ = q_BLND.shape
    return torch.empty_like(q_BLND), q_BLND.new_empty(B, N, L, dtype=torch.float32)


@torch.library.custom_op("electra::attend_back_to_scores", mutates_args=())
def attend_back_to_scores(
    grad_BLND: Tensor,
    out_BLND: Tensor,
    sums_BNL: Tensor,
    q_BLND: Tensor,
    kv_BL2ND: Tensor,
    distances_T2ND: Tensor,
    mask_BNLL: Tensor | None,
    seed: Tensor,
    prob: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the probabilities after dropout, and the gradient of scores / scale, (B, N, L, L).

    `grad_BLND` is the contiguous gradient of `out_BLND`, which `attend_by_distance` returned with
    `sums_BNL` for the other arguments.
    """
    probs_BNLL, grad_scores_BNLL = _make_scores(q_BLND), _make_scores(q_BLND)
    B, L, N, _ = q_BLND.shape
    mask, numbers, constants = _describe(q_BLND, mask_BNLL, prob)
    with torch.cuda.device_of(q_BLND):
        _back_to_scores[(triton.cdiv(L, BLOCK) * B * N,)](
            *(grad_BLND, out_BLND, sums_BNL, q_BLND, kv_BL2ND, distances_T2ND, mask, seed),
            *(probs_BNLL, grad_scores_BNLL, N, scale, BLOCK - 1, *numbers),
            **constants,
            num_warps=NUM_WARPS,
        )
    return probs_BNLL, grad_scores_BNLL


@attend_back_to_scores.register_fake
def _(grad_BLND: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _make_scores(grad_BLND), _make_scores(grad_BLND)


def _make_scores(q_BLND: Tensor) -> Tensor:
    B, L, N, _ = q_BLND.shape
    return q_BLND.new_empty(B, N, L, L)


@torch.library.custom_op("electra::attend_back_to_queries", mutates_args=())
def attend_back_to_queries(
    grad_scores_BNLL: Tensor, kv_BL2ND: Tensor, distances_T2ND: Tensor, scale: float
) -> Tensor:
    """Return the gradient of queries (B, L, N, D)."""
    B, L, _, N, D = kv_BL2ND.shape
    grad_q_BLND = kv_BL2ND.new_empty(B, L, N, D)
    with torch.cuda.device_of(kv_BL2ND):
        _back_to_queries[(triton.cdiv(L, BLOCK) * B * N,)](
            *(grad_scores_BNLL, kv_BL2ND, distances_T2ND, grad_q_BLND, N, scale),
            **_find_sizes(grad_q_BLND),
            num_warps=NUM_WARPS,
        )
    return grad_q_BLND


@attend_back_to_queries.register_fake
def _(grad_scores_BNLL: Tensor, kv_BL2ND: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(kv_BL2ND[:, :, 0], memory_format=torch.contiguous_format)


@torch.library.custom_op("electra::attend_back_to_keys", mutates_args=())
def attend_back_to_keys(
    grad_BLND: Tensor,
    probs_BNLL: Tensor,
    grad_scores_BNLL: Tensor,
    q_BLND: Tensor,
    distances_T2ND: Tensor,
    scale: float,
) -> Tensor:
    """Return the gradients of keys and values (B, L, 2, N, D)."""
    B, L, N, D = q_BLND.shape
    grad_kv_BL2ND = q_BLND.new_empty(B, L, 2, N, D)
    with torch.cuda.device_of(q_BLND):
        _back_to_keys[(triton.cdiv(L, BLOCK) * B * N,)](
            *(grad_BLND, probs_BNLL, grad_scores_BNLL, q_BLND, distances_T2ND, grad_kv_BL2ND),
            *(N, scale),
            **_find_sizes(q_BLND),
            num_warps=NUM_WARPS,
        )
    return grad_kv_BL2ND


@attend_back_to_keys.register_fake
def _(grad_BLND: Tensor, *others: Any) -> Tensor:
    B, L, N, D = grad_BLND.shape
    return grad_BLND.new_empty(B, L, 2, N, D)


@torch.library.custom_op("electra::attend_back_to_distances", mutates_args=())
def attend_back_to_distances(
    grad_scores_BNLL: Tensor, q_BLND: Tensor, kv_BL2ND: Tensor, scale: float
) -> Tensor:
    """Return sums of the gradients by distance (P, N, K, 2, 2, W, D), float32.

    For a diagonal of tiles they are those of its low and its high block, of queries and keys.
    """
    sums = _make_sums(q_BLND)
    P, N, K = sums.shape[:3]
    with torch.cuda.device_of(q_BLND):
        _back_to_distances[(K, N, P)](
            *(grad_scores_BNLL, q_BLND, kv_BL2ND, sums, len(q_BLND), N, scale),
            **_find_sizes(q_BLND),
            num_warps=NUM_WARPS_DISTANCES,
        )
    return sums


@attend_back_to_distances.register_fake
def _(grad_scores_BNLL: Tensor, q_BLND: Tensor, *others: Any) -> Tensor:
    return _make_sums(q_BLND)


def _make_sums(q_BLND: Tensor) -> Tensor:
    """Return room for what `attend_back_to_distances` returns."""
    B, L, N, D = q_BLND.shape
    num_diagonals = 2 * pad_length(L) // BLOCK - 1
    shape = min(B, PARTS), N, num_diagonals, 2, 2, BLOCK, D
    return q_BLND.new_empty(shape, dtype=torch.float32)


def join_distances(sums: Tensor) -> Tensor:
    """Return the gradients (T, 2, N, D) of which `attend_back_to_distances` returned sums."""
    sums_NK22WD = sums.sum(dim=0)
    # The high block of a diagonal is the low block of the next one.
    low = F.pad(sums_NK22WD[:, :, 0], (0, 0, 0, 0, 0, 0, 0, 1))
    high = F.pad(sums_NK22WD[:, :, 1], (0, 0, 0, 0, 0, 0, 1, 0))
    return (low + high).permute(1, 3, 2, 0, 4).flatten(0, 1)


def _find_sizes(q_BLND: Tensor) -> dict[str, int]:
    """Return the constants of all kernels."""
    L, D = q_BLND.shape[1], q_BLND.shape[3]
    return {"L": L, "D": D, "BLOCK": BLOCK, "PADDED": pad_length(L), "num_stages": NUM_STAGES}


def _describe(
    q_BLND: Tensor, mask_BNLL: Tensor | None, prob: float
) -> tuple[Tensor, tuple[float, ...], dict[str, int]]:
    """Return the mask of a kernel of attention, its numbers (dropout, strides) and constants."""
    mask, numbers, constants = describe_mask(q_BLND, mask_BNLL, prob)
    sizes = _find_sizes(q_BLND) | {"num_stages": NUM_STAGES_SCORES}
    return mask, numbers, constants | sizes
