"""What is timed side by side is the same computation."""

import dataclasses
import itertools
import json
import lzma
import math
import re
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import succeed
from safetensors.torch import load, load_file
from tasks import write_files

from benchmarks import (
    assembled,
    finetune,
    gpu,
    gpu_bundle,
    kernels,
    lowered,
    month,
    recipes,
    trillion,
)
from benchmarks import load as loading
from benchmarks import step as steps
from benchmarks.objectives import VARIANTS, configure, trace
from benchmarks.step import Best, Loop, Ours, check_losses
from electra.assignments import override
from electra.cli import app
from electra.errors import UserError
from electra.files import write_json
from electra.method.flops import count_run, count_true
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.memory import make_rows
from electra.pretraining.networks import sketch_objective
from electra.reproduce.plan import make_plan
from electra.reproduce.suite import read_suite
from electra.shards.store import open_shards
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

SPEED = {"small-unmasked.json": '{"seconds_per_step": 0.01, "losses": [1]}'}
"""What a GPU has measured."""


@pytest.fixture
def variants():
    model = encoder_sizes(128, 2, 64, vocab_size=200)
    small = ["generator.hidden_fraction=0.5", "examples.sequence_length=32", "train.batch_size=4"]
    config = dataclasses.replace(PRESETS["small"], model=model)
    config = override(config, [*small, "train.precision=float32"])
    ours = Ours(config, make_tokenizer(200), Machine())
    return config, [Loop(ours), Best(ours), ours]


def test_all_steps_compute_the_same_losses_and_train_both_networks(variants):
    config, networks = variants
    losses = check_losses(networks, config, Machine())
    for pair in losses.values():
        assert pair == pytest.approx(losses["ours"], rel=1e-5)
    for each in networks:
        parameters = list(each.model.parameters()) if each.name == "ours" else each.parameters
        before = [parameter.detach().clone() for parameter in parameters]
        each.step(make_rows(config, 4, seed=0))
        assert not any(map(torch.equal, before, parameters)), each.name
    with torch.no_grad():
        networks[0].generator.generator_lm_head.bias[0] += 5
    with pytest.raises(SystemExit, match="loop computes"):
        check_losses(networks, config, Machine())


@pytest.mark.parametrize("variant", VARIANTS)
def test_objectives_are_compared_at_equal_compute(variant, toy_shards):
    """Whole steps leave less than one in two hundred."""
    configs = [configure(each, 0, 1000, toy_shards) for each in ("rtd", variant)]
    rtd, cost = (count_run(sketch_objective(config), *config.amount)["true"] for config in configs)
    assert cost == pytest.approx(rtd, rel=0.005)


def test_loading_is_measured(toy_shards):
    result = loading.measure(toy_shards, copies=3, rows=4, length=32, repeats=3)
    once = open_shards(toy_shards).train
    assert result["shards"] == 3 * len(once)
    assert result["tokens"] == 3 * sum(shard.num_tokens for shard in once)
    assert all(rate > 0 for rate in result["tokens_per_second"].values())
    low, middle, high = result["quartiles"]["batch"]
    assert low >= middle >= high


