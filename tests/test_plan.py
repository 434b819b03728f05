"""What a run will take: exact counts, time that is real, and memory, also where recomputed."""

import dataclasses
import itertools
import re
import subprocess
import sys

import pytest
import torch
from networks import assert_same_tensors
from refusals import refuse
from torch.autograd.graph import get_gradient_edge

from electra.assignments import override
from electra.errors import UserError
from electra.method.flops import count_run
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.presets import PRESETS, encoder_sizes, modern_sizes
from electra.pretraining import memory
from electra.pretraining.memory import (
    free_in_groups,
    free_memory,
    make_rows,
    measure_activations,
    require_memory,
)
from electra.pretraining.networks import sketch_objective
from electra.pretraining.plan import estimate_run, plan, time_step
from electra.pretraining.start import build_model
from electra.processes import usable_cores
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

CPU = torch.device("cpu")
RECOMPUTE = "train.recompute_activations=true"


def config_of(*settings):
    """Two networks of two layers, with two kinds of dropout; 1,000 steps of 8 rows of 32 tokens."""
    probs = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
    model = encoder_sizes(64, 2, 32, vocab_size=500, **probs)
    usual = ["generator.hidden_fraction=1", "examples.sequence_length=32", "train.threads=1"]
    usual += ["train.batch_size=8", "train.steps=1000", "train.precision=float32"]
    return override(override(dataclasses.replace(PRESETS["small"], model=model), usual), settings)


def build(config):
    return build_model(config, make_tokenizer(500), Machine())


def weigh(model):
    """The bytes of its weights."""
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.fixture
def let_free(monkeypatch):
    """Return what sets the number of bytes that are free."""
    return lambda size: monkeypatch.setattr(memory, "free_memory", lambda device: size)


@pytest.mark.parametrize("body", ["electra", "modernbert"])
def test_a_plan_has_exact_counts_and_the_time_of_steps(body):
    """Of 0.3 seconds. Local attention in blocks: rows are longer than a window of 16."""
    config = config_of("examples.sequence_length=128")
    if body == "modernbert":
        model = dataclasses.replace(modern_sizes(64, 4), vocab_size=500, local_attention=16)
        config = dataclasses.replace(config, model=model)
    seen, ticks = [], itertools.count()
    found = plan(config, 4, seen.append, lambda: 0.3 * next(ticks))
    model = build(config)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.kept_parameters == sum(p.numel() for p in model.discriminator.parameters())
    assert found.tokens == 1000 * 8 * 128
    assert found.flops == count_run(sketch_objective(config), *config.amount)
    assert found.memory > 0
    assert seen == sorted(seen)
    assert seen[-2] < 4 == seen[-1]
    assert found.seconds == pytest.approx(1000 * 0.3)
    if body == "modernbert":
        wide = override(config, ["model.local_attention=256"])
        assert found.flops["true"] < count_run(sketch_objective(wide), *wide.amount)["true"]


@pytest.mark.parametrize(("probe_seconds", "accumulation"), [(0.1, 1), (0.1, 3), (0.7, 3), (2, 1)])
def test_time_is_that_of_whole_steps(probe_seconds, accumulation):
    """Also where the probe is too short for one: here a row takes a hundredth of a second."""
    config = config_of(f"train.accumulation={accumulation}")
    model, rows = build(config), []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0].input_ids_BL)))
    found = time_step(model, config, Machine(), probe_seconds, clock=lambda: 0.01 * sum(rows))
    assert found == pytest.approx(0.08)
    assert max(rows) == min(config.train.micro_batch_size, max(1, round(probe_seconds / 5 / 0.01)))


def test_a_step_that_fits_into_the_probe_is_timed_whole():
    """Here most of it does not grow with the rows: 50 ms a step and 1 ms a row."""
    config = config_of()
    model, rows = build(config), []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0].input_ids_BL)))
    clock = lambda: 0.05 * len(rows) + 0.001 * sum(rows)  # noqa: E731
    assert time_step(model, config, Machine(), 1.0, clock=clock) == pytest.approx(0.058)


def test_a_run_is_estimated_from_one_layer():
    """Here the pass of four rows of 128 tokens takes two seconds, and sets no threads."""
    config = config_of("examples.sequence_length=128")
    threads, ticks = torch.get_num_threads(), itertools.count(0, 2)
    found = estimate_run(config, Machine(threads=threads), lambda: next(ticks))
    run = count_run(sketch_objective(config), *config.amount)["true"]
    layer = sum(Encoder(encoder_sizes(64, 1, 32)).count_flops(128).values())
    assert found == pytest.approx(2 * run / (3 * layer * 4 * 128))
    assert torch.get_num_threads() == threads


