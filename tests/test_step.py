"""One optimizer step: compiled, captured and plain are the same computation."""

import copy
import json
import math
import shutil
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import assert_near_tensors, assert_same_tensors
from test_golden import VARIANTS
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from electra.assignments import override
from electra.checkpoints.manifest import read_manifest
from electra.errors import UserError
from electra.method.measures import Measures, tally
from electra.model.encoder import Encoder
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining import acceleration
from electra.pretraining.acceleration import (
    WARM_UP_STEPS,
    AcceleratedStep,
    WorkingCopies,
    exact_kernels,
    find_kernels,
    rank_attention,
)
from electra.pretraining.continuation import recorded_ranking
from electra.pretraining.guard import ACCEPTED, NOT_FINITE, SPIKE, WINDOW, Guard
from electra.pretraining.loop import resume
from electra.pretraining.memory import make_rows
from electra.pretraining.start import build_model
from electra.pretraining.step import Step
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.flat import FlatBuffers
from electra.training.machine import Machine, choose_dtype
from electra.training.optimizer import build_optimizer, set_learning_rate, step_seed

pytestmark = pytest.mark.filterwarnings(  # of what torch does itself
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:.*script_method:DeprecationWarning",
    "ignore:Synchronization debug mode:UserWarning",
)
VOCAB = 300
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OBJECTIVES = {"apart": ["method.sharing=gdes", "train.updates=apart"]} | {
    name: VARIANTS[name]
    for name in (
        *("rtd", "rtd-masked-only", "mlm", "replace-mlm", "all-tokens-mlm", "electric", "teams"),
        *("two-stage", "adversarial", "warm-up", "unigram", "temperature", "reference", "spans"),
        *("documents", "recompute", "cooling", "cocolm", "corrective", "causal-lm"),
        "next-sentence",
    )
}

PLAIN = "train.layers=plain"
"""The layers that a compiler or a GPU is given."""


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


ONE_AND_OTHERS = [name if name == "rtd" else slow(name) for name in OBJECTIVES]


def needs_cuda(test):
    """Skip without a CUDA device; with one, fail where gradients meet on two streams."""
    test = pytest.mark.filterwarnings("error:.*AccumulateGrad node's stream")(test)
    return pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test)


def make_config(*settings):
    small = ["model.num_hidden_layers=2", f"model.vocab_size={VOCAB}", "train.batch_size=8"]
    small += ["examples.sequence_length=32", "optimizer.warmup_steps=10", "train.precision=float32"]
    return override(override(PRESETS["small"], small), settings)


