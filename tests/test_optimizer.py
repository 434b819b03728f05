"""Rates, updates by Adam and by Muon, and the seeds of steps."""

import dataclasses
import itertools
import math

import pytest
import torch
from networks import assert_same_tensors, rng
from torch import nn

from electra.assignments import override
from electra.model.encoder import Encoder
from electra.presets import PRESETS
from electra.training.config import OptimizerConfig
from electra.training.muon import (
    COEFFICIENTS,
    ITERATIONS,
    MOMENTUM,
    UPDATE_RMS,
    _iterate_gram,
    orthogonalise,
)
from electra.training.optimizer import (
    build_optimizer,
    find_norm,
    learning_rate_at,
    set_learning_rate,
    step_seed,
    update_unless,
)


def test_learning_rate_value_by_value():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4)
    rates = [learning_rate_at(step, 8, config) for step in range(9)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert learning_rate_at(0, 8, dataclasses.replace(config, warmup_steps=0)) == 1.0
    stable = dataclasses.replace(config, decay_fraction=0.25)
    rates = [learning_rate_at(step, 8, stable) for step in range(9)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    # Before the decay, a longer run has the same rates.
    assert rates[:6] == [learning_rate_at(step, 100, stable) for step in range(6)]


def test_the_decay_has_a_whole_number_of_steps():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=0, decay_fraction=0.35)
    assert [learning_rate_at(step, 10, config) for step in (6, 7, 9)] == [1, 0.75, 0.25]
    shortest = dataclasses.replace(config, decay_fraction=0.01)
    assert [learning_rate_at(step, 10, shortest) for step in (8, 9, 10)] == [1, 1, 0]


def test_the_released_code_learns_without_a_warm_up():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=0)
    assert [learning_rate_at(step, 4, config, "reference") for step in (0, 3)] == [1, 0.25]


def test_learning_rate_of_the_released_code():
    """peak (1 - t/T) min(1, t/W); for small the top is 4.95e-4, at the end of warm-up."""
    config = OptimizerConfig(learning_rate=5e-4, warmup_steps=10_000)
    rates = [learning_rate_at(t, 1_000_000, config, "reference") for t in range(0, 30_000, 100)]
    expected = [5e-4 * (1 - t / 1e6) * min(1, t / 1e4) for t in range(0, 30_000, 100)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert max(rates) == pytest.approx(4.95e-4, rel=1e-6)


def test_seeds_of_steps_differ():
    streams = itertools.product(range(3), ("dropout", "corruption"), range(500))
    seeds = {step_seed(*each) for each in streams}
    assert len(seeds) == 3000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_first_twenty_updates_are_those_of_the_uncorrected_adam():
    """A constant gradient: the update is (1 - 0.9^t) / sqrt(1 - 0.999^t) times torch's."""
    sizes = {}
    for mode in ("paper", "reference"):
        layer = torch.nn.Linear(1, 1, bias=False)
        config = OptimizerConfig(weight_decay=0.0, adam_epsilon=1e-12)
        optimizer = build_optimizer(layer, config, mode=mode)
        sizes[mode] = []
        for _ in range(20):
            before = layer.weight.item()
            layer.weight.grad = torch.full((1, 1), 0.3)
            optimizer.param_groups[0]["lr"] = 1.0
            optimizer.step()
            sizes[mode].append(before - layer.weight.item())
    for t, (paper, reference) in enumerate(zip(*sizes.values(), strict=True), start=1):
        factor = (1 - 0.9**t) / math.sqrt(1 - 0.999**t)
        assert reference / paper == pytest.approx(factor, rel=1e-3), t
    assert sizes["reference"][0] == pytest.approx(3.16, abs=0.01)
    assert max(sizes["reference"]) == pytest.approx(6.6, abs=0.05)


def test_a_reference_update_is_the_released_codes():
    """Its formulas in float64, 40 steps."""
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    layer = nn.Linear(8, 8, bias=False)
    optimizer = build_optimizer(layer, config, mode="reference")
    w, m, v = layer.weight.detach().double(), *torch.zeros(2, 8, 8, dtype=torch.float64)
    for step in range(40):
        gradient = torch.randn(8, 8, generator=rng(step))
        layer.weight.grad = gradient.clone()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient.double() ** 2
        w = w - 0.01 * (m / (v.sqrt() + config.adam_epsilon) + 0.1 * w)
        torch.testing.assert_close(layer.weight.detach().double(), w, rtol=1e-5, atol=1e-6)


def test_decay_is_decoupled_and_spares_biases_and_norms():
    encoder = Encoder(dataclasses.replace(PRESETS["tiny"].model, vocab_size=50))
    optimizer = build_optimizer(encoder, OptimizerConfig(learning_rate=0.1), mode="reference")
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in encoder.named_parameters():
        spared = name.endswith("bias") or "norm" in name
        expected = before[name] * (1 if spared else 1 - 0.1 * 0.01)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=0)