def test_what_a_gpu_is_asked_can_be_parsed(toy_text, toy_shards, tmp_path, capsys):
    """Every command of benchmarks.gpu: its settings hold, its checks are there."""
    bundle, out = tmp_path / "bundle", write_files(tmp_path / "out", SPEED)
    names = (*gpu.FINETUNINGS.values(), "WNLI")
    data = [write_files(tmp_path / name, {"train.tsv": "rows"}) for name in names]
    gpu_bundle.write_bundle([toy_text], data, toy_text, bundle, limit=1 << 20)
    parts = gpu.list_parts(out, bundle)
    for name, part in parts.items():
        module, words = part.command[2], part.command[3:]
        if module == "pytest":
            file = next(word for word in words if word.startswith("tests/"))
            tests = (Path(__file__).parent.parent / file).read_text()
            for word in words[words.index("-k") + 1].split(" or "):
                assert re.search(rf"def test_\w*{word}", tests), (name, word)
        elif module.startswith("benchmarks"):
            benchmark = {"benchmarks.step": steps, "benchmarks.kernels": kernels}[module]
            arguments = benchmark.read_arguments(words)
            config = override(PRESETS[arguments.preset], arguments.set)
            assert config.train.compile != "auto", name
    words = [*parts["pretrain"].command[3:], *gpu.plan_pretraining(out, 600)]
    shutil.copytree(toy_shards, out / "shards")
    told = succeed(capsys, *words, "--dry-run").out.splitlines()
    assert {"train.compile=yes", "examples.short_prob=0.0", "train.steps=48600"} <= set(told)
    for command in ("prepare", "export", "finetune-cola"):
        assert command.partition("-")[0] in parts[command].command
    assert str(bundle / "0/glue/CoLA") in parts["finetune-cola"].command
    words = parts["reproduce"].command[3:]
    tasks = words[words.index("--tasks") + 1 : words.index("--data")]
    assert set(tasks) == set(gpu.FINETUNINGS)  # no WNLI
    assert f"cola={bundle}/0/glue/CoLA" in words
    app.parse_args(words, exit_on_error=False, print_error=False)
    shutil.rmtree(bundle / "0/glue")  # comes with a later call
    assert gpu.list_parts(out, bundle)["finetune-cola"].command


def test_a_gpu_pretrains_with_the_fastest_right_variant(tmp_path):
    seconds = {"small": 8, "small-triton": 6, "small-wide": 1, "small-autotune": 2}
    for name, each in seconds.items():
        losses = [45.0, 45.0 if name != "small-autotune" else 46.0]
        write_json(tmp_path / f"{name}.json", {"seconds_per_step": each / 1000, "losses": losses})
    assert gpu.choose_variant(tmp_path) == ("small", 0.008)  # the kernels are not yet checked
    (tmp_path / "triton.passed").touch()
    assert gpu.choose_variant(tmp_path) == ("small-triton", 0.006)
    with pytest.raises(SystemExit, match="no measured variant"):
        gpu.choose_variant(tmp_path / "other")


@pytest.mark.parametrize(("seconds", "fraction"), [(1000, 0.045), (1500, 0.0625)])
def test_a_gpu_reproduces_as_much_of_table_1_as_the_time_allows(
    tmp_path, toy_shards, seconds, fraction
):
    """Steps of a hundredth of a second: 62,500 of each row take 1,389 seconds with a reserve."""
    out = write_files(tmp_path / "out", SPEED)
    gpu.write_suite(out, seconds)
    suite = read_suite(out / "table-1.toml")
    electra, bert = make_plan(suite, open_shards(toy_shards)).runs
    assert electra.config.train.steps == pytest.approx(1e6 * fraction, rel=0.1)
    assert electra.config.train.compile == "yes"
    assert electra.config.examples.short_prob == 0
    assert electra.flops["true"] == pytest.approx(bert.flops["true"], rel=1e-3)
    assert bool(suite.rows[0].paper) == (fraction == 0.0625)  # the paper's score is of this one
    gpu.write_suite(out, seconds / 2)
    assert read_suite(out / "table-1.toml") == suite  # a later call continues


def test_half_an_hour_is_planned_minute_by_minute(tmp_path, monkeypatch, capsys):
    (tmp_path / "bundle" / "0").mkdir(parents=True)
    (tmp_path / "bundle" / "0" / "text-0.txt.xz").write_bytes(bytes(3 << 20))
    words = ["gpu", "--out", str(tmp_path / "gpu"), "--bundle", str(tmp_path / "bundle")]
    monkeypatch.setattr("sys.argv", [*words, "--dry-run"])
    gpu.main()
    *plan, end, carried = capsys.readouterr().out.splitlines()
    starts = [float(line.split()[1].rstrip(":")) for line in [*plan, end]]
    takes = [float(line.split(", ")[1].split()[0]) for line in plan]
    ends = [start + took for start, took in zip(starts[:-1], takes, strict=True)]
    assert starts[1:] == pytest.approx(ends, abs=0.11)
    assert starts[-1] <= 27
    firsts = [line.split()[2].rstrip(",") for line in plan]
    assert firsts == ["warm-small" if name == "warm" else name for name in gpu.SCHEDULE]
    assert carried == f"carried: {tmp_path / 'bundle' / '0'}, 3.0 MiB"
    assert not (tmp_path / "gpu").exists()


