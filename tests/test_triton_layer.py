"""Triton's kernels in its interpreter on a CPU, against float64; and compiled for a GPU.

Triton chooses its interpreter when it is imported, so those tests run in a process of their own.
"""

import copy
import dataclasses
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from networks import assert_near_tensors, rng

from electra.model.deberta import DisentangledLayer, RelativePlaces, find_rows
from electra.model.electra import PostNormLayer
from electra.model.initialisation import init_weights
from electra.model.modernbert import PreNormLayer, RotaryPlaces
from electra.model.parts import Sight
from electra.presets import deberta_sizes, encoder_sizes, modern_sizes

pytest.importorskip("triton", reason="Triton is not installed")


IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def layers():
    """The module of the layer, over interpreted kernels."""
    if not IS_INTERPRETED:
        pytest.skip("runs in test_in_the_interpreter")
    from electra.model import triton as triton_layer

    return triton_layer


@pytest.mark.slow
@pytest.mark.skipif(IS_INTERPRETED, reason="runs the others")
def test_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", __file__, "-n", "0", "-p", "no:cacheprovider", "-v"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parent.parent
    answer = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:]
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed, answer.stdout[-3000:]
    assert int(passed[1]) >= 31


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # of Triton 3.9
@pytest.mark.skipif(IS_INTERPRETED, reason="no interpreter compiles")
@pytest.mark.parametrize(("width", "heads"), [(256, 4), (64, 4), (768, 12)])
def test_kernels_compile_for_a_gpu(width, heads):
    """In bfloat16 for compute capability 9.0: no spilled register, shared memory that suffices."""
    from electra.model import triton  # noqa: F401

    seed, mask = meta(1, dtype=torch.int64), meta(8, 1, 1, 128)
    qkv, out = meta(8, 128, 3, heads, width // heads), meta(8, 128, heads, width // heads)
    sums, vector = meta(8, heads, 128, dtype=torch.float32), meta(width, dtype=torch.float32)
    rows, statistics = meta(1024, width), meta(1024, 2, dtype=torch.float32)
    calls = {
        "attend": (qkv, mask, seed, 0.1, 0.125),
        "attend_backward": (out, out, sums, qkv, mask, seed, 0.1, 0.125),
        "gelu": (meta(1024, 4 * width),),
        "add_norm": (rows, rows, meta(width), vector, vector, seed, 0.1, 1e-12),
        "add_norm_backward": (rows, rows, rows, meta(width), vector, seed, statistics, 0.1),
    }
    assert_fits_a_gpu(calls)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # of Triton 3.9
@pytest.mark.skipif(IS_INTERPRETED, reason="no interpreter compiles")
@pytest.mark.parametrize("length", [512, pytest.param(100, marks=pytest.mark.slow)])
def test_attention_by_distance_compiles_for_a_gpu(length):
    """Of twelve heads of 64, which all published sizes have, with dropout and padding."""
    from electra.model import triton  # noqa: F401

    seed, mask = meta(1, dtype=torch.int64), meta(4, 1, 1, length)
    q, kv = meta(4, length, 12, 64), meta(4, length, 2, 12, 64)
    distances, pairs = meta(-(-length // 64) * 128, 2, 12, 64), meta(4, 12, length, length)
    given, sums = (
        (q, kv, distances, mask, seed, 0.1, 0.07),
        meta(4, 12, length, dtype=torch.float32),
    )
    calls = {
        "attend_by_distance": given,
        "attend_back_to_scores": (q, q, sums, *given),
        "attend_back_to_queries": (pairs, kv, distances, 0.07),
        "attend_back_to_keys": (q, pairs, pairs, q, distances, 0.07),
        "attend_back_to_distances": (pairs, q, kv, 0.07),
    }
    assert_fits_a_gpu(calls)


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def assert_fits_a_gpu(calls):
    from benchmarks.assembled import assemble_own

    for name, arguments in calls.items():
        ((assembly, _),) = assemble_own(f"electra::{name}", arguments)
        assert not assembly.spills, name
        assert assembly.shared <= 227 * 1024, name


def attention_64(qkv, mask, scale):
    """Attention in float64, with the factors that dropout multiplies the probabilities by."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) * scale
    probs = (scores if mask is None else scores + mask.double()).softmax(dim=-1)
    return lambda factors: (probs * factors @ v).transpose(1, 2)


MASKS = {
    "none": lambda real: None,
    "keys": lambda real: torch.zeros_like(real).masked_fill(real == 0, -1e30)[:, None, None],
    "documents": lambda real: torch.zeros(len(real), 1, real.shape[1], real.shape[1]).masked_fill(
        (real.cumsum(1) // 5)[:, None, :, None] != (real.cumsum(1) // 5)[:, None, None, :], -1e30
    ),
}


def assert_same_gradients(actual, expected, ours, exact):
    grad = torch.randn(actual.shape, generator=rng(9))
    expected.backward(grad.double())
    actual.backward(grad)
    assert_near_tensors([each.grad for each in ours], [each.grad for each in exact])


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("length", [16, 24, 72])
@pytest.mark.parametrize("prob", [0.0, 0.25])
def test_attention_and_its_gradient(layers, mask_name, length, prob):
    """Two rows, three heads of 32. Dropped are the same probabilities forward and backward."""
    x = torch.randn(2, length, 96, generator=rng(0))
    weight = torch.randn(288, 96, generator=rng(2)) * 0.15
    bias = torch.randn(288, generator=rng(3))
    real = (torch.arange(length) < torch.tensor([[length], [length - 7]])).float()
    mask, seed = MASKS[mask_name](real), torch.tensor([123])
    # Equal scores and unit vectors as values show what dropout keeps.
    shown = torch.zeros(2, length, 3, 3, 128)
    shown[:, :, 2] = torch.eye(length, 128)[None, :, None]
    factors = layers.attend(shown, None, seed, prob, 1.0)[0][..., :length] * length
    factors = factors.permute(0, 2, 1, 3).double()
    assert (factors == 0).double().mean() == pytest.approx(prob, abs=0.05)
    exact = [tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    ours = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    qkv = F.linear(*exact).view(2, length, 3, 3, 32)
    expected = attention_64(qkv, mask, 32**-0.5)(factors)
    actual = layers._Attend.apply(*ours, mask, seed, prob, 3)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
    assert_same_gradients(actual, expected, ours, exact)


def attention_by_distance_64(q, kv, distances, mask, factors):
    """The definition in float64; factors are those of dropout."""
    length, zero = q.shape[1], len(distances) // 2 - 1
    place = torch.arange(length)
    q, (k, v) = q.transpose(1, 2), kv.permute(2, 0, 3, 1, 4)
    # Of each pair the query and the key of its distance, (N, L, L, D).
    by_query, by_key = distances[place[:, None] - place + zero].permute(2, 3, 0, 1, 4)
    scores = q @ k.transpose(-1, -2)
    scores = scores + torch.einsum("bnid,nijd->bnij", q, by_key)
    scores = scores + torch.einsum("bnjd,nijd->bnij", k, by_query)
    scores = scores * (3 * q.shape[-1]) ** -0.5
    probs = (scores if mask is None else scores + mask.double()).softmax(dim=-1)
    return (probs * factors @ v).transpose(1, 2)


@pytest.mark.parametrize(
    ("length", "mask_name", "prob"),
    [(72, "keys", 0.25), (24, "none", 0.0), (128, "none", 0.25), (72, "documents", 0.0)],
)
def test_attention_by_distance_and_its_gradients(layers, length, mask_name, prob):
    """Two rows, two heads of 16. Dropped are the same probabilities forward and backward."""
    padded = layers.pad_length(length)
    shapes = [(2, length, 2, 16), (2, length, 2, 2, 16), (2 * padded, 2, 2, 16)]
    ours = [torch.randn(shape, generator=rng(n)) for n, shape in enumerate(shapes)]
    exact = [tensor.double().requires_grad_() for tensor in ours]
    real = (torch.arange(length) < torch.tensor([[length], [length - 7]])).float()
    mask, seed = MASKS[mask_name](real), torch.tensor([123])
    # Equal scores and unit vectors as values show what dropout keeps.
    shown = torch.zeros(2, length, 2, 2, 128)
    shown[:, :, 1] = torch.eye(length, 128)[None, :, None]
    nothing = torch.zeros(2 * padded, 2, 2, 128)
    kept, _ = layers.attend_by_distance(shown[:, :, 0], shown, nothing, None, seed, prob, 1.0)
    factors = kept[..., :length].transpose(1, 2).double() * length
    assert (factors == 0).double().mean() == pytest.approx(prob, abs=0.02)
    expected = attention_by_distance_64(*exact, mask, factors)
    for tensor in ours:
        tensor.requires_grad_()
    actual = layers._AttendByDistance.apply(*ours, mask, seed, prob)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
    assert_same_gradients(actual, expected, ours, exact)


def test_attention_by_distance_rounds_less_than_its_definition(layers):
    """Values and gradients in float16; the interpreter cannot multiply in bfloat16."""
    shapes, seed = [(1, 72, 2, 16), (1, 72, 2, 2, 16), (256, 2, 2, 16)], torch.tensor([1])
    drawn = [torch.randn(shape, generator=rng(n)).half() for n, shape in enumerate(shapes)]

    def compute(attend, dtype):
        tensors = [each.to(dtype).requires_grad_() for each in drawn]
        out = attend(*tensors)
        out.backward(torch.ones_like(out))
        return [each.double() for each in (out, *(tensor.grad for tensor in tensors))]

    def define(*tensors):
        return attention_by_distance_64(*tensors, None, 1.0)

    def attend(*tensors):
        return layers._AttendByDistance.apply(*tensors, None, seed, 0.0)

    expected = compute(define, torch.float64)
    found, plain = compute(attend, torch.float16), compute(define, torch.float16)
    for exact, actual, other in zip(expected, found, plain, strict=True):
        assert (actual - exact).norm() < (other - exact).norm()


def test_a_row_that_sees_nothing_sees_all_alike(layers):
    """As in the definition, in which the mask swamps the scores; and its gradient is finite."""
    qkv = torch.randn(1, 40, 3, 2, 16, generator=rng(0))
    mask = torch.zeros(1, 1, 40, 40)
    mask[:, :, 5] = torch.finfo(torch.float32).min / 2
    seed = torch.tensor([1])
    out, sums = layers.attend(qkv, mask, seed, 0.0, 0.25)
    torch.testing.assert_close(out[0, 5], qkv[0, :, 2].mean(dim=0))
    grad = torch.randn(out.shape, generator=rng(1))
    found, _ = layers.attend_backward(grad, out, sums, qkv, mask, seed, 0.0, 0.25)
    exact = qkv.double().requires_grad_()
    attention_64(exact, mask, 0.25)(1.0).backward(grad.double())
    assert_near_tensors([found], [exact.grad], tolerance=5e-4)


def test_gelu_and_its_slope_are_those_of_float64(layers):
    h = torch.linspace(-9, 9, 5001)
    exact = h.double().requires_grad_()
    F.gelu(exact).sum().backward()
    out, slope = layers.gelu(h)
    torch.testing.assert_close(out.double(), F.gelu(exact), rtol=0, atol=6e-7)
    torch.testing.assert_close(slope.double(), exact.grad, rtol=0, atol=6e-7)


@pytest.mark.parametrize(("rows", "width"), [(40, 64), (37, 96), (9, 768)])
@pytest.mark.parametrize("prob", [0.0, 0.25])
def test_a_residual_and_its_norm_and_their_gradients(layers, rows, width, prob):
    """Sizes that leave blocks partly empty. Dropped are the same elements forward and backward."""
    shapes = [(rows, width), (rows, width), (width,), (width,), (width,)]
    ours = [torch.randn(shape, generator=rng(n)) for n, shape in enumerate(shapes)]
    exact = [tensor.double().requires_grad_() for tensor in ours]
    seed, ones, zeros = torch.tensor([123]), torch.ones(rows, width), torch.zeros(rows, width)
    # Of ones added to nothing a norm leaves what is kept above what is dropped.
    shown, _ = layers.add_norm(zeros, zeros, *ones[:2], zeros[0], seed, prob, 1e-12)
    kept = (shown >= 0).double()
    assert (kept == 0).double().mean() == pytest.approx(prob, abs=0.06)
    x, y, bias, weight, shift = exact
    summed = x + (y + bias) * kept / (1 - prob)
    expected = F.layer_norm(summed, (width,), weight, shift, 1e-12)
    for tensor in ours:
        tensor.requires_grad_()
    actual = layers._AddNorm.apply(*ours, seed, prob, 1e-12)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
    assert_same_gradients(actual, expected, ours, exact)


def compute_layer(layer, mask, hidden_size, device="cpu", dtype=torch.float32, asking=False):
    """Values and gradients of a layer; a decoder's queries are given."""
    layer.to(device, torch.float64 if dtype == torch.float64 else torch.float32)
    length = mask.shape[-1]
    shapes = [(len(mask), length, hidden_size), (2 * length, hidden_size)]
    shapes += [shapes[0]] * asking
    drawn = [torch.randn(shape, generator=rng(n)) for n, shape in enumerate(shapes, 1)]
    x, table, *queries = (each.to(device, dtype).requires_grad_() for each in drawn)
    where = mask.to(device, dtype)
    if isinstance(layer, PreNormLayer):
        is_seen_BL = where[:, 0, 0] == 0
        sight = Sight(length, where.device, dtype, is_seen_BL, None, "all")
        where = RotaryPlaces(layer.config)(sight)[1]
    if isinstance(layer, DisentangledLayer):
        rows = find_rows(layer.config, length).to(device)
        where = RelativePlaces(where, table, rows - rows[0])
    y = layer(x, where, None, *queries)
    y.backward(torch.randn(y.shape, generator=rng(2)).to(device, dtype))
    inputs = [each.grad for each in (x, table, *queries) if each.grad is not None]
    return [y.detach(), *inputs, *(parameter.grad for parameter in layer.parameters())]


def make_layers(form, hidden_size, length, std):
    """The plain layer and ours with its weights, and a mask whose second row is short."""
    probs = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if issubclass(form, DisentangledLayer):
        sizes = deberta_sizes(hidden_size, 1, vocab_size=50, position_buckets=32, **probs)
        plain_form = DisentangledLayer
    elif issubclass(form, PreNormLayer):
        sizes, plain_form = modern_sizes(hidden_size, 2), PreNormLayer
        sizes = dataclasses.replace(sizes, local_attention=128 if length > 64 else 24)
    else:
        sizes, plain_form = encoder_sizes(hidden_size, 1, 32, vocab_size=50, **probs), PostNormLayer
    sizes = dataclasses.replace(sizes, num_attention_heads=hidden_size // 32)
    numbers = [1] * issubclass(form, PreNormLayer)  # the first layer with local attention
    plain, ours = plain_form(sizes, *numbers), form(sizes, *numbers)
    plain.config = ours.config = sizes
    init_weights(plain, std, rng(0))
    ours.load_state_dict(plain.state_dict())
    mask = torch.zeros(3, 1, 1, length)
    mask[1, ..., length - 9 :] = -1e30
    return plain, ours, mask


FORMS = ["TritonPostNormLayer", "TritonDisentangledLayer", "TritonPreNormLayer"]


@pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("length", [128, 100, 200])
@pytest.mark.parametrize("form", FORMS)
def test_cuda_layer_is_that_of_float64(form, dtype, tolerance, length):
    """Values and gradients, as distances relative to their norms."""
    from electra.model import triton

    plain, ours, mask = make_layers(getattr(triton, form), 256, length, 0.05)
    expected = compute_layer(plain, mask, 256, dtype=torch.float64)
    found = compute_layer(ours, mask, 256, "cuda", dtype)
    for exact, actual in zip(expected, found, strict=True):
        assert (actual.cpu().double() - exact).norm() <= tolerance * exact.norm()


@pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_kernels_drop_the_share_asked_for():
    from electra.model.triton import add_norm, attend

    shown = torch.zeros(64, 64, 3, 4, 64, device="cuda")
    shown[:, :, 2] = torch.eye(64, device="cuda")[None, :, None]
    nothing, ones = torch.zeros(512, 256, device="cuda"), torch.ones(256, device="cuda")

    def drop(number):
        seed = torch.tensor([number], device="cuda")
        normed, _ = add_norm(nothing, nothing, ones, ones, 0 * ones, seed, 0.1, 1e-12)
        return attend(shown, None, seed, 0.1, 1.0)[0] == 0, normed < 0

    for first, again, other in zip(drop(1), drop(1), drop(2), strict=True):
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert first.double().mean().item() == pytest.approx(0.1, abs=0.004)


@pytest.mark.parametrize(("form", "asking"), [*((form, False) for form in FORMS), (FORMS[1], True)])
def test_the_layer_is_the_plain_one(layers, form, asking):
    """Values and gradients without dropout, masked rows; also as a decoder."""
    plain, ours, mask = make_layers(getattr(layers, form), 64, 20, 0.1)
    results = (compute_layer(layer, mask, 64, asking=asking) for layer in (plain, ours))
    assert_near_tensors(*results, least=1e-3)


def attend_to_sequences(q, k, v, ends, same, longest, also, *, window_size):
    """What torch's kernel computes, sequence by sequence in float32."""
    assert same is ends
    assert longest == also >= (ends[1:] - ends[:-1]).max()
    context = torch.empty_like(q)
    for start, end in pairwise(ends.tolist()):
        place = torch.arange(end - start)
        is_far = (place[:, None] - place).abs() > window_size[0]
        parts = (each[start:end].transpose(0, 1).float() for each in (q, k, v))
        attended = F.scaled_dot_product_attention(*parts, ~is_far)
        context[start:end] = attended.transpose(0, 1).to(q.dtype)
    return context


@pytest.mark.parametrize("is_padded", [True, False])
def test_windows_of_long_rows_are_those_of_torchs_kernel(layers, monkeypatch, is_padded):
    """Values and gradients before padding, in bfloat16; documents apart are computed plainly."""
    calls = []

    def attend(*tensors, **settings):
        calls.append(len(tensors[3]) - 1)
        return attend_to_sequences(*tensors, **settings)

    monkeypatch.setattr(layers, "varlen_attn", attend)
    sizes = dataclasses.replace(modern_sizes(64, 2), local_attention=16)
    plain, ours = PreNormLayer(sizes, 1), layers.TritonPreNormLayer(sizes, 1)
    init_weights(plain, 0.1, rng(0))
    ours.load_state_dict(plain.state_dict())
    is_real_BL = torch.arange(100) < torch.tensor([[100], [70], [9]])

    def compute(layer, dtype, documents_BL=None):
        layer = copy.deepcopy(layer).to(torch.float64 if dtype == torch.float64 else torch.float32)
        real_BL = is_real_BL if is_padded else None
        sight = Sight(100, torch.device("cpu"), dtype, real_BL, documents_BL, "all")
        x = torch.randn(3, 100, 64, generator=rng(1)).to(dtype).requires_grad_()
        y = layer(x, RotaryPlaces(sizes)(sight)[1], None)
        if is_padded:
            y = y * is_real_BL[:, :, None]
        y.backward(torch.randn(y.shape, generator=rng(2)).to(dtype))
        return [y.detach(), x.grad, *(each.grad for each in layer.parameters())]

    expected = compute(plain, torch.float64)
    others, found = compute(plain, torch.bfloat16), compute(ours, torch.bfloat16)
    assert calls == [6 if is_padded else 3]
    for exact, other, actual in zip(expected, others, found, strict=True):
        assert (actual - exact).norm() < 1.5 * (other - exact).norm()
    documents_BL = torch.arange(100).expand(3, 100) // 40 + 1
    by_document = (compute(layer, torch.bfloat16, documents_BL) for layer in (plain, ours))
    assert_near_tensors(*by_document, tolerance=0)
    assert len(calls) == 1
