"""Weights, gradients and moments in long tensors: the same steps and the same checkpoints."""

import pytest
import torch
from networks import assert_near_tensors, assert_same_tensors, rng
from test_step import (
    OBJECTIVES,
    machine_for,
    make_config,
    make_model,
    make_step,
    padded,
    without_dropout,
)
from torch import nn

from electra.checkpoints.checkpoint import copy_state, load_state
from electra.pretraining.memory import make_rows
from electra.pretraining.step import Step
from electra.training.config import OptimizerConfig
from electra.training.flat import ALIGNMENT, FlatBuffers
from electra.training.optimizer import build_optimizer, find_norm

STEPS = 12
CASES = {name: OBJECTIVES[name] for name in ("rtd", "apart", "warm-up", "two-stage", "reference")}
CASES |= {
    "muon": ["optimizer.matrices=muon", "optimizer.generator_rate=0.5"],
    "muon after a stage": ["optimizer.matrices=muon", "generator.warmup_steps=6"],
    "warm-up of a step": ["generator.warmup_steps=1"],
    "unigram": ["generator.kind=unigram"],
}


def advance(step, done, end):
    """Do the steps from `done` to `end`, and return a copy of what a checkpoint has."""
    for number in range(done, end):
        if number in step.model.stages[1:]:
            step.begin_stage(step.model.stage_at(number))
        step(number, padded(make_rows(step.config, 8, number)), 1e-3)
    return copy_state(step.model, step.optimizer, step.memory)


def make_plain_step(config):
    return Step(make_model(config).train(), config, machine_for(config))


def load(step, state, done):
    for stage in range(1, step.model.stage_at(done - 1) + 1):
        step.begin_stage(stage)
    load_state(state, step.model, step.optimizer, step.memory)
    return step


def assert_near_states(ours, theirs):
    for file, least in (("model.safetensors", 0.01), ("optimizer.safetensors", 0.0)):
        assert_near_tensors(ours[file], theirs[file], 1e-4, least)


@pytest.mark.parametrize("name", CASES)
def test_steps_and_checkpoints_are_those_of_the_plain_step(name):
    """Before and after a stage, and continued from a checkpoint of either."""
    settings = ["train.accumulation=2", f"train.steps={STEPS}", *CASES[name]]
    config = without_dropout(make_config(*settings))
    flat, plain = make_step(config), make_plain_step(config)
    for done, end in ((0, 1), (1, 5), (5, STEPS)):
        ours, theirs = advance(flat, done, end), advance(plain, done, end)
        assert_near_states(ours, theirs)
        if end == 5:
            others = load(make_step(config), ours, end), load(make_plain_step(config), ours, end)
    again, crossed = (advance(each, 5, STEPS) for each in others)
    for file, tensors in ours.items():
        assert_same_tensors(again[file], tensors)
    assert_near_states(crossed, ours)


def test_an_update_has_few_long_tensors():
    """Weights with decay and vectors, in each stage those that it trains, where they were."""
    step = make_step(make_config("generator.warmup_steps=2", f"train.steps={STEPS}"))
    groups, parameters = step.optimizer.param_groups, list(step.model.parameters())
    assert sum(len(group["params"]) for group in groups) == len(parameters) > 50
    sizes = []
    for done in range(4):
        advance(step, done, done + 1)
        runs = [each for group in groups for each in group["params"]]
        assert len(runs) <= 4
        assert set(step.optimizer.state) <= {*parameters, *runs}
        sizes.append(sum(each.numel() for each in runs))
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3]
    num_weights = sum(each.numel() for each in parameters)
    assert num_weights <= sizes[3] < num_weights + ALIGNMENT * len(parameters)
    storages = {each.untyped_storage().data_ptr() for each in [*parameters, *runs]}
    assert storages == {step.flat.weights.untyped_storage().data_ptr()}
    assert not any(each.storage_offset() % ALIGNMENT for each in parameters)


@pytest.mark.parametrize("bias", [True, False])
def test_a_run_may_have_one_parameter(bias):
    ours, theirs = nn.Linear(5, 3, bias=bias), nn.Linear(5, 3, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    optimizers = [build_optimizer(each, OptimizerConfig()) for each in (ours, theirs)]
    buffers = FlatBuffers(optimizers[0])
    for number in range(3):
        for layer in (ours, theirs):
            numbers = rng(number)
            for each in layer.parameters():
                each.grad = torch.randn(each.shape, generator=numbers)
        gathered = torch.cat(buffers.gather())
        norm = find_norm([each.grad for each in theirs.parameters()])
        torch.testing.assert_close(gathered.norm(), norm)
        for optimizer in optimizers:
            optimizer.step()
        if number == 1:  # begin anew in the middle, with their moments
            buffers.plans.clear()
    assert_near_tensors(ours.state_dict(), theirs.state_dict(), 1e-6)
    for pair in zip(ours.parameters(), theirs.parameters(), strict=True):
        found, expected = (each.state[one] for each, one in zip(optimizers, pair, strict=True))
        assert_near_tensors(found, expected, 1e-6)