def test_a_failed_check_ends_nothing_else(tmp_path, capsys):
    """It is told at the end; what was written is packed."""
    words = {"kernels": "raise SystemExit(3)", "captured": "print('fine')"}
    parts = {
        name: gpu.Part(60, [sys.executable, "-c", code], is_check=True)
        for name, code in words.items()
    }
    assert gpu.run_parts(parts, list(parts), tmp_path, 120, 60) == ["kernels"]
    assert "captured: done" in capsys.readouterr().out
    with tarfile.open(gpu.pack_records(tmp_path)) as archive:
        assert archive.getnames() == ["captured.log", "kernels.log"]
    names = ["kernels", "finetune-cola", "finetune-rte", "export"]
    assert list(gpu.group_parts(names)) == [["kernels"], names[1:3], ["export"]], "at once"
    parts = gpu.list_parts(tmp_path, None)
    names = list(gpu.find_names(parts, ["kernels", "warm", "small", "base"]))
    assert names == ["kernels", "warm-small", "warm-base", "small", "base"]
    assert list(gpu.group_parts(names))[1] == names[1:3]
    assert parts["warm-base"].command == [*parts["base"].command, "--warm"]


@pytest.mark.slow
def test_a_step_is_timed_without_a_profiler(tmp_path, monkeypatch, capsys):
    """Its time is written before the profile, which fails where a GPU's counters are closed."""
    monkeypatch.setattr(kernels, "profile_steps", lambda ours: 1 / 0)
    out = tmp_path / "tiny.json"
    small = ["model.num_hidden_layers=1", "model.vocab_size=64", "examples.sequence_length=16"]
    words = ["kernels", "--preset", "tiny", "--batch-size", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", [*words, "--set", *small])
    kernels.main()
    record = json.loads(out.read_text())
    assert len(record["losses"]) == kernels.NUM_LOSSES
    assert record["seconds_per_step"] == min(record["timings"]) > 0
    assert "kernels" not in record
    assert "There is no profile of this step." in out.with_suffix(".md").read_text()
    assert "no profile: ZeroDivisionError: division by zero" in capsys.readouterr().out


@pytest.mark.slow
def test_a_bundle_holds_the_text_in_parts(tmp_path):
    """Cut between documents, none larger than its limit; together they are the text."""
    rng = torch.Generator().manual_seed(0)
    words = torch.randint(10**9, (1_000_000,), generator=rng).tolist()
    documents = ["\n".join(map(str, words[low : low + 50])) for low in range(0, 1_000_000, 50)]
    text = "\n\n".join(documents) + "\n"
    packed = lzma.compress(text.encode(), preset=0)
    path = write_files(tmp_path, {"numbers.txt.xz": packed}) / "numbers.txt.xz"
    (tmp_path / "parts").mkdir()
    parts = gpu_bundle.pack_text(path, tmp_path / "parts", 1 << 20)
    assert len(parts) > 1
    unpacked = [lzma.decompress(part.read_bytes()).decode() for part in parts]
    assert "".join(unpacked) == text
    assert all(part.endswith("\n\n") for part in unpacked[:-1])
    sizes = [part.stat().st_size for part in parts]
    groups = gpu_bundle.share_out(parts, 2 * max(sizes))
    assert sorted(part for group in groups for part in group) == sorted(parts)
    with pytest.raises(SystemExit, match="more than the limit"):
        gpu_bundle.share_out(parts, min(sizes) - 1)


def test_a_model_is_packed_in_pieces(run, exported, tmp_path):
    """Joined they are the exported networks in bfloat16."""
    out = tmp_path / "pieces"
    gpu.pack_model(exported, run, out, limit=100_000)
    assert all(path.stat().st_size <= 100_000 for path in out.glob("*.safetensors.*"))
    for prefix, folder in (("", exported), ("generator-", exported / "generator")):
        pieces = sorted(out.glob(f"{prefix}model.safetensors.*"))
        joined = load(b"".join(piece.read_bytes() for piece in pieces))
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert torch.equal(joined[name], tensor.bfloat16())
    assert (out / "metrics.jsonl").exists()
    assert (out / "manifest.json").exists()


DISASSEMBLY = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FFMA R2, R3, R4, R5 ;
.L_x_2:
        /*0020*/                   MUFU.EX2 R6, R2 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/               @P2 BRA `(.L_x_3) ;
        /*0060*/                   STL [R1], R6 ;
.L_x_3:
        /*0070*/                   EXIT ;
.L_x_4:
        /*0080*/                   BRA `(.L_x_4);
        /*0090*/                   NOP;
"""


def test_instructions_are_counted_as_often_as_loops_run():
    """A loop in a loop; branches forward and to themselves are none."""
    counts = assembled.count_instructions(DISASSEMBLY, trips=3)
    assert counts == {"LDC": 1, "FFMA": 3, "MUFU": 9, "BRA": 9 + 3 + 1 + 1, "STL": 1, "EXIT": 1}


def test_a_kernel_takes_as_long_as_the_slowest_of_its_causes():
    """8.2 MB and instructions of 132 programs, one a processor, four warps of 1,755 cycles."""
    assembly = assembled.Assembly(32, 0, 0, instructions=1755, num_warps=4)
    launch = assembled.Launch("kernel", "norms", 8_200_000, assembly=assembly, num_programs=132)
    assert launch.issue_seconds == pytest.approx(1e-6)
    assert launch.floor_seconds == pytest.approx(2e-6)
    assert launch._replace(num_programs=1320).floor_seconds == pytest.approx(1e-5)
    kinds = lowered.describe_kinds([launch, launch, launch._replace(kind="sums")])
    assert kinds["norms"] == pytest.approx(
        {"launches": 2, "gb": 0.0164, "tflop": 0, "bytes_us": 4, "flops_us": 0}
        | {"issue_us": 2, "floor_us": 4}
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
@pytest.mark.filterwarnings("ignore")  # of what the compiler does itself
def test_a_step_is_lowered_without_a_gpu():
    """Two networks of one layer, in two ways: kernels are counted, and Triton's are fewer."""
    sizes = ["model.num_hidden_layers=1", "model.vocab_size=500", "train.batch_size=16"]
    settings = [[*sizes, f"train.layers={layers}"] for layers in ("plain", "triton")]
    configs = [override(PRESETS["small"], each) for each in settings]
    counts = [lowered.count_step(config) for config in configs]
    plain, ours = (count.record for count in counts)
    assert plain["attention"] == ours["attention"] == 4  # forward and backward
    assert ours["triton"] < plain["triton"]
    assert ours["bytes"] < plain["bytes"]
    assert plain["outside"] < 20
    launches = lowered.assemble(counts[1])
    kinds = lowered.describe_kinds(launches)
    assert kinds["attention"]["launches"] == 4
    assert kinds["products"]["flops_us"] > 0
    assert not sum(launch.assembly.spills for launch in launches if "electra::" in launch.name)


@pytest.fixture
def finetunings(toy_question, toy_tokenizer, tmp_path):
    settings = ["batch_size=16", "threads=1", "precision=float32"]
    return finetune.build_variants("own", toy_question, toy_tokenizer, "tiny", settings, tmp_path)


def test_fine_tuning_is_timed_beside_the_same_computation(finetunings):
    losses = finetune.check_losses(finetunings, torch.arange(16))
    assert list(losses) == [*finetune.TRAINERS, "ours"]
    for loss in losses.values():
        assert loss == pytest.approx(losses["ours"], rel=1e-5)
    bias = finetunings[1].model.classifier.out_proj.bias.data
    bias[0] += 0.1
    with pytest.raises(SystemExit, match="trainer bf16 computes"):
        finetune.check_losses(finetunings, torch.arange(16))
    bias[0] -= 0.1
    before = [parameter.detach().clone() for parameter in finetunings[0].model.parameters()]
    results = finetune.measure(finetunings, steps=2, repeats=1)
    assert not any(map(torch.equal, before, finetunings[0].model.parameters()))
    assert {result["examples"] for result in results.values()} == {32}
    assert all(min(result["seconds"]) > 0 for result in results.values())
    assert [row[0] for row in finetune.tabulate(results).rows] == list(losses)


def test_a_recipe_is_told_when_it_reaches_the_loss():
    """Between two checkpoints in proportion; before the first one from the constant's loss."""
    points = ((10, 0.4), (20, 0.45), (40, 0.3))
    curve = [{"step": step, "loss": loss, "constant_loss": 0.5} for step, loss in points]
    assert recipes.find_share(curve, 0.45) == pytest.approx(0.125)
    assert recipes.find_share(curve[1:], 0.375) == pytest.approx(0.75)
    assert recipes.find_share(curve, 0.2) is None


def test_recipes_have_the_shares_of_the_first_one():
    """Of another width, equal FLOPs are other seconds."""
    config = {"train": {"batch_size": 2}, "examples": {"sequence_length": 5}}
    records = [
        {"variant": variant, "steps": steps, "curve": [point], "averaged": point}
        | {"seed": 0, "config": config, "scores": {"sts-b": 0.5}}
        for variant, steps, loss in (("present", 100, 0.4), ("muon", 50, 0.4))
        for point in [{"step": steps, "loss": loss, "constant_loss": 0.5, "auc": 0.6}]
    ]
    taken = {"present": [3.0, 1.0, 2.0], "muon": [6.0, 8.0, 7.0]}
    budgets = {"present": 1e9, "muon": 2e9}
    scratch = {"present": {"sts-b": 0.3}}
    table = recipes.tabulate(records, taken, budgets, scratch)
    shares = [table.headers.index(f"share of {cost}") for cost in ("FLOPs", "seconds")]
    first, other, alone = [[row[column] for column in shares] for row in table.rows]
    assert (first, other, alone) == (["1.00", "1.00"], ["2.00", "1.75"], ["-", "-"])


def test_recipes_go_on_from_their_results(tmp_path):
    record = {"variant": "muon", "seed": 1, "manifest": {"shards": "abc"}}
    scratch = {"present": {"sts-b": 0.6}}
    known = {"preset": "tiny", "equal": "flops", "flops": {"muon": 1e9}, "scratch": scratch}
    write_json(tmp_path / "out.json", {**known, "records": [record]})
    facts = {"preset": "tiny", "equal": "flops", "tasks": ["sts-b"], "shards": "abc"}
    found = recipes.restore(tmp_path / "out.json", tmp_path / "runs", **facts)
    assert found == ({"muon": 1e9}, scratch)
    path = recipes.name_run(tmp_path / "runs", "muon", 1) / "recipe.json"
    assert json.loads(path.read_text()) == record
    for change in ({"preset": "small"}, {"tasks": ["cola"]}, {"shards": "other"}):
        with pytest.raises(UserError, match=f"has other {next(iter(change))}: choose another"):
            recipes.restore(tmp_path / "out.json", tmp_path / "runs", **(facts | change))


@pytest.mark.parametrize("variant", recipes.VARIANTS)
def test_recipes_spend_the_same_flops(variant, toy_shards):
    preset = "tiny" if variant in recipes.STUDIES["architectures"] else "quickstart"
    config = recipes.configure(preset, variant, 0, 1e12, toy_shards)
    length = config.examples.sequence_length
    per_token = count_true(sketch_objective(config), length)
    spent = per_token * config.train.steps * config.train.batch_size * length
    assert spent == pytest.approx(1e12, rel=0.2)  # whole steps, in eight parts
    assert config.train.steps == 8 * config.train.save_every


def test_results_hold_no_folder():
    session = {"command": ["electra", "/home/me"], "commit": "abc", "device": "CPU"}
    manifest = {"shards": {"folder": "/data", "sha256": "0f"}, "seed": 1, "sessions": [session]}
    session = {"commit": "abc", "device": "CPU"}
    assert trace(manifest) == {"shards": "0f", "seed": 1, "sessions": [session]}


def test_a_month_has_the_length_of_the_closed_form():
    """Without failures in a restart: (M + R) (e^((interval + save) / M) - 1) for each interval."""
    between, interval, times = 5000.0, 600.0, month.Times(300, 40, 40, 0)
    rng, work = np.random.default_rng(0), 200 * 600.0
    walls = []
    for _ in range(2000):
        failures = (month.Failure(rng.exponential(between), 0) for _ in itertools.count())
        walls.append(month.simulate(work, interval, times, failures).wall - times.start)
    expected = (between + times.start) * math.expm1((interval + times.block) / between) * 200
    assert np.mean(walls) == pytest.approx(expected, rel=0.01)
    best = month.find_interval(times.block, between)
    costs = [month.promise(times, between, best * scale)[1] for scale in (0.8, 1, 1.25)]
    assert costs[1] == max(costs)


def test_what_a_failure_costs_is_what_was_not_saved():
    """Saves of 1 s behind each 10 s of steps are whole after 3 s."""
    times, failures = month.Times(5, 1, 3, 7), [(34.0, 2), (12.0, 0), (99.0, 0)]
    found = month.simulate(50, 10, times, [month.Failure(*each) for each in failures])
    # 31 s of steps and 20 kept (the third save is cut off); 11 and none; then the rest, 30.
    assert found == (5 + 34 + 2 * 7 + 5 + 12 + 5 + 32, 11 + 11, 2)


def test_failures_come_at_the_rate_of_the_log_and_in_heaps():
    """Of 64 GPUs; the machines that fail often are in some months, and in others not."""
    rng, rate = np.random.default_rng(0), 0.01
    drawn = [next(month.draw(rng, 64, rate)) for _ in range(20000)]
    assert np.mean([each.failed for each in drawn]) == pytest.approx(2, rel=0.05)
    months = [month.draw(rng, 64, rate) for _ in range(1000)]
    counts = [sum(1 for _ in takewhile_sum(each, 30 * month.DAY)) for each in months]
    assert np.mean(counts) == pytest.approx(64 * rate * 30, rel=0.05)
    assert np.var(counts) > 2 * np.mean(counts)


def takewhile_sum(failures, end):
    at = 0.0
    for failure in failures:
        at += failure.uptime
        if at > end:
            return
        yield failure


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path):
    shards = month.make_shards(tmp_path)
    config = month.make_config("train.steps=20", "train.log_every=1", "train.save_every=4")
    times, end = month.measure(tmp_path / "whole", shards, config)
    assert all(value > 0 for value in times.values())
    failures = [month.Failure(6, 1), month.Failure(2, 0), month.Failure(1e9, 0)]
    found = month.endure(shards, tmp_path / "run", config, failures, seed=0)
    assert (found["kills"], found["failures"], found["kills_in_a_start"]) == (3, 2, 1)
    assert found["lost_steps"] >= 2
    assert month.hash_end(tmp_path / "run") == end