def test_rows_are_full_and_different():
    first, second = (make_rows(config_of(), 3, seed) for seed in (0, 1))
    assert first.input_ids_BL.shape == (3, 32)
    assert (first.input_ids_BL[:, 0] == 2).all()
    assert (first.input_ids_BL[:, 1:-1] >= 5).all()
    assert not torch.equal(first.input_ids_BL, second.input_ids_BL)
    assert all(tensor.is_contiguous() for tensor in (first.input_ids_BL, first.token_type_ids_BL))


def test_memory_is_what_a_piece_keeps():
    config = config_of("examples.sequence_length=128")
    row = measure_activations(build(config), config, CPU)
    # Two networks of two layers: queries, keys, values, probabilities, inner states ... of 128
    # tokens; between 10 and 100 numbers of the hidden size each.
    states = 4 * 128 * 64
    assert 4 * 10 * states < row < 4 * 100 * states
    pieces = override(config, ["train.accumulation=4"])
    whole, less = (plan(each, 0.05, lambda seconds: None).memory for each in (config, pieces))
    assert whole - less == pytest.approx(6 * row, rel=1e-6)


@pytest.mark.filterwarnings("ignore:the run reads the text")
def test_a_step_that_does_not_fit_is_refused_before_anything_is_written(
    train, toy_config, tmp_path
):
    """A thousand million rows; in as many pieces as the refusal says, they do."""
    if free_memory(CPU) is None:
        pytest.skip("this system does not say how much memory is free")
    with pytest.raises(UserError) as refusal:
        train("run", "train.batch_size=1000000000")
    assert list(tmp_path.iterdir()) == []
    says = re.fullmatch(
        r"a step needs about [\d.]+ GiB, and [\d.]+ GiB are free: set train.accumulation=(\d+); "
        "train.check_memory=false begins without this estimate",
        str(refusal.value),
    )
    config, pieces = override(toy_config, ["train.batch_size=1000000000"]), int(says[1])
    model = build_model(config, make_tokenizer(config.model.vocab_size), Machine())
    for fits in (f"train.accumulation={2 * pieces}", "train.check_memory=false"):
        require_memory(model, override(config, [fits]), Machine())
    for setting, line in (
        (f"train.accumulation={pieces // 2}", "a step needs about"),
        ("method.objective=cocolm", r"free: set train.batch_size=\d+, or method.contrast_weight=0"),
    ):
        with pytest.raises(UserError, match=line):
            require_memory(model, override(config, [setting]), Machine())


def test_a_row_that_does_not_fit_is_to_be_recomputed(let_free):
    """Half a row fits: the refusal names the setting; with it, rows fit one by one."""
    config = config_of("model.num_hidden_layers=3")
    recomputed = override(config, [RECOMPUTE])
    model, recomputing = build(config), build(recomputed)
    weights, row = weigh(model), measure_activations(model, config, CPU)
    let_free(3 * weights + row / 2)  # besides them: gradients and Adam's two moments
    refuse("set train.recompute_activations=true, or", require_memory, model, config, Machine())
    with pytest.raises(UserError, match=r"set train\.accumulation=\d;"):
        require_memory(recomputing, recomputed, Machine())
    require_memory(recomputing, override(recomputed, ["train.accumulation=8"]), Machine())
    let_free(2 * weights)
    refuse("free: choose a smaller model", require_memory, model, config, Machine())


def test_a_divided_model_needs_less(let_free):
    """On each of many processes: whole weights and gradients of what is no layer, and of two."""
    config = config_of("train.batch_size=1", "model.num_hidden_layers=12")
    model = build(config)
    let_free(2 * weigh(model))
    refuse("a step needs about", require_memory, model, config, Machine())
    require_memory(model, override(config, ["train.sharding=full"]), Machine(num_ranks=8))


@pytest.mark.slow
@pytest.mark.parametrize("length", [32, 192])
@pytest.mark.parametrize("settings", [["plain"], ["fused"], ["fused", RECOMPUTE]], ids=" ".join)
def test_the_estimate_is_what_more_rows_take(settings, length):
    """From 20 to 60 rows, with eight layers, where attention is little and where it is most."""
    layers, *more = settings
    more += [f"train.layers={layers}", f"examples.sequence_length={length}"]
    config = config_of("model.num_hidden_layers=8", *more)
    model = build(config)
    few, many = (allocated_at_once(model, make_rows(config, rows, 0)) for rows in (20, 60))
    assert measure_activations(model, config, CPU) == pytest.approx((many - few) / 40, rel=0.2)