def test_vectors_and_numbers_have_no_decay_whatever_they_are_called():
    class Gains(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk_gain = nn.Parameter(torch.ones(8))
            self.scale = nn.Parameter(torch.ones(()))
            self.norm_matrix = nn.Parameter(torch.ones(8, 8))

    groups = build_optimizer(Gains(), OptimizerConfig(weight_decay=0.1)).param_groups
    decays = {each["weight_decay"]: [p.ndim for p in each["params"]] for each in groups}
    assert decays == {0.0: [1, 0], 0.1: [2]}


def test_a_matrix_of_one_row_is_a_vector_to_muon():
    layer, config = nn.Linear(8, 1), OptimizerConfig(matrices="muon")
    assert [group["num_blocks"] for group in build_optimizer(layer, config).param_groups] == [0, 0]
    layer = nn.Linear(8, 2)
    assert [group["num_blocks"] for group in build_optimizer(layer, config).param_groups] == [1, 0]


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 32, 128), (2, 128, 32)])
def test_singular_values_become_one_and_vectors_stay(shape):
    matrices = torch.randn(shape, generator=rng(0))
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    result = orthogonalise(matrices)
    reached = torch.linalg.svdvals(result)
    # The smallest values of a square matrix are still on their way up.
    large = values > 0.1 * values.amax(dim=1, keepdim=True)
    assert reached.max() < 1.3
    assert (left.mT @ result @ right.mT).diagonal(dim1=1, dim2=2)[large].min() > 0.6


@pytest.mark.parametrize("smallest", [1, 1e-3, 1e-6])
@pytest.mark.parametrize("shape", [(2, 32, 32), (2, 32, 128), (2, 128, 32)])
def test_wide_matrices_have_the_iterations_of_all(shape, smallest):
    """Gradients have small singular values, which squares of float32 numbers lose first."""
    random = torch.randn(shape, generator=rng(0), dtype=torch.float64)
    left, _, right = torch.linalg.svd(random, full_matrices=False)
    values = torch.logspace(0, math.log10(smallest), 32, dtype=torch.float64)
    matrices = left * values @ right
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + b * gram @ x + c * gram @ gram @ x
    difference = orthogonalise(matrices.float()) - x
    assert difference.norm() < 1e-3 * x.norm()


