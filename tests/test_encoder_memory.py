"""Recomputed activations: the same step to the bit, in the memory that was estimated."""

import dataclasses
import itertools

import pytest
import torch
from refusals import refuse
from torch.autograd.graph import get_gradient_edge

from electra.errors import UserError
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining import plan as memory
from electra.pretraining.plan import make_rows, measure_activations, require_memory
from electra.pretraining.start import build_model
from electra.settings import override
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

CPU = torch.device("cpu")
LAYERS = ("plain", "fused")
RECOMPUTE = "train.recompute_activations=true"


def config_of(*settings):
    """Two networks of three layers, with two kinds of dropout."""
    sizes = encoder_sizes(
        64, 3, 32, vocab_size=500, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2
    )
    settings = ["generator.hidden_fraction=1", "examples.sequence_length=32", *settings]
    return override(dataclasses.replace(PRESETS["small"], model=sizes), settings)


def gradients(layer, *settings):
    """Loss and gradients of two pieces of a step, and the state of the dropout's randomness."""
    config = config_of(*settings)
    config = override(config, [f"train.layers={layer}"])
    model = build_model(config, make_tokenizer(500), Machine())
    batch = make_rows(config, 6, seed=0)
    draw = model.masking.draw(batch, torch.Generator().manual_seed(1))
    counts = model.masking.count(batch, draw)
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
        [],
        ["method.sharing=none"],
        ["method.sharing=all"],
        ["method.objective=electric"],
        ["method.scheme=adversarial"],
        ["examples.attend=document"],
        ["method.objective=all_tokens_mlm"],
        ["model.hidden_dropout_prob=0"],
        ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("layer", LAYERS)
def test_losses_and_gradients_are_the_same_to_the_bit(layer, settings):
    kept, recomputed = gradients(layer, *settings), gradients(layer, *settings, RECOMPUTE)
    assert kept.keys() == recomputed.keys()
    assert len(kept) > 30
    for name, tensor in kept.items():
        assert torch.equal(recomputed[name], tensor), name


@pytest.mark.slow
@pytest.mark.parametrize("prob", [0.0, 0.1])
def test_compiled_as_one_graph_it_keeps_less_and_computes_the_same(prob):
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


# What a step takes


def allocated_at_once(model, batch):
    """The most bytes that torch held at once in a step, as its profiler saw it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        model.compute(batch, torch.Generator().manual_seed(0)).loss.backward()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


@pytest.mark.parametrize(
    ("layer", "settings"),
    [("plain", []), ("fused", []), ("fused", [RECOMPUTE])],
    ids=["plain", "fused", "fused, recomputed"],
)
@pytest.mark.slow
@pytest.mark.parametrize("length", [32, 192])
def test_the_estimate_is_what_more_rows_take(layer, length, settings):
    """From 20 to 60 rows, with eight layers, where attention is little and where it is most."""
    config = config_of(*settings)
    config = override(config, ["model.num_hidden_layers=8", f"examples.sequence_length={length}"])
    config = override(config, [f"train.layers={layer}"])
    model = build_model(config, make_tokenizer(500), Machine())
    few, many = (allocated_at_once(model, make_rows(config, rows, 0)) for rows in (20, 60))
    estimate = measure_activations(model, config, CPU)
    assert estimate == pytest.approx((many - few) / 40, rel=0.2)


@pytest.mark.parametrize("settings", [[], [RECOMPUTE]], ids=" ".join)
def test_the_estimate_leaves_no_graph_behind(settings):
    """What accumulates gradients would stay bound to its stream, and break a CUDA graph."""
    config = config_of("train.layers=plain", *settings)
    model = build_model(config, make_tokenizer(500), Machine())

    def mark(*_):
        for parameter in model.parameters():
            get_gradient_edge(parameter).node.metadata["of"] = "the estimate"

    model.register_forward_hook(mark)
    measure_activations(model, config, CPU)
    survivors = [
        name
        for name, parameter in model.named_parameters()
        if get_gradient_edge(parameter).node.metadata
    ]
    assert not survivors


def test_a_row_that_does_not_fit_is_to_be_recomputed(monkeypatch):
    """Half a row fits: the refusal names the setting; with it, rows fit one by one."""
    config = config_of("train.batch_size=8")
    model, recomputing = (
        build_model(override(config, settings), make_tokenizer(500), Machine())
        for settings in ([], [RECOMPUTE])
    )
    weights = sum(parameter.nbytes for parameter in model.parameters())
    row = measure_activations(model, config, CPU)

    def let_free(num_bytes):
        monkeypatch.setattr(memory, "free_memory", lambda device: num_bytes - weights)

    let_free(4 * weights + row / 2)  # weights, gradients and Adam's two moments are four of them
    refuse("set train.recompute_activations=true, or", require_memory, model, config, Machine())
    with pytest.raises(UserError, match=r"set train\.accumulation=\d;"):
        require_memory(recomputing, override(config, [RECOMPUTE]), Machine())
    settings = [RECOMPUTE, "train.accumulation=8"]
    require_memory(recomputing, override(config, settings), Machine())
    let_free(3 * weights)
    refuse("free: choose a smaller model", lambda: require_memory(model, config, Machine()))


def test_a_reference_update_needs_room(monkeypatch):
    config = config_of("train.batch_size=1", "method.mode=reference")
    model = build_model(config, make_tokenizer(500), Machine())
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert measure_activations(model, config, CPU) < 1.5 * weights
    monkeypatch.setattr(memory, "free_memory", lambda device: 4.9 * weights)
    refuse("choose a smaller model", lambda: require_memory(model, config, Machine()))
    require_memory(model, override(config, ["method.mode=paper"]), Machine())
    monkeypatch.setattr(memory, "free_memory", lambda device: 5.1 * weights)
    require_memory(model, config, Machine())


def test_a_divided_model_needs_less(monkeypatch):
    """On each of many processes: whole weights and gradients of what is no layer, and of two."""
    config = config_of("train.batch_size=1", "model.num_hidden_layers=12")
    model = build_model(config, make_tokenizer(500), Machine())
    weights = sum(parameter.nbytes for parameter in model.parameters())
    monkeypatch.setattr(memory, "free_memory", lambda device: 2 * weights)
    refuse("a step needs about", lambda: require_memory(model, config, Machine()))
    divided = override(config, ["train.sharding=full"])
    require_memory(model, divided, Machine(num_ranks=8))
