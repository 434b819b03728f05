"""Both counts of operations: against the released script's output, and against torch's counter."""

import dataclasses
import math

import pytest
import torch
from test_golden import NEXT_SENTENCE
from torch.utils.flop_counter import FlopCounterMode

from electra.assignments import override
from electra.method.flops import (
    count_as_the_paper,
    count_parts,
    count_run,
    count_stages,
    count_training,
    count_true,
)
from electra.method.masking import Vocabulary
from electra.model.likelihood import log_likelihood_plain
from electra.objectives import masked_language_modelling
from electra.objectives.cocolm import crop_length
from electra.presets import PRESETS, encoder_sizes, modern_sizes
from electra.pretraining.memory import make_rows
from electra.pretraining.networks import build_objective, sketch_objective

WARM = "generator.warmup_steps"
FROZEN = "generator.kind=frozen generator.frozen_run=run method.sharing=none"


def sizes(hidden, layers, embedding=None, vocab=30_522, **changes):
    return dataclasses.replace(
        encoder_sizes(hidden, layers, embedding or hidden, vocab_size=vocab), **changes
    )


def train(network, batch_size, steps, length=512, **arguments):
    return count_training(network, length, batch_size, steps, **arguments)


def preset(name, *settings):
    config = override(PRESETS[name], settings)
    return count_as_the_paper(sketch_objective(config), *config.amount)


def true_count(config):
    return count_true(sketch_objective(config), config.examples.sequence_length)


def parts_of(config):
    return count_parts(sketch_objective(config), config.examples.sequence_length)


def test_a_causal_model_predicts_all_tokens_but_the_first():
    config = override(PRESETS["tiny"], ["method.objective=causal_lm", "model.causal=true"])
    model, length = config.model, config.examples.sequence_length
    (softmax,) = (part for part in parts_of(config) if part.name == "encoder: softmax")
    head = 2 * model.embedding_size * (model.hidden_size + model.vocab_size)
    assert softmax.forward == pytest.approx((1 - 1 / length) * head, rel=1e-9)


def test_the_gate_of_modernbert_is_counted_with_its_products():
    plain = sizes(64, 3)
    gated = dataclasses.replace(modern_sizes(64, 3), intermediate_size=plain.intermediate_size)
    inner = plain.intermediate_size
    gates = 3 * (2 * 64 * inner + inner) * 512  # additions as well
    assert train(gated, 5, 7) - train(plain, 5, 7) == pytest.approx(2 * 5 * 7 * gates, rel=1e-9)


# The script has constants for ELMo and XLNet, from counts of another tool. Its T5 is left out: a
# decoder, whose heads are together wider than the hidden states.
@pytest.mark.parametrize(
    ("count", "printed"),
    [
        (
            lambda: train(sizes(768, 12, vocab=40_000), 128, 960800, predicted=1),
            3.968752230785352e19,
        ),
        (lambda: train(sizes(256, 12, 128), 128, 1.45e6, 128), 1.4187399146496e18),
        (lambda: train(sizes(768, 12), 256, 1e6), 6.428335104e19),
        (lambda: train(sizes(1024, 24), 256, 1e6), 1.91720905883648e20),
        (lambda: preset("small"), 1.293743798272e18),
        (lambda: preset("base"), 6.424541834277683e19),
        (lambda: preset("large"), 7.117606040895488e20),
        (lambda: preset("large", "train.steps=1750000"), 3.113952642891776e21),
        (lambda: train(sizes(1024, 24, vocab=50_265), 8000, 500000), 3.187221435776e21),
        (lambda: train(sizes(4096, 12, 128, vocab=30_000), 4096, 1.5e6), 3.113923955392512e22),
    ],
)
def test_the_numbers_of_the_script(count, printed):
    """To the last digit: what is left is the rounding of one double."""
    assert count() == pytest.approx(printed, rel=1e-15)


def test_the_papers_count_of_what_the_script_does_not_know():
    """The script's transformers, each with its head at the positions that the objective names."""
    small = PRESETS["small"]
    model, (length, rows, steps) = small.model, small.amount
    generator = small.generator.encoder(model)
    one, two = (dataclasses.replace(model, num_hidden_layers=n) for n in (1, 2))

    def count(network, length=length, **head):
        return count_training(network, length, rows, steps, **head)

    rtd, crop = preset("small"), count(model, crop_length(length), predicted=0.0)
    noise = count(generator, predicted=0.0) + count(generator, predicted=1.0)  # one softmax
    choice = count(two, judges=True) - count(one, predicted=0.0)  # a layer and a head
    for settings, expected in {
        "method.objective=mlm": count(model),
        " ".join(NEXT_SENTENCE): count(model),  # of which the script has no head
        "method.objective=all_tokens_mlm": count(generator) + count(model, predicted=1.0),
        "method.objective=electric": noise + count(model, judges=True),
        "method.objective=teams": rtd + choice,
        "method.objective=cocolm method.corrective_weight=0": rtd + crop,
        FROZEN: rtd - count(generator) / 2,  # a pass backward costs as much as one forward
    }.items():
        assert preset("small", *settings.split()) == pytest.approx(expected, rel=1e-12), settings
    mlm = sketch_objective(override(small, ["method.objective=mlm"]))
    assert count_as_the_paper(mlm, 8, 1, 1) == count_training(model, 8, 1, 1)  # no double rounds


