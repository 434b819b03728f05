"""What a run will take: exact counts, memory that grows as it should, time that is real."""

import dataclasses
import itertools
import re

import pytest
import torch

from electra.errors import UserError
from electra.method.flops import count_run
from electra.method.registry import sketch_objective
from electra.model.encoder import Encoder
from electra.presets import PRESETS, encoder_sizes, modern_sizes
from electra.pretraining.loop import pretrain
from electra.pretraining.plan import (
    estimate_run,
    free_in_groups,
    free_memory,
    make_rows,
    measure_activations,
    plan,
    require_memory,
    time_step,
)
from electra.pretraining.start import build_model
from electra.settings import override
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

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
    check_plan(config)


def test_plan_of_modernbert(config):
    """Local attention in blocks: rows of 128 tokens are longer than a window of 16."""
    model = dataclasses.replace(modern_sizes(64, 4), vocab_size=500, local_attention=16)
    config = dataclasses.replace(config, model=model)
    found = check_plan(config)
    wide = override(config, ["model.local_attention=256"])
    assert found.flops["true"] < count_run(sketch_objective(wide), wide)["true"]
    assert found.memory > 0


def check_plan(config):
    """Exact counts, and the time of steps of 0.3 seconds."""
    seen = []
    ticks = itertools.count()
    found = plan(config, 4, seen.append, lambda: 0.3 * next(ticks))
    model = build_model(config, make_tokenizer(500), Machine())
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.kept_parameters == sum(p.numel() for p in model.discriminator.parameters())
    assert found.tokens == 1000 * 8 * 128
    assert found.flops == count_run(sketch_objective(config), config)
    assert seen == sorted(seen)
    assert seen[-2] < 4 == seen[-1]
    assert found.seconds == pytest.approx(1000 * 0.3)
    return found


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("probe_seconds", [0.1, 0.7, 2])
def test_time_is_that_of_whole_steps(config, probe_seconds, accumulation):
    """Also where the probe is too short for one: here a row takes a hundredth of a second."""
    config = override(config, [f"train.accumulation={accumulation}"])
    model = build_model(config, make_tokenizer(500), Machine())
    rows = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0].input_ids_BL)))
    found = time_step(model, config, Machine(), probe_seconds, clock=lambda: 0.01 * sum(rows))
    assert found == pytest.approx(0.08)
    assert max(rows) == min(config.train.micro_batch_size, max(1, round(probe_seconds / 5 / 0.01)))


def test_a_step_that_fits_into_the_probe_is_timed_whole(config):
    """Here most of it does not grow with the rows: 50 ms a step and 1 ms a row."""
    model = build_model(config, make_tokenizer(500), Machine())
    rows = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0].input_ids_BL)))
    clock = lambda: 0.05 * len(rows) + 0.001 * sum(rows)  # noqa: E731
    assert time_step(model, config, Machine(), 1.0, clock=clock) == pytest.approx(0.058)


def test_a_run_is_estimated_from_one_layer(config):
    """Here the pass of four rows of 128 tokens takes two seconds, and sets no threads."""
    threads, ticks = torch.get_num_threads(), itertools.count(0, 2)
    found = estimate_run(config, Machine(threads=threads), lambda: next(ticks))
    run = count_run(sketch_objective(config), config)["true"]
    layer = sum(Encoder(encoder_sizes(64, 1, 32)).count_flops(128).values())
    assert found == pytest.approx(2 * run / (3 * layer * 4 * 128))
    assert torch.get_num_threads() == threads


def test_memory_is_what_a_piece_keeps(config):
    model = build_model(config, make_tokenizer(500), Machine())
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
        r"a step needs about [\d.]+ GiB, and [\d.]+ GiB are free: set train.accumulation=(\d+); "
        "train.check_memory=false begins without this estimate",
        str(refusal.value),
    )
    pieces = int(says[1])
    model = build_model(config, make_tokenizer(config.model.vocab_size), Machine())
    require_memory(model, override(config, [f"train.accumulation={2 * pieces}"]), Machine())
    with pytest.raises(UserError, match="a step needs about"):
        require_memory(model, override(config, [f"train.accumulation={pieces // 2}"]), Machine())
    require_memory(model, override(config, ["train.check_memory=false"]), Machine())
    with pytest.raises(
        UserError, match=r"free: set train.batch_size=\d+, or method.contrast_weight=0"
    ):
        require_memory(model, override(config, ["method.objective=cocolm"]), Machine())


def write_group(folder, limit, used, stat, version=2):
    folder.mkdir(parents=True, exist_ok=True)
    names = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / f"memory.{name}").write_text(f"{value}\n")
    (folder / "memory.stat").write_text("".join(f"{k} {v}\n" for k, v in stat.items()))


CACHE = {"anon": 300, "inactive_file": 400, "active_file": 200, "slab_reclaimable": 50, "slab": 60}


def test_page_cache_of_a_control_group_is_free(tmp_path):
    """That of the process's own group and of each one above; limits that are none do not count."""
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    membership.write_text("0::/job/step\n")
    write_group(mount / "job" / "step", "max", 960, CACHE)
    write_group(mount / "job", 1000, 960, CACHE)
    write_group(mount / "job" / "other", 10, 10, {})
    assert free_in_groups(membership, mount) == [40 + 650]
    write_group(mount, 2000, 1950, {"inactive_file": 7})
    assert free_in_groups(membership, mount) == [690, 57]


def test_control_groups_seen_from_a_container(tmp_path):
    """The path is the host's, and what is mounted is the container's own group."""
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    membership.write_text("0::/docker/5f3a\n")
    write_group(mount, 1000, 900, CACHE)
    assert free_in_groups(membership, mount) == [750]
    membership.write_text("0::/../../other\n")
    assert free_in_groups(membership, mount) == [750]


def test_control_groups_of_version_1(tmp_path):
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    membership.write_text("5:cpu,cpuacct:/\n4:memory:/job\n1:name=systemd:/\n0::/\n")
    stat = {"inactive_file": 1, "total_inactive_file": 400, "total_active_file": 200}
    write_group(mount / "memory" / "job", 1000, 900, stat, version=1)
    assert free_in_groups(membership, mount) == [700]
    assert free_in_groups(tmp_path / "none", mount) == []