def without_dropout(config):
    return override(config, ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"])


def trace(function):
    """What must be one graph, computed by torch's own operations."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")


def in_bfloat16(config):
    return override(config, ["train.precision=bfloat16"])


def machine_for(config, device=CPU):
    return Machine(device, choose_dtype(config.train.precision, device))


def make_model(config, device=CPU):
    machine = machine_for(config, device)
    return build_model(config, make_tokenizer(VOCAB), machine, torch.ones(VOCAB))


def make_copies(model, config):
    flat = FlatBuffers(build_optimizer(model, config.optimizer))
    return WorkingCopies(model, flat, torch.bfloat16)


def make_step(config, device=CPU, attention=None):
    model = make_model(config, device).train()
    return AcceleratedStep(model, config, machine_for(config, device), attention)


def padded(batch):
    """The same rows, the first of them cut short."""
    mask = torch.ones_like(batch.input_ids_BL, dtype=torch.bool)
    mask[0, 20:] = False
    if batch.attention_mask_BL is not None:
        mask = batch.attention_mask_BL * mask
    return batch._replace(attention_mask_BL=mask)


def losses_and_gradients(model, batch, forward):
    output = forward(batch, *model.masking.draw(batch, torch.Generator().manual_seed(1)))
    output.loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return output, gradients


@pytest.mark.parametrize("name", ONE_AND_OTHERS)
def test_every_objective_is_one_graph(name):
    """It is traced whole, and what a GPU is given computes what a CPU does uncompiled."""
    config = without_dropout(make_config(*OBJECTIVES[name]))
    on_cpu, model = make_model(config), make_model(override(config, [PLAIN]))
    batch = padded(make_rows(config, 4, 0))
    plain, expected = losses_and_gradients(on_cpu, batch, on_cpu)
    output, actual = losses_and_gradients(model, batch, trace(model))
    torch.testing.assert_close(output.loss, plain.loss, rtol=1e-6, atol=0)
    assert output.means.keys() == plain.means.keys()
    for name, measure in plain.means.items():
        torch.testing.assert_close(output.means[name], measure, rtol=1e-5, atol=1e-6)
    assert_near_tensors(actual, expected)


@pytest.mark.parametrize("name", ["rtd", *map(slow, ["reference", "spans", "adversarial"])])
def test_draws_and_measures_are_graphs_of_their_own(name):
    """Traced whole, they give the same positions, counts and sums."""
    model = make_model(without_dropout(make_config(*OBJECTIVES[name])))
    batch = padded(make_rows(make_config(), 4, 0))
    uniform = model.masking.draw_uniform(batch, torch.Generator().manual_seed(1))
    expected = model.masking.choose(batch, uniform)
    actual = trace(model.masking.choose)(batch, uniform)
    for one, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        assert one is other is None or torch.equal(one, other)
    output = model(batch, *expected)
    records = []
    for add in (tally, trace(tally)):
        measures = Measures(model.loss_weights)
        measures.tally = add
        for _ in range(2):
            measures.add(output._replace(loss=output.loss.detach()))
        records.append(measures.record())
    assert records[0] == pytest.approx(records[1], rel=1e-6, nan_ok=True)


def test_the_guard_is_a_graph_of_its_own():
    """Traced whole, it gives the same verdicts and remembers the same norms."""
    found = []
    for compiled in (lambda judge: judge, trace):
        guard = Guard(CPU)
        judge = compiled(guard.judge)
        guard.begin(6.0)
        norms = [1 + 0.01 * (number % 7) for number in range(WINDOW)] + [9.0, math.nan, 1.0]
        verdicts = [int(judge(torch.tensor(1.0), torch.tensor(norm))) for norm in norms]
        found.append((verdicts, guard.num_norms.item(), guard.log_norms.tolist()))
    assert found[0][0][WINDOW:] == [SPIKE, NOT_FINITE, ACCEPTED]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_step_waits_for_its_device(name):
    """On a device without data whatever asks for a value, or for a size that depends on one, fails.

    Dropout on, a padded row, bfloat16; the paths of a GPU, since the device is no CPU.
    """
    config, meta = make_config(*OBJECTIVES[name]), torch.device("meta")
    model, batch = make_model(in_bfloat16(config), meta), padded(make_rows(config, 4, 0)).to(meta)
    draw, counts = model.masking.draw(batch, torch.Generator())
    with make_copies(model, config).at_work():
        output = model(batch, draw, counts)
        output.loss.backward()
    Measures(model.loss_weights).add(output)
    assert output.loss.is_meta
    assert all(total.is_meta for total, _ in output.means.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rtd", "electric", "two-stage", "recompute"])
def test_working_copies_change_nothing(name):
    """Losses and gradients in bfloat16, of rows in two pieces, to the bit; compiled or not."""
    config = without_dropout(make_config(PLAIN, *OBJECTIVES[name]))
    batch, results = padded(make_rows(config, 8, 0)), []
    for is_at_work in (False, True):
        model = make_model(in_bfloat16(config)).train()
        parameters = dict(model.named_parameters())
        copies = make_copies(model, config)
        forward = trace(model)
        draw, counts = model.masking.draw(batch, torch.Generator().manual_seed(1))
        losses = []
        for rows in (slice(0, 4), slice(4, 8)):
            with copies.at_work() if is_at_work else nullcontext():
                output = forward(batch.rows(rows), draw.rows(rows), counts)
                output.loss.backward()
            losses.append(output.loss.item())
        for parameter_name, parameter in model.named_parameters():
            assert parameter is parameters[parameter_name]
        gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}
        results.append((losses, gradients))
    assert copies.copies[0].dtype == torch.bfloat16
    assert len(copies.copies) > 16
    assert results[0][0] == results[1][0]
    assert_same_tensors(results[1][1], results[0][1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rtd", "documents"])
def test_what_a_gpu_runs_is_one_graph(name):
    """Traced whole, forward and backward, on a device that is no CPU; dropout on, bfloat16."""
    config, meta = make_config(*OBJECTIVES[name]), torch.device("meta")
    model, batch = make_model(in_bfloat16(config), meta), padded(make_rows(config, 4, 0)).to(meta)
    draw, counts = model.masking.draw(batch, torch.Generator())
    trace(model)(batch, draw, counts).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_leaves_no_graph_behind(name):
    """What accumulates gradients would stay bound to the stream of that step."""
    config = make_config(*OBJECTIVES[name])
    step = make_step(config)
    outcome = step(0, padded(make_rows(config, 8, 0)), 1e-3)
    tensors = [leaf for leaf in tree_leaves(tuple(outcome)) if isinstance(leaf, torch.Tensor)]
    assert len(tensors) > 5
    assert not any(tensor.requires_grad for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sees", ["all", "before", "after"])
def test_hidden_scores_are_finite_to_every_kernel(dtype, sees):
    """Some multiply scores by log2(e), and a row of nothing but minus infinity is no number."""
    encoder = Encoder(encoder_sizes(64, 1, 32, vocab_size=VOCAB), compute_dtype=dtype)
    encoder.sees, added = sees, []
    encoder.layers[0].register_forward_pre_hook(lambda layer, given: added.append(given[1]))
    batch = padded(make_rows(make_config(), 4, 0))
    encoder(*batch.inputs)
    assert added[0].min() < -1e38
    assert (added[0].float() * math.log2(math.e)).isfinite().all()


@pytest.mark.parametrize(
    "setting", ["method.mode=paper", "method.mode=reference", "optimizer.matrices=muon"]
)
def test_rates_that_a_graph_can_be_told(setting):
    """Updates are those of rates that are numbers."""
    config = make_config(setting, "optimizer.weight_decay=0.1")
    mode = config.method.mode
    weights = []
    for captured in (False, True):
        model = make_model(config)
        optimizer = build_optimizer(model, config.optimizer, mode=mode, captured=captured)
        rng = torch.Generator().manual_seed(0)
        for rate in (1e-3, 5e-4, 0.0, 2e-3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=rng)
            set_learning_rate(optimizer, rate)
            optimizer.step()
        weights.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-8)


def test_layers_keep_rates_of_their_own_as_tensors():
    """One tensor for all groups would give each the rate of the last."""
    model, optimizer = make_model(make_config()), make_config().optimizer
    groups = build_optimizer(model, optimizer, layer_lr_decay=0.5, captured=True)
    set_learning_rate(groups, 1.0)
    for group in groups.param_groups:
        assert group["lr"].item() == pytest.approx(group["lr_scale"])


@pytest.mark.parametrize(
    ("sharing", "shared"), [("embeddings", "discriminator"), ("gdes", "generator.encoder")]
)
def test_the_generator_learns_at_a_rate_of_its_own(sharing, shared):
    config = make_config("optimizer.generator_rate=0.5", f"method.sharing={sharing}")
    model = make_model(config)
    scales = {
        id(parameter): group["lr_scale"]
        for group in build_optimizer(model, config.optimizer).param_groups
        for parameter in group["params"]
    }
    found = {name: scales[id(parameter)] for name, parameter in model.named_parameters()}
    assert found.pop(f"{shared}.embeddings.tokens.weight") == 1.0
    assert {scale for name, scale in found.items() if name.startswith("generator.")} == {0.5}
    assert {scale for name, scale in found.items() if name.startswith("disc")} == {1.0}


@pytest.mark.parametrize("masked", [False, True])
def test_attention_kernels_are_ranked(masked):
    kernels = find_kernels(rank_attention(make_config(), Machine(), 8), masked=masked)
    assert SDPBackend.MATH in kernels  # which can do everything
    assert len(set(kernels)) == len(kernels)


@pytest.mark.parametrize(("prob", "is_exact"), [(0.1, False), (0.125, True), (0.0, True)])
def test_cudnn_attention_is_left_out_where_it_would_drop_another_share(prob, is_exact):
    kernels = exact_kernels(prob)
    assert (SDPBackend.CUDNN_ATTENTION in kernels) == is_exact
    assert SDPBackend.MATH in kernels


def test_a_step_keeps_the_ranking_of_its_run():
    """That of the first session on the device; another device is measured anew."""
    ranking = {"masked": ["MATH"], "unmasked": ["FLASH_ATTENTION", "MATH"]}
    other = {"masked": ["EFFICIENT_ATTENTION"], "unmasked": ["MATH"]}
    sessions = [
        {"device": "a CPU", "step": {"layers": "FusedPostNormLayer"}},
        {"device": "one GPU", "step": {"attention": ranking}},
        {"device": "one GPU", "step": {"attention": other}},
        {},
    ]
    for device, expected in (("one GPU", ranking), ("another GPU", None), ("a CPU", None)):
        assert recorded_ranking({"sessions": sessions}, device) == expected
    config = make_config("train.compile=no")
    assert make_step(config, attention=ranking).describe()["attention"] == ranking


@pytest.mark.slow
def test_a_missing_compiler_is_told():
    from torch._inductor import config

    torch.compiler.reset()
    message = r"train.compile yes: torch\.compile does not work here"
    with config.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(UserError, match=message):
        make_step(make_config("train.compile=yes"))
    assert not make_step(make_config()).compiled


@pytest.mark.slow
def test_a_compiler_that_fails_is_done_without():
    """The step is done all the same, and what was begun of it leaves nothing behind."""
    torch.compiler.reset()

    def fail(graph, inputs):
        raise RuntimeError("no such\narchitecture")

    config = make_config(PLAIN, "train.accumulation=2")
    plain, compiled, asked = (make_step(config) for _ in range(3))
    asked.config = override(config, ["train.compile=yes"])
    for step in (compiled, asked):
        step.compiled, step.forward = True, torch.compile(step.model, backend=fail)
    arguments = 0, make_rows(config, 8, 0), 1e-3
    with pytest.warns(UserWarning, match="fails, continuing without it: .*no such architecture"):
        actual = compiled(*arguments)
    assert not compiled.describe()["compiled"]
    assert actual.grad_norm == plain(*arguments).grad_norm
    with pytest.raises(RuntimeError, match="no such"):
        asked(*arguments)


def test_two_processes_share_the_rows_of_a_step():
    """Each computes what one process would in its micro-batches: rows, draws, dropout.

    Each has its rows alone; the counts, which are summed over processes, are given to both.
    """
    config, alone = make_config("train.accumulation=2"), make_config("train.accumulation=1")
    batch = padded(make_rows(config, 8, 0))
    step, drawn, shares = make_step(config), [], []
    choose = step.choose
    step.choose = lambda *given: drawn.append(choose(*given)) or drawn[0]
    whole = step(3, batch, 1e-3).outputs
    for rank in range(2):
        step = Step(make_model(alone).train(), alone, Machine(rank=rank, num_ranks=2))
        step.choose = lambda *given, choose=step.choose: (choose(*given)[0], drawn[0][1])
        shares += step(3, batch.rows(slice(4 * rank, 4 * rank + 4)), 1e-3).outputs
    assert len(shares) == len(whole) == 2
    for ours, theirs in zip(shares, whole, strict=True):
        assert ours.loss == theirs.loss
        assert torch.equal(ours.judgement.corrupt_ids_BL, theirs.judgement.corrupt_ids_BL)
    assert shares[0].loss != shares[1].loss


def run(config, steps, device=CPU, attention=None):
    """The losses of some steps."""
    step = make_step(config, device, attention)
    losses = []
    for number in range(steps):
        batch = make_rows(config, config.train.batch_size, number % 5)
        outcome = step(number, padded(batch) if number % 4 == 3 else batch, 3e-4)
        losses.append(sum(output.loss.item() for output in outcome.outputs))
    return np.array(losses)


class Tape(TorchDispatchMode):
    """What a CUDA graph is: the operations of a step, to be done again at the same places."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, output))
        return output

    @torch.no_grad()
    def replay(self):
        guard = torch._C._AutoDispatchBelowAutograd()  # they were recorded below it
        for func, args, kwargs, output in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(output), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        del guard


@pytest.mark.parametrize(
    "settings",
    [
        [],
        slow(["train.accumulation=2"]),
        ["train.precision=bfloat16", "train.accumulation=2"],
        slow(OBJECTIVES["reference"]),
        slow(OBJECTIVES["adversarial"]),
    ],
)
def test_a_step_can_be_replayed(settings):
    """One step is recorded and done again for the others: rows, rates and draws are theirs.

    Whatever Python decides or counts by itself would stay as it was in the recorded step.
    """
    config = without_dropout(make_config(PLAIN, *settings))
    rates = (1e-3, 2e-3, 5e-4, 1e-3, 3e-3, 0.0, 1e-3)
    batches = [padded(make_rows(config, 8, seed)) for seed in range(len(rates))]
    machine = machine_for(config)
    done, replayed = (Step(make_model(config).train(), config, machine) for _ in range(2))
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    if machine.dtype == torch.bfloat16:
        tolerance = {"rtol": 2e-4, "atol": 1e-3}  # whose roundings tip over
        replayed.weights = make_copies(replayed.model, config).at_work
    replayed.optimizer = build_optimizer(
        replayed.model, config.optimizer, mode=config.method.mode, captured=True
    )
    steps = [*enumerate(zip(batches, rates, strict=True))]
    expected = [done(number, batch, rate).outputs[0].loss for number, (batch, rate) in steps]
    buffers, tape, outcome = copy.deepcopy(batches[0]), Tape(), None
    for number, (batch, rate) in steps:
        if number < 2:  # the optimizer's state appears
            replayed(number, batch, rate)
            continue
        for buffer, tensor in zip(buffers[:3], batch[:3], strict=True):
            buffer.copy_(tensor)
        replayed.rng.manual_seed(step_seed(0, "corruption", number))
        set_learning_rate(replayed.optimizer, rate)
        if outcome is None:
            with tape:
                outcome = replayed.compute(buffers)
            assert "aten::_local_scalar_dense" not in {call[0].name() for call in tape.calls}
        else:
            tape.replay()
        torch.testing.assert_close(outcome.outputs[0].loss, expected[number], **tolerance)
    for one, other in zip(done.model.parameters(), replayed.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


class NotedStream:
    """A stream that notes what is done on it, and what it waits for."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def wait_stream(self, other):
        self.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.notes.append(f"{self.name} waits for {event}")

    def record_event(self):
        return f"the event of {self.name} after {self.notes[-1]}"


@pytest.mark.parametrize("name", ["rtd", "recompute"])
def test_the_generator_learns_beside_the_discriminator(monkeypatch, name):
    """The same step, of which each part waits for what it reads and adds to."""
    config = without_dropout(make_config(*OBJECTIVES[name]))
    batch, notes = padded(make_rows(config, 8, 0)), []
    main, beside = (NotedStream(each, notes) for each in ("main", "beside"))
    used, backward = [main], torch.Tensor.backward

    def note(what, function):
        def call(*arguments):
            notes.append(f"{what} on {used[-1].name}")
            return function(*arguments)

        return call

    @contextmanager
    def use(stream):
        used.append(stream)
        yield
        used.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: used[-1])
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.Tensor, "backward", note("backward", backward))
    step, plain = make_step(override(config, ["train.overlap=true"])), make_step(config)
    assert step.beside is None  # on a CPU
    expected = plain(0, batch, 1e-3)
    notes.clear()
    step.beside, step.forward = beside, note("forward", step.forward)
    found = step(0, batch, 1e-3)
    assert notes == [
        "beside waits for main",
        *("forward on beside", "backward on beside"),
        "main waits for the event of beside after forward on beside",
        *("forward on main", "main waits for beside", "backward on main"),
    ]
    assert found.outputs[0].loss.item() == pytest.approx(expected.outputs[0].loss.item(), rel=1e-6)
    torch.testing.assert_close(found.grad_norm, expected.grad_norm, rtol=1e-5, atol=0)
    assert step.measures.record() == pytest.approx(plain.measures.record(), rel=1e-5)
    ours, theirs = (dict(each.model.named_parameters()) for each in (step, plain))
    assert_near_tensors(ours, theirs, least=0.01)


def assert_learn_alike(actual, expected, rtol=1e-4):
    """Until a draw on the edge between two tokens falls to the other, losses agree closely."""
    np.testing.assert_allclose(actual[:20], expected[:20], rtol=rtol)
    means = (each.reshape(4, -1).mean(axis=1) for each in (actual, expected))
    np.testing.assert_allclose(*means, rtol=0.02)
    assert expected[-10:].mean() < 0.8 * expected[:5].mean()


@pytest.mark.slow
def test_compiled_and_plain_learn_alike():
    """Losses of 40 steps in float32, without dropout, with rows in two pieces."""
    torch.compiler.reset()
    config = without_dropout(make_config("train.accumulation=2"))
    plain = run(config, 40)
    compiled = run(override(config, ["train.compile=yes"]), 40)
    assert not np.array_equal(compiled, plain)
    assert_learn_alike(compiled, plain)


@needs_cuda
@pytest.mark.parametrize("name", OBJECTIVES)
def test_cuda_losses_and_gradients_are_those_of_a_cpu(name):
    """Same weights, positions and uniforms; float32."""
    config = without_dropout(make_config(*OBJECTIVES[name]))
    batch = padded(make_rows(config, 8, 0))
    draw, _ = make_model(config).masking.draw(batch, torch.Generator().manual_seed(1))
    results = []
    for place in (CPU, CUDA):
        model = make_model(config, place)
        there = type(draw)(*(None if each is None else each.to(place) for each in draw))
        moved = batch.to(place)
        output = model(moved, there, model.masking.count(moved, there))
        output.loss.backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results.append((output.loss.item(), gradients))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4)
    assert_near_tensors(results[1][1], results[0][1], tolerance=1e-3)


@needs_cuda
@pytest.mark.parametrize("name", ["two-stage", "warm-up"])
def test_cuda_stages_are_captured_one_after_the_other(name):
    """The second trains another network, in a graph of its own."""
    config = make_config("train.compile=no", *OBJECTIVES[name])
    step = make_step(config, CUDA)
    head = step.model.discriminator_head.dense.weight
    before = head.detach().clone()
    for number in range(2 * (WARM_UP_STEPS + 2)):
        if number == WARM_UP_STEPS + 2:
            assert torch.equal(head, before)
            step.begin_stage(1)
        outcome = step(number, make_rows(config, 8, number), 1e-3)
    assert outcome.outputs[0].loss.isfinite()
    assert not torch.equal(head, before)


@needs_cuda
def test_cuda_run_is_continued(train):
    """From the middle, with evaluations between replays, to nearly the same end."""
    folder = train("run", "train.device=cuda train.compile=no")
    whole = json.loads((folder / "results.json").read_text())
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    (folder / "results.json").unlink()
    continued = resume(folder, lambda record: None)
    assert continued["heldout"]["loss"] == pytest.approx(whole["heldout"]["loss"], rel=1e-2)
    first, second = read_manifest(folder)["sessions"]
    assert first["step"]["attention"] == second["step"]["attention"] != {}


@needs_cuda
def test_cuda_steps_never_wait():
    """Torch itself refuses every operation that would wait for the device."""
    config = make_config("train.compile=yes", "train.precision=bfloat16")
    step = make_step(config, CUDA)
    assert step.captured
    batch = make_rows(config, 8, 0)
    for number in range(WARM_UP_STEPS + 2):  # with what is done once
        step(number, batch, 1e-3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(5):
            step(number, batch, 1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_cuda_captured_steps_draw_anew():
    """Positions, draws and dropout of a replay are those of its number, not of the capture."""
    config = make_config("train.compile=yes")
    step, batch = make_step(config, CUDA), make_rows(config, 8, 0)
    numbers = [0] * (WARM_UP_STEPS + 1) + [1, 2, 1, 2]
    losses = [step(number, batch, 0.0).outputs[0].loss.item() for number in numbers]
    assert losses[-4:-2] == pytest.approx(losses[-2:], rel=1e-4)
    assert losses[-4] != pytest.approx(losses[-3], rel=1e-4)


@needs_cuda
@pytest.mark.parametrize(
    "settings",
    [
        *("train.compile=no", "train.compile=no train.accumulation=2"),
        *("train.compile=no method.mode=reference", "train.compile=no train.precision=bfloat16"),
        # Steps with and without a mask: all but those of the last case are given one.
        *("train.compile=yes", "train.compile=yes train.accumulation=2 examples.short_prob=0"),
        *("train.compile=yes train.overlap=true", "train.compile=no train.overlap=true"),
    ],
)
def test_cuda_captured_and_compiled_learn_like_plain(settings):
    """Losses of 200 steps without dropout."""
    config = without_dropout(make_config(*settings.split()))
    ranking = rank_attention(config, machine_for(config, CUDA), 8)
    eager = override(config, ["train.compile=no", "train.cuda_graph=false"])
    plain = run(eager, 200, CUDA, ranking)
    rtol = 2e-3 if config.train.precision == "bfloat16" else 1e-4
    assert_learn_alike(run(config, 200, CUDA, ranking), plain, rtol)


@needs_cuda
def test_cuda_and_cpu_learn_alike():
    """The same rows; positions and draws differ, so that means of losses are compared."""
    config = without_dropout(make_config())
    on_cpu = run(config, 200)
    on_cuda = run(override(config, ["train.compile=yes"]), 200, CUDA)
    assert on_cuda[-50:].mean() == pytest.approx(on_cpu[-50:].mean(), rel=0.02)


@pytest.mark.parametrize(
    ("masks", "is_compiled"),
    [
        ([False, True, False], [True, False, True]),
        ([True, False, True, False], [False, True, False, True]),
        ([True, True, False, True], [False, True, False, True]),
    ],
)
def test_a_rare_mask_is_computed_plainly(monkeypatch, masks, is_compiled):
    """Without short rows a padded batch is compiled only if the session begins with two of them."""
    compiled, counts = [], []

    def note(step, function):
        def call(*arguments):
            compiled.append(function)
            return function(*arguments)

        return call

    monkeypatch.setattr(AcceleratedStep, "_compile", note)
    monkeypatch.setattr(acceleration, "_compiles", lambda config, device: True)
    config = make_config("examples.short_prob=0")
    batch = make_rows(config, 8, 0)._replace(attention_mask_BL=None)
    fast, plain = make_step(config), Step(make_model(config).train(), config, machine_for(config))
    for number, has_mask in enumerate(masks):
        each = padded(batch) if has_mask else batch
        before = len(compiled)
        found, expected = fast(number, each, 1e-3), plain(number, each, 1e-3)
        counts.append(len(compiled) - before)
        torch.testing.assert_close(found.grad_norm, expected.grad_norm, rtol=1e-5, atol=0)
    assert [bool(each) for each in counts] == is_compiled
    assert fast.measures.record() == pytest.approx(plain.measures.record(), rel=1e-4)


def test_captures_are_reset_on_closing():
    """Also where a traceback holds the step: NCCL waits for graphs that hold its communicator."""
    step, reset = make_step(make_config("train.compile=no")), []
    for name in ("masked", "unmasked"):
        graph = SimpleNamespace(reset=lambda name=name: reset.append(name))
        step.captures[name,] = SimpleNamespace(graph=graph)
    step.close()
    assert reset == ["masked", "unmasked"]
    assert not step.captures