@pytest.mark.parametrize(("name", "megaflops"), [("small", 70.2), ("base", 668), ("large", 2169)])
def test_true_count_a_token(name, megaflops):
    config = PRESETS[name]
    assert true_count(config) / 1e6 == pytest.approx(megaflops, rel=2e-3)
    found = count_run(sketch_objective(config), *config.amount)
    assert found["true"] / math.prod(config.amount) == pytest.approx(true_count(config), rel=1e-12)
    assert found["paper"] == preset(name)


MLM = ["method.objective=mlm"]
OF_ALL = [
    [],
    MLM,
    ["method.objective=replace_mlm", "generator.layers_fraction=0.5"],
    ["method.objective=all_tokens_mlm"],
    ["method.objective=teams"],
    ["method.objective=cocolm"],
    ["method.objective=cocolm", "method.corrective_weight=0"],
    ["method.objective=cocolm", "method.contrast_weight=0"],
    ["method.objective=causal_lm", "model.causal=true"],
    NEXT_SENTENCE,
    ["method.sharing=none", "generator.hidden_fraction=0.5"],
]
COUNTED = {
    ("small", 128): [
        *OF_ALL,
        ["generator.kind=uniform"],
        FROZEN.split(),
        ["method.sharing=all", "generator.hidden_fraction=1"],
        ["generator.hidden_size=128", "generator.num_hidden_layers=1", "method.sharing=none"],
    ],
    **{("modern-mini", 64): [[]], ("modern-mini", 128): OF_ALL, ("modern-mini", 520): [[], MLM]},
    **{("deberta-tiny", 16): [[], MLM], ("deberta-tiny", 128): OF_ALL},
}
FAR = {"small": [], "modern-mini": ["local_attention=64"], "deberta-tiny": ["position_buckets=8"]}


@pytest.mark.parametrize(
    ("preset", "length", "settings"),
    [(*case, settings) for case, each in COUNTED.items() for settings in each],
)
def test_true_count_is_that_of_torch(preset, length, settings, monkeypatch):
    """Within 1%, forward and backward, on small networks whose logits are not computed again."""
    monkeypatch.setattr(masked_language_modelling, "log_likelihood", log_likelihood_plain)
    model = ["num_hidden_layers=2", "vocab_size=500", "max_position_embeddings=1024", *FAR[preset]]
    settings = ["train.initial_weights=bert", *(f"model.{each}" for each in model), *settings]
    config = override(PRESETS[preset], [f"examples.sequence_length={length}", *settings])
    objective = build_objective(config, Vocabulary(torch.ones(500, dtype=torch.bool)))
    batch = make_rows(config, 1024 // length + 1, seed=0)
    with FlopCounterMode(display=False) as counter:
        objective(batch, *objective.masking.draw(batch, torch.Generator())).loss.backward()
    expected = counter.get_total_flops() / batch.input_ids_BL.numel()
    assert count_true(objective, length) == pytest.approx(expected, rel=0.01)


def test_stages_and_breakdown():
    small = PRESETS["small"]
    two_stage = ["method.scheme=two_stage", "method.sharing=none"]
    staged = override(small, [*two_stage, "method.generator_steps=250000"])
    whole = {part.name: part for part in parts_of(small)}
    parts = {part.name: part for part in parts_of(staged)}
    assert parts.keys() == whole.keys()
    for name, part in parts.items():
        share = 0.25 + 0.75 / 3 if name.startswith("generator") else 0.75
        assert part.train == pytest.approx(share * whole[name].train)
    assert sum(part.train for part in whole.values()) == true_count(small)
    for name, flops in sketch_objective(small).discriminator.count_flops(128).items():
        assert whole[f"discriminator: {name}"].forward == flops, name
    for config, steps in ((staged, 250_000), (override(small, [f"{WARM}=1000"]), 1000)):
        model = sketch_objective(config)
        first, second = count_stages(model, 128)
        share = steps / config.train.steps
        assert share * first + (1 - share) * second == pytest.approx(true_count(config))
        assert first < true_count(config) < second
    everywhere = override(small, ["method.objective=all_tokens_mlm"])
    softmax = next(part for part in parts_of(everywhere) if part.name == "encoder: softmax")
    assert softmax.forward == 2 * 128 * (256 + 30_522)