def allocated_at_once(model, batch):
    """The most bytes that torch held at once in a step, as its profiler saw it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        model(batch, *model.masking.draw(batch, torch.Generator().manual_seed(0))).loss.backward()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


@pytest.mark.parametrize("settings", [[], [RECOMPUTE]], ids=" ".join)
def test_the_estimate_leaves_no_graph_behind(settings):
    """What accumulates gradients would stay bound to its stream, and break a CUDA graph."""
    config = config_of("train.layers=plain", *settings)
    model = build(config)

    def mark(*_):
        for parameter in model.parameters():
            get_gradient_edge(parameter).node.metadata["of"] = "the estimate"

    model.register_forward_hook(mark)
    measure_activations(model, config, CPU)
    assert not any(get_gradient_edge(each).node.metadata for each in model.parameters())


def gradients(*settings):
    """Loss and gradients of two pieces of a step, and the state of the dropout's randomness."""
    config = config_of("model.num_hidden_layers=3", *settings)
    model, batch = build(config), make_rows(config, 6, seed=0)
    draw, counts = model.masking.draw(batch, torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    losses = []
    for rows in (slice(0, 3), slice(3, 6)):
        output = model(batch.rows(rows), draw.rows(rows), counts)
        output.loss.backward()
        losses.append(output.loss.detach())
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {"losses": torch.stack(losses), "state": torch.get_rng_state()}


@pytest.mark.parametrize(
    "settings",
    [
        *("method.sharing=embeddings", "method.sharing=none", "method.sharing=all"),
        *("method.objective=electric", "method.scheme=adversarial", "examples.attend=document"),
        *("method.objective=all_tokens_mlm", "model.hidden_dropout_prob=0"),
        "model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0",
    ],
)
@pytest.mark.parametrize("layer", ["plain", "fused"])
def test_recomputed_losses_and_gradients_are_the_same_to_the_bit(layer, settings):
    settings = [f"train.layers={layer}", *settings.split()]
    kept, recomputed = gradients(*settings), gradients(*settings, RECOMPUTE)
    assert len(kept) > 30
    assert_same_tensors(recomputed, kept)


@pytest.mark.slow
@pytest.mark.parametrize("prob", [0.0, 0.1])
def test_recomputed_and_compiled_as_one_graph_it_keeps_less_and_computes_the_same(prob):
    """torch.compile(fullgraph=True), with dropout, documents and padding."""
    sizes = encoder_sizes(
        64, 3, 32, vocab_size=50, hidden_dropout_prob=prob, attention_probs_dropout_prob=prob / 2
    )
    ids = torch.randint(50, (4, 16), generator=torch.Generator().manual_seed(0))
    real = torch.arange(16) < torch.tensor([[16], [9], [16], [3]])
    numbers = (1 + torch.arange(16) // 6) * real

    def run(recompute):
        torch._dynamo.reset()
        encoder = Encoder(sizes, recompute_activations=recompute)
        init_weights(encoder, 0.1, torch.Generator().manual_seed(0))
        compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
        torch.manual_seed(1)
        saved = {}

        def note(tensor):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            states = compiled(ids, document_ids_BL=numbers)
        (states[real] ** 3).sum().backward()
        weights = sum(parameter.nbytes for parameter in encoder.parameters())
        found = {name: parameter.grad for name, parameter in encoder.named_parameters()}
        return found | {"states": states.detach()}, sum(saved.values()) - weights

    kept, bytes_kept = run(recompute=False)
    recomputed, bytes_recomputed = run(recompute=True)
    assert bytes_recomputed < 0.3 * bytes_kept
    for name, tensor in kept.items():
        torch.testing.assert_close(recomputed[name], tensor, atol=1e-6, rtol=1e-5)


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


def test_the_time_that_a_container_has_counts_as_cores(tmp_path):
    membership, mount = tmp_path / "cgroup", tmp_path / "mount"
    all_cores = usable_cores(membership, mount)
    (mount / "cpu" / "job").mkdir(parents=True)
    membership.write_text("0::/docker/5f3a\n")
    for told, cores in (("max 100000", all_cores), ("150000 100000", 1), ("9 100000", 1)):
        (mount / "cpu.max").write_text(told)
        assert usable_cores(membership, mount) == cores
    membership.write_text("5:cpu,cpuacct:/job\n")
    for told, cores in (("-1", all_cores), ("100000", 1)):
        (mount / "cpu" / "job" / "cpu.cfs_quota_us").write_text(told)
        (mount / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000")
        assert usable_cores(membership, mount) == cores


@pytest.mark.skipif(sys.platform != "linux", reason="others count what the parent had")
def test_a_peak_is_that_of_the_process_and_not_of_its_parent():
    of_parent = b"x" * 500_000_000
    line = "from electra.training.machine import Machine; print(Machine().peak_memory)"
    said = subprocess.run([sys.executable, "-c", line], capture_output=True, check=True).stdout
    assert 1e8 < int(said) < len(of_parent)
