"""Muon: orthogonal updates of matrices, beside AdamW for everything else."""

import math

import pytest
import torch
from torch import nn

from electra.config import OptimizerConfig
from electra.model.encoder import Encoder
from electra.presets import PRESETS
from electra.settings import override
from electra.training.muon import COEFFICIENTS, ITERATIONS, UPDATE_RMS, orthogonalise
from electra.training.optimizer import build_optimizer, set_learning_rate


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 32, 128), (2, 128, 32)])
def test_singular_values_become_one_and_vectors_stay(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
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
    rng = torch.Generator().manual_seed(0)
    random = torch.randn(shape, generator=rng, dtype=torch.float64)
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
    rng = torch.Generator().manual_seed(0)
    start, grads = torch.randn(48, 96, generator=rng), torch.randn(5, 48, 96, generator=rng)
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


def grads_of(encoder):
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(each.shape, generator=rng) for each in encoder.parameters()]


def test_query_key_and_value_are_three_matrices_and_vectors_have_adamw():
    config = override(PRESETS["tiny"], ["model.num_hidden_layers=1", "model.vocab_size=100"]).model
    muon, adamw = Encoder(config), Encoder(config)
    adamw.load_state_dict(muon.state_dict())
    before = {name: each.detach().clone() for name, each in muon.named_parameters()}
    for encoder, matrices in ((muon, "muon"), (adamw, "adamw")):
        settings = OptimizerConfig(learning_rate=0.1, weight_decay=0.0, matrices=matrices)
        optimizer = build_optimizer(encoder, settings)
        set_learning_rate(optimizer, 0.1)
        for parameter, grad in zip(encoder.parameters(), grads_of(encoder), strict=True):
            parameter.grad = grad
        optimizer.step()
        state = {name: set(optimizer.state[each]) for name, each in encoder.named_parameters()}
        assert all(keys for keys in state.values())
    changed = {
        name
        for name, each in muon.named_parameters()
        if not torch.equal(each, adamw.get_parameter(name))
    }
    layer = "layers.0."
    assert changed == {
        layer + name + ".weight"
        for name in ("attention.qkv", "attention.output", "intermediate", "output")
    }
    name = "layers.0.attention.qkv.weight"
    updates = (before[name] - muon.get_parameter(name).detach()) / 0.1
    scale = UPDATE_RMS * config.hidden_size**0.5
    for block in updates.chunk(3):
        assert torch.linalg.svdvals(block / scale).max() < 1.3
