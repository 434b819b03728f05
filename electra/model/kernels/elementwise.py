"""GELU with its slope, and dropout, residual and norm in one pass, as Triton kernels.

Torch's compiler can fuse the same, but it recomputes the slope in the backward pass, takes ten
rounds of Philox for each element it drops, and sums columns in separate kernels. Both operations
are opaque to it.

Shape suffixes: M rows, H hidden size, P programs of the backward pass.
"""

# mypy: allow-untyped-defs
# A kernel's arguments are pointers and numbers.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.model.kernels.short_attention import pair_numbers

BLOCK, NUM_WARPS = 1024, 4
"""Elements of a program of GELU; warps of a program of either operation."""
ELEMENTS = 2048
"""Elements of the rows that a program of a norm holds at a time."""
NUM_PROGRAMS = 396
"""Programs of a norm's backward pass, each of which adds up its rows' sums: three on a processor of
an H100, as many as its registers hold."""


@triton.jit
def _gelu(h, out, slope, NUM, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(h + places, mask=places < NUM, other=0.0).to(tl.float32)
    # erf to 1.5e-7 with the exponential of the slope. Source: Abramowitz and Stegun, 7.1.26.
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    e = tl.exp(-0.5 * x * x)
    tail = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
    tail = 0.5 * (tail + 0.254829592) * t * e
    below = tl.where(x >= 0, 1.0 - tail, tail)
    tl.store(out + places, (x * below).to(out.dtype.element_ty), mask=places < NUM)
    slopes = below + x * e * 0.3989422804014327
    tl.store(slope + places, slopes.to(slope.dtype.element_ty), mask=places < NUM)


@torch.library.custom_op("electra::gelu", mutates_args=())
def gelu(h: Tensor) -> tuple[Tensor, Tensor]:
    """Return GELU and its slope at each element of h, which is contiguous."""
    out, slope = torch.empty_like(h), torch.empty_like(h)
    with torch.cuda.device_of(h):
        _gelu[(triton.cdiv(h.numel(), BLOCK),)](
            h, out, slope, h.numel(), BLOCK, num_warps=NUM_WARPS
        )
    return out, slope


@gelu.register_fake
def _(h: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(h), torch.empty_like(h)


@triton.jit
def _load_rows(start, rows, columns, M, H: tl.constexpr):
    inside = (rows[:, None] < M) & (columns[None, :] < H)
    return tl.load(start + rows[:, None] * H + columns[None, :], mask=inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def _find_kept(seed, rows, num_dropped, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Return which elements of some rows dropout keeps; a call of Philox decides eight."""
    places = rows[:, None] * (BLOCK // 8) + tl.arange(0, BLOCK // 8)[None, :]
    a, b, c, d = tl.randint4x(tl.load(seed), places.to(tl.int32), n_rounds=7)
    numbers = tl.join(
        tl.join(pair_numbers(a), pair_numbers(b)), tl.join(pair_numbers(c), pair_numbers(d))
    )
    return tl.reshape(numbers, (ROWS, BLOCK)) >= (tl.cast(num_dropped, tl.uint32) << 16)


@triton.jit
def _add_norm(
    x, y, bias, weight, shift, seed, out, statistics, M, num_dropped, factor, eps,
    H: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    added = _load_rows(y, rows, columns, M, H)
    added += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if DROPS:
        kept = _find_kept(seed, rows, num_dropped, BLOCK, ROWS)
        added = tl.where(kept, added * factor, 0.0)
    z = _load_rows(x, rows, columns, M, H) + added
    mean = tl.sum(z, axis=1) / H
    centred = tl.where(inside[None, :], z - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / H + eps)
    tl.store(statistics + rows * 2, mean, mask=rows < M)
    tl.store(statistics + rows * 2 + 1, scale, mask=rows < M)
    result = centred * scale[:, None] * tl.load(weight + columns, mask=inside, other=0.0)[None, :]
    result += tl.load(shift + columns, mask=inside, other=0.0)[None, :]
    places = out + rows[:, None] * H + columns[None, :]
    tl.store(places, result.to(out.dtype.element_ty), mask=(rows[:, None] < M) & inside[None, :])


@triton.jit
def _add_norm_backward(
    grad, x, y, bias, weight, seed, statistics, grad_x, grad_y, sums, M, num_dropped, factor,
    H: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    biases = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    weights = tl.load(weight + columns, mask=inside, other=0.0)[None, :]
    of_bias = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    of_weight = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    of_shift = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        mean = tl.load(statistics + rows * 2, mask=rows < M, other=0.0)
        scale = tl.load(statistics + rows * 2 + 1, mask=rows < M, other=0.0)
        added = _load_rows(y, rows, columns, M, H) + biases
        if DROPS:
            kept = _find_kept(seed, rows, num_dropped, BLOCK, ROWS)
            added = tl.where(kept, added * factor, 0.0)
        z = _load_rows(x, rows, columns, M, H) + added
        normed = tl.where(inside[None, :], (z - mean[:, None]) * scale[:, None], 0.0)
        g = _load_rows(grad, rows, columns, M, H)
        of_shift += g
        of_weight += g * normed
        g *= weights
        part = tl.sum(g, axis=1) / H
        turn = tl.sum(g * normed, axis=1) / H
        g = (g - part[:, None] - normed * turn[:, None]) * scale[:, None]
        whole = (rows[:, None] < M) & inside[None, :]
        places = rows[:, None] * H + columns[None, :]
        tl.store(grad_x + places, g.to(grad_x.dtype.element_ty), mask=whole)
        if DROPS:
            g = tl.where(kept, g * factor, 0.0)
            tl.store(grad_y + places, g.to(grad_x.dtype.element_ty), mask=whole)
        of_bias += tl.where(inside[None, :], g, 0.0)
    of_program = sums + tl.program_id(0) * 3 * H + columns
    tl.store(of_program, tl.sum(of_bias, axis=0), mask=inside)
    tl.store(of_program + H, tl.sum(of_weight, axis=0), mask=inside)
    tl.store(of_program + 2 * H, tl.sum(of_shift, axis=0), mask=inside)


def _describe(x_MH: Tensor, prob: float) -> tuple[tuple[float, ...], dict[str, int]]:
    """Return the numbers (rows, dropout) and constants of a norm's kernel."""
    M, H = x_MH.shape
    block = max(64, triton.next_power_of_2(H))
    num_dropped = min(round(65536 * prob), 65535)
    constants = {"H": H, "BLOCK": block, "ROWS": max(1, ELEMENTS // block)}
    numbers = M, num_dropped, 65536 / (65536 - num_dropped)
    return numbers, constants | {"DROPS": int(prob > 0), "num_warps": NUM_WARPS}


@torch.library.custom_op("electra::add_norm", mutates_args=())
def add_norm(
    x_MH: Tensor,
    y_MH: Tensor,
    bias_H: Tensor,
    weight_H: Tensor,
    shift_H: Tensor,
    seed: Tensor,
    prob: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return the norm of x + dropout(y + bias), and mean and inverse deviation of each row (M, 2).

    Args:
        x_MH: Residual; as y, contiguous.
        y_MH: Product, to which the bias is still to be added.
        bias_H: Bias of the product.
        weight_H: Weight of the norm, float32.
        shift_H: Bias of the norm, float32.
        seed: Seed of the dropout, int64, one element.
        prob: Probability with which dropout zeroes an element, to 1 / 131072.
        eps: Added to the variance of a row.
    """
    out_MH = torch.empty_like(x_MH)
    statistics_M2 = x_MH.new_empty(len(x_MH), 2, dtype=torch.float32)
    numbers, constants = _describe(x_MH, prob)
    with torch.cuda.device_of(x_MH):
        _add_norm[(triton.cdiv(len(x_MH), constants["ROWS"]),)](
            *(x_MH, y_MH, bias_H, weight_H, shift_H, seed, out_MH, statistics_M2, *numbers, eps),
            **constants,
        )
    return out_MH, statistics_M2


@add_norm.register_fake
def _(x_MH: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_MH), x_MH.new_empty(len(x_MH), 2, dtype=torch.float32)


@torch.library.custom_op("electra::add_norm_backward", mutates_args=())
def add_norm_backward(
    grad_MH: Tensor,
    x_MH: Tensor,
    y_MH: Tensor,
    bias_H: Tensor,
    weight_H: Tensor,
    seed: Tensor,
    statistics_M2: Tensor,
    prob: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and y (M, H), and sums of those of bias, weight, shift (P, 3, H).

    Without dropout the gradient of y is that of x, and the second result is empty.
    """
    numbers, constants = _describe(x_MH, prob)
    grad_x_MH, grad_y_MH, sums_P3H = _make_gradients(x_MH, prob)
    with torch.cuda.device_of(x_MH):
        _add_norm_backward[(len(sums_P3H),)](
            *(grad_MH, x_MH, y_MH, bias_H, weight_H, seed, statistics_M2),
            *(grad_x_MH, grad_y_MH, sums_P3H, *numbers),
            **constants,
        )
    return grad_x_MH, grad_y_MH, sums_P3H


@add_norm_backward.register_fake
def _(grad_MH: Tensor, x_MH: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _make_gradients(x_MH, others[-1])


def _make_gradients(x_MH: Tensor, prob: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for what `add_norm_backward` returns."""
    (M, H), rows = x_MH.shape, _describe(x_MH, prob)[1]["ROWS"]
    sums_P3H = x_MH.new_empty(min(NUM_PROGRAMS, -(-M // rows)), 3, H, dtype=torch.float32)
    grad_y_MH = torch.empty_like(x_MH) if prob > 0 else x_MH.new_empty(0)
    return torch.empty_like(x_MH), grad_y_MH, sums_P3H
