"""`method.mode=reference`: the released code's quirks, each against what was derived from it."""

import dataclasses
import math

import pytest
import torch
from networks import rng

from electra.config import OptimizerConfig
from electra.method.masking import (
    Draw,
    Masking,
    Vocabulary,
    choose_positions_of_reference,
    count_slots,
)
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.model.initialisation import draw_glorot, init_weights
from electra.presets import PRESETS
from electra.settings import override
from electra.training.optimizer import build_optimizer, learning_rate_at

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(torch.ones(30_522, dtype=torch.bool))
REFERENCE = override(PRESETS["small"], ["method.mode=reference"])


def full_rows(num, length=128):
    ids = torch.randint(5, 30_522, (num, length), generator=rng(0))
    ids[:, 0], ids[:, -1] = CLS, SEP
    return Batch(ids, None, torch.zeros_like(ids))


@pytest.mark.parametrize(
    ("length", "prob", "slots", "drawn", "distinct", "share"),
    [
        (128, 0.15, 19, 19, 17.7, 0.138),
        (512, 0.15, 79, 77, 71.5, 0.140),
        (512, 0.25, 130, 128, 113.3, 0.221),
    ],
)
def test_positions_are_drawn_with_replacement(length, prob, slots, drawn, distinct, share):
    """Means over 4,000 rows within 0.05 of what n (1 - (1 - 1/n)^k) gives."""
    rows = full_rows(4000, length)
    maskable = rows.input_ids_BL >= 5
    uniform = torch.rand(4000, count_slots(prob, length, "reference"), generator=rng(1))
    real = torch.ones_like(maskable)
    index, chosen = choose_positions_of_reference(maskable, real, prob, uniform)
    assert index.shape == (4000, slots)
    assert (chosen.sum(dim=1) == drawn).all()
    assert maskable.gather(1, index)[chosen].all()
    hit = torch.zeros_like(maskable).scatter(1, index.masked_fill(~chosen, 0), True)
    hit[:, 0] = False
    mean = hit.sum(dim=1).double().mean().item()
    exact = (length - 2) * (1 - (1 - 1 / (length - 2)) ** drawn)
    assert exact == pytest.approx(distinct, abs=0.06)
    assert mean == pytest.approx(exact, abs=0.05 * (length / 128))
    assert mean / length == pytest.approx(share, abs=0.001)


def test_short_and_empty_rows():
    real = torch.arange(32) < torch.tensor([32, 10, 3, 2])[:, None]
    maskable = real.clone()
    maskable[:, 0] = False
    maskable[torch.arange(4), real.sum(dim=1) - 1] = False
    uniform = torch.rand(4, count_slots(0.15, 32, "reference"), generator=rng(0))
    index, chosen = choose_positions_of_reference(maskable, real, 0.15, uniform)
    assert chosen.sum(dim=1).tolist() == [4, 2, 1, 0]
    assert maskable.gather(1, index)[chosen].all()


def test_what_is_shown_and_what_two_draws_become():
    """A position chosen twice shows [MASK] if either says so, and gets the mean of two ids."""
    masking = Masking(REFERENCE.method, VOCABULARY)
    ids = torch.tensor([[CLS, 10, 11, 12, 13, SEP]])
    draw = Draw(
        index_BS=torch.tensor([[2, 2, 4, 1, 0]]),
        chosen_BS=torch.tensor([[True, True, True, True, False]]),
        shown_BS=torch.tensor([[0.9, 0.1, 0.86, 0.84, 0.0]]),
        random_BS=torch.zeros(1, 5),
        sample_BS=torch.zeros(1, 5),
    )
    assert masking.mask(ids, draw).tolist() == [[CLS, MASK, MASK, 12, 13, SEP]]
    sampled = torch.tensor([[100, 205, 77, 10, 999]])
    assert masking.corrupt(ids, draw, sampled).tolist() == [[CLS, 10, 152, 12, 77, SEP]]


def test_shares_of_what_is_shown():
    """85 of 100 slots show [MASK]: of positions chosen once, within 4 deviations."""
    rows = full_rows(4000)
    masking = Masking(REFERENCE.method, VOCABULARY)
    draw = masking.draw(rows, rng(1))
    times = torch.zeros_like(rows.input_ids_BL).scatter_add(1, draw.index_BS, draw.chosen_BS.long())
    once = times == 1
    masked = masking.mask(rows.input_ids_BL, draw)
    assert torch.equal(masked[times == 0], rows.input_ids_BL[times == 0])
    num = int(once.sum())
    share = (masked[once] == MASK).double().mean().item()
    assert share == pytest.approx(0.85, abs=4 * math.sqrt(0.85 * 0.15 / num))
    assert ((masked == MASK) | (masked == rows.input_ids_BL)).all()


def test_learning_rate_value_by_value():
    """peak (1 - t/T) min(1, t/W); for small the top is 4.95e-4, at the end of warm-up."""
    config = OptimizerConfig(learning_rate=5e-4, warmup_steps=10_000)
    rates = [learning_rate_at(t, 1_000_000, config, "reference") for t in range(0, 30_000, 100)]
    expected = [5e-4 * (1 - t / 1e6) * min(1, t / 1e4) for t in range(0, 30_000, 100)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[0] == 0
    assert max(rates) == pytest.approx(4.95e-4, rel=1e-6)


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


def test_glorot_where_no_initialiser_was_named():
    """Uniform in +-sqrt(6 / (in + out)): the projection and the last layer, nothing else."""
    sizes = dataclasses.replace(REFERENCE.model, vocab_size=50, num_hidden_layers=1)
    network = torch.nn.ModuleDict({"encoder": Encoder(sizes), "head": DiscriminatorHead(sizes)})
    init_weights(network, 0.02, rng(0))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    draw_glorot(network, rng(1))
    changed = {n: p for n, p in network.named_parameters() if not torch.equal(p, before[n])}
    bounds = {
        "encoder.embeddings_project.weight": math.sqrt(6 / (128 + 256)),
        "head.dense_prediction.weight": math.sqrt(6 / (256 + 1)),
    }
    assert changed.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert bound * 0.95 < changed[name].abs().max() <= bound
