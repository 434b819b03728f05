"""What is timed side by side is the same computation."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from benchmarks import finetune, gpu, kernels, load
from benchmarks import step as steps
from benchmarks.objectives import VARIANTS, configure
from benchmarks.step import Best, Loop, Ours, check_losses
from electra.cli import main
from electra.corpus.tokenizer import make_tokenizer
from electra.method.flops import count_run
from electra.method.registry import sketch_objective
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.memory import make_rows
from electra.settings import override
from electra.training.machine import Machine


@pytest.fixture
def variants():
    model = encoder_sizes(128, 2, 64, vocab_size=200)
    config = override(
        dataclasses.replace(PRESETS["small"], model=model),
        [
            "generator.hidden_fraction=0.5",
            "examples.sequence_length=32",
            "train.batch_size=4",
            "train.precision=float32",
        ],
    )
    ours = Ours(config, make_tokenizer(200), Machine())
    return config, [Loop(ours), Best(ours), ours]


def test_all_steps_compute_the_same_losses(variants):
    config, networks = variants
    losses = check_losses(networks, config, Machine())
    for pair in losses.values():
        assert pair == pytest.approx(losses["ours"], rel=1e-5)


def test_another_computation_is_noticed(variants):
    config, networks = variants
    with torch.no_grad():
        networks[0].generator.generator_lm_head.bias[0] += 5
    with pytest.raises(SystemExit, match="loop computes"):
        check_losses(networks, config, Machine())


def test_every_step_trains_both_networks(variants):
    config, networks = variants
    for network in networks:
        parameters = (
            list(network.model.parameters()) if network.name == "ours" else network.parameters
        )
        before = [parameter.detach().clone() for parameter in parameters]
        network.step(make_rows(config, 4, seed=0))
        moved = [not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)]
        assert all(moved), network.name


def test_objectives_are_compared_at_equal_compute(toy_shards):
    """Whole steps leave less than one in two hundred."""
    costs = {}
    for variant in VARIANTS:
        config = configure(variant, 0, 1000, toy_shards)
        costs[variant] = count_run(sketch_objective(config), config)["true"]
    for variant, cost in costs.items():
        assert cost == pytest.approx(costs["rtd"], rel=0.005), variant


def test_loading_is_measured(toy_shards):
    result = load.measure(toy_shards, rows=4, length=32, repeats=3)
    assert all(rate > 0 for rate in result["tokens_per_second"].values())
    low, middle, high = result["quartiles"]["batch"]
    assert low >= middle >= high


def test_what_a_gpu_is_asked_can_be_parsed(toy_shards, tmp_path, capsys):
    """Every command of benchmarks.gpu: its settings hold, its checks are there."""
    parts = gpu.list_parts(tmp_path, toy_shards)
    tests = (Path(__file__).parent / "test_step.py").read_text()
    for name, part in parts.items():
        module, words = part.command[2], part.command[3:]
        if module == "electra":
            main([*words, "--dry-run"])
            assert "train.compile=yes" in capsys.readouterr().out.splitlines()
        elif module == "pytest":
            for word in words[words.index("-k") + 1].split(" or "):
                assert re.search(rf"def test_\w*{word}", tests), (name, word)
        else:
            benchmark = {"benchmarks.step": steps, "benchmarks.kernels": kernels}[module]
            arguments = benchmark.read_arguments(words)
            config = override(PRESETS[arguments.preset], arguments.set)
            assert config.train.compile == "yes", name
    assert "pretrain" in parts


@pytest.fixture
def finetunings(toy_question, toy_tokenizer, tmp_path):
    settings = ["batch_size=16", "threads=1", "precision=float32"]
    return finetune.build_variants("own", toy_question, toy_tokenizer, "tiny", settings, tmp_path)


def test_fine_tuning_is_timed_beside_the_same_computation(finetunings):
    losses = finetune.check_losses(finetunings, torch.arange(16))
    assert list(losses) == [*finetune.TRAINERS, "ours"]
    for loss in losses.values():
        assert loss == pytest.approx(losses["ours"], rel=1e-5)
    before = [parameter.detach().clone() for parameter in finetunings[0].model.parameters()]
    results = finetune.measure(finetunings, steps=2, repeats=1)
    after = finetunings[0].model.parameters()
    assert not any(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert {result["examples"] for result in results.values()} == {32}
    assert all(min(result["seconds"]) > 0 for result in results.values())
    assert [row[0] for row in finetune.tabulate(results).rows] == list(losses)


def test_another_fine_tuning_is_noticed(finetunings):
    with torch.no_grad():
        finetunings[1].model.classifier.out_proj.bias[0] += 0.1
    with pytest.raises(SystemExit, match="trainer bf16 computes"):
        finetune.check_losses(finetunings, torch.arange(16))