def test_machines_share_a_trillion_tokens(tmp_path, monkeypatch):
    """Each copies its part once; speed and failures are those of the files."""
    monkeypatch.setattr(trillion, "TOKENS", 10**10)
    monkeypatch.setattr(trillion, "SHARD_TOKENS", 1 << 24)
    months = [{"gpus": gpus, "log": "Llama 3 405B", "goodput": 0.5} for gpus in (8, 64)]
    write_json(tmp_path / "month.json", {"simulated": months})
    write_json(tmp_path / "step.json", {"flops_per_second": 1e14})
    words = f"trillion --gpus 8 64 --month {tmp_path}/month.json --step {tmp_path}/step.json"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--out", str(tmp_path / "out.json")])
    trillion.main()
    record = json.loads((tmp_path / "out.json").read_text())
    one, eight = record["rows"]
    assert one["steps"] * 4096 * 512 == pytest.approx(10**10, rel=1e-3)
    assert 8 * eight["copied_bytes"] == pytest.approx(record["corpus_bytes"], rel=0.1)
    assert one["copied_bytes"] == pytest.approx(record["corpus_bytes"], rel=0.1)
    for row in (one, eight):
        step = row["flops"] / row["steps"] / row["gpus"] / 1e14 + row["sum_seconds"]
        assert row["hours"] == pytest.approx(2 * step * row["steps"] / 3600)