def test_updates_are_those_of_torch():
    """torch.optim.Muon iterates in bfloat16, so the bound is its precision."""
    start, grads = torch.randn(48, 96, generator=rng(0)), torch.randn(5, 48, 96, generator=rng(1))
    layer = nn.Linear(96, 48, bias=False)
    theirs = nn.Parameter(start.clone())
    with torch.no_grad():
        layer.weight.copy_(start)
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1, matrices="muon")
    ours = build_optimizer(layer, config)
    reference = torch.optim.Muon(
        [theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for grad in grads:
        layer.weight.grad, theirs.grad = grad.clone(), grad.clone()
        ours.step()
        reference.step()
    moved = theirs.detach() - start
    assert (layer.weight.detach() - theirs.detach()).norm() < 0.02 * moved.norm()
    rms = (layer.weight.detach() - start).square().mean().sqrt().item()
    assert rms < 5 * 0.01 * (1.1 * UPDATE_RMS + 0.1)


@pytest.mark.parametrize("matrices", ["adamw", "muon"])
def test_an_update_that_is_left_out_changes_nothing(matrices):
    """Gradients of such an update may be no numbers; the one after it is the first."""
    layers = nn.Linear(8, 4), nn.Linear(8, 4)
    layers[1].load_state_dict(layers[0].state_dict())
    config = OptimizerConfig(learning_rate=0.1, matrices=matrices)
    for layer, skips in zip(layers, ((True, False), (False,)), strict=True):
        optimizer = build_optimizer(layer, config)
        for is_skipped in skips:
            before = {name: each.detach().clone() for name, each in layer.named_parameters()}
            for each in layer.parameters():
                each.grad = torch.full_like(each, math.nan if is_skipped else 0.5)
            update_unless(torch.tensor(is_skipped), optimizer, torch.tensor(2.0))
            same = [torch.equal(each, before[name]) for name, each in layer.named_parameters()]
            assert same == 2 * [is_skipped]
        (moment,) = {"momentum", "exp_avg"} & optimizer.state[layer.weight].keys()
        share = 1 - {"momentum": MOMENTUM, "exp_avg": config.adam_beta1}[moment]
        expected = torch.full_like(layer.weight, 0.25 * share)  # of the gradient over the divisor
        torch.testing.assert_close(optimizer.state[layer.weight][moment], expected)
    assert_same_tensors(*(layer.state_dict() for layer in layers))


def test_rates_of_captured_updates_are_on_the_device_of_each_group():
    optimizer = build_optimizer(nn.Linear(4, 2, device="meta"), OptimizerConfig(), captured=True)
    assert [group["lr"].device.type for group in optimizer.param_groups] == ["meta", "meta"]


@pytest.mark.parametrize(
    ("shape", "is_wide"), [((4, 8), True), ((8, 4), True), ((4, 7), False), ((4, 4), False)]
)
def test_wide_matrices_are_iterated_in_their_smaller_product(monkeypatch, shape, is_wide):
    """The product of the shorter side with itself, of size 4, takes a fraction of the time."""
    grams = []

    def note(gram):
        grams.append(gram.shape)
        return _iterate_gram(gram)

    monkeypatch.setattr("electra.training.muon._iterate_gram", note)
    orthogonalise(torch.randn(3, *shape, generator=rng(0)))
    assert grams == [(3, 4, 4)] * is_wide


def test_query_key_and_value_are_three_matrices_and_vectors_have_adamw():
    config = override(PRESETS["tiny"], ["model.num_hidden_layers=1", "model.vocab_size=100"]).model
    muon, adamw = Encoder(config), Encoder(config)
    adamw.load_state_dict(muon.state_dict())
    before = {name: each.detach().clone() for name, each in muon.named_parameters()}
    for encoder, matrices in ((muon, "muon"), (adamw, "adamw")):
        settings = OptimizerConfig(learning_rate=0.1, weight_decay=0.0, matrices=matrices)
        optimizer = build_optimizer(encoder, settings)
        set_learning_rate(optimizer, 0.1)
        numbers = rng(1)
        for parameter in encoder.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=numbers)
        optimizer.step()
        assert all(optimizer.state[each] for each in encoder.parameters())
    pairs = zip(muon.named_parameters(), adamw.parameters(), strict=True)
    changed = [name for (name, ours), theirs in pairs if not torch.equal(ours, theirs)]
    matrices = ("attention.qkv", "attention.output", "intermediate", "output")
    assert changed == [f"layers.0.{name}.weight" for name in matrices]
    name = "layers.0.attention.qkv.weight"
    updates = (before[name] - muon.get_parameter(name).detach()) / 0.1
    scale = UPDATE_RMS * config.hidden_size**0.5
    for block in updates.chunk(3):
        assert torch.linalg.svdvals(block / scale).max() < 1.3


def test_the_norm_of_long_gradients_is_right():
    """torch's own norm of so many numbers is 0.05% too small on a CPU."""
    long, short = torch.randn(12_000_001, generator=rng(1)), torch.randn(3, 5, generator=rng(2))
    expected = math.hypot(long.double().norm().item(), short.double().norm().item())
    found = find_norm([long.view(1, -1), short])
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_the_norm_of_a_divided_models_gradients_is_torchs(monkeypatch):
    class Divided(torch.Tensor):
        full_tensor = True

    parts = []
    monkeypatch.setattr(nn.utils, "get_total_norm", lambda tensors, foreach: parts.extend(tensors))
    long = torch.ones(3, 50_000)
    find_norm([long, long.as_subclass(Divided), torch.ones(0)])
    assert [len(each.flatten()) for each in parts] == [65_536, 65_536, 18_928, 150_000, 0]
