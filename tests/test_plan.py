"""What a run will take: exact counts, memory that grows as it should, time that is real."""

import dataclasses
import re

import pytest
import torch

from electra.config import UserError
from electra.memory import free_memory, make_rows, measure_activations, require_memory
from electra.method.flops import count_run
from electra.plan import make_tokenizer, plan, time_step
from electra.presets import PRESETS, encoder_sizes
from electra.pretrain import pretrain
from electra.settings import override
from electra.start import build_model

CPU = torch.device("cpu")


@pytest.fixture
def config():
    model = encoder_sizes(64, 2, 32, vocab_size=500)
    return override(
        dataclasses.replace(PRESETS["small"], model=model),
        [
            "generator.hidden_fraction=1",
            "train.batch_size=8",
            "train.steps=1000",
            "train.precision=float32",
            "train.threads=1",
        ],
    )


def test_plan(config):
    seen = []
    found = plan(config, 0.5, seen.append)
    model = build_model(config, make_tokenizer(500), torch.float32)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.kept_parameters == sum(p.numel() for p in model.discriminator.parameters())
    assert found.tokens == 1000 * 8 * 128
    assert found.flops == count_run(config)
    assert seen == sorted(seen)
    assert 0.4 < seen[-1] < 5
    assert 1 < found.seconds < 1000


def test_time_is_that_of_whole_steps(config):
    """A probe too short for a step of all rows gives much the same as a long one."""
    model = build_model(config, make_tokenizer(500), torch.float32)
    long, short = (time_step(model, config, CPU, seconds) for seconds in (1.0, 0.1))
    assert 0.2 < short / long < 5


def test_memory_is_what_a_piece_keeps(config):
    model = build_model(config, make_tokenizer(500), torch.float32)
    row = measure_activations(model, config, CPU)
    # Two networks of two layers: queries, keys, values, probabilities, inner states ... of 128
    # tokens; between 10 and 100 numbers of the hidden size each.
    states = 4 * 128 * 64
    assert 4 * 10 * states < row < 4 * 100 * states
    whole = plan(config, 0.05, lambda seconds: None).memory
    pieces = plan(override(config, ["train.accumulation=4"]), 0.05, lambda seconds: None).memory
    assert whole - pieces == pytest.approx(6 * row, rel=1e-6)


def test_rows_are_full_and_different(config):
    first, second = (make_rows(config, 3, seed) for seed in (0, 1))
    assert first.input_ids_BL.shape == (3, 128)
    assert (first.input_ids_BL[:, 0] == 2).all()
    assert (first.input_ids_BL[:, 1:-1] >= 5).all()
    assert not torch.equal(first.input_ids_BL, second.input_ids_BL)
    assert all(tensor.is_contiguous() for tensor in (first.input_ids_BL, first.token_type_ids_BL))


def test_a_step_that_does_not_fit_is_refused_before_anything_is_written(
    toy_shards, toy_config, tmp_path
):
    """A thousand million rows; in as many pieces as the refusal says, they do."""
    if free_memory(CPU) is None:
        pytest.skip("this system does not say how much memory is free")
    config = override(toy_config, ["train.batch_size=1000000000"])
    with pytest.raises(UserError) as refusal:
        pretrain(toy_shards, tmp_path / "run", config, lambda record: None)
    assert list(tmp_path.iterdir()) == []
    says = re.fullmatch(
        r"a step needs about [\d.]+ GiB, and [\d.]+ GiB are free: set train.accumulation=(\d+)",
        str(refusal.value),
    )
    pieces = int(says[1])
    model = build_model(config, make_tokenizer(config.model.vocab_size), torch.float32)
    require_memory(model, override(config, [f"train.accumulation={2 * pieces}"]), CPU)
    with pytest.raises(UserError, match="a step needs about"):
        require_memory(model, override(config, [f"train.accumulation={pieces // 2}"]), CPU)
