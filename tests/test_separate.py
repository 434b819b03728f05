"""DeBERTaV3's training: embeddings shared without their gradients, and an update a network."""

import dataclasses
import math

import pytest
import torch
from runs import assert_same_end, final_tensors

from electra.assignments import override
from electra.checkpoints.folder import read_pretrained
from electra.pretraining.init_from import load_start
from electra.pretraining.memory import make_rows, measure_activations
from electra.pretraining.start import build_model
from electra.pretraining.step import Step
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

GDES = ("method.sharing=gdes",)
APART = (*GDES, "train.updates=apart")
PLAIN = (
    *("train.initial_weights=bert", "model.hidden_dropout_prob=0", "model.vocab_size=200"),
    "model.attention_probs_dropout_prob=0",
)


def build(toy_config, *settings):
    config = override(toy_config, [*PLAIN, *settings])
    return config, build_model(config, make_tokenizer(200), Machine()).train()


def test_the_encoder_begins_alike_whatever_is_shared(toy_config):
    _, ours = build(toy_config, *GDES)
    _, theirs = build(toy_config, "method.sharing=none")
    assert not ours.discriminator.embeddings.tokens.weight.any()
    base = ours.generator.encoder.embeddings.tokens.weight
    assert torch.equal(base, theirs.discriminator.embeddings.tokens.weight)
    batch = make_rows(build(toy_config)[0], 4, 0)
    assert torch.equal(ours.discriminator(*batch.inputs), theirs.discriminator(*batch.inputs))


@pytest.mark.parametrize("objective", ["rtd", "replace_mlm", "electric"])
def test_each_loss_moves_a_table_of_its_own(toy_config, objective):
    """By hand: the encoder's gradient is that of a table of its own, which holds the sum."""
    config, model = build(toy_config, *GDES, f"method.objective={objective}")
    _, untied = build(toy_config, "method.sharing=none", f"method.objective={objective}")
    shift = model.kept.embeddings.tokens
    with torch.no_grad():
        shift.weight.normal_(std=0.02)
        for name, parameter in untied.named_parameters():
            parameter.copy_(model.get_parameter(name))
        untied.kept.embeddings.tokens.weight.copy_(shift.base[0].weight + shift.weight)
    batch, gradients = make_rows(config, 4, 0), []
    for each in (model, untied):
        each(batch, *each.masking.draw(batch, torch.Generator().manual_seed(0))).loss.backward()
        gradients.append({name: p.grad for name, p in each.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)


def test_the_networks_are_updated_one_after_the_other(toy_config):
    """By hand, with the gradients of whole losses: the clipping of each, and samples of before."""
    settings = ("optimizer.max_grad_norm=0.1", "train.spike_sigmas=inf")
    config, model = build(toy_config, *APART, *settings)
    _, by_hand = build(toy_config, *APART, *settings)
    step = Step(model, config, Machine())
    batch = make_rows(config, 8, 0)
    outcome = step(0, batch, 1e-3)

    reference = Step(by_hand, config, Machine())
    reference.begin(0, 1e-3)
    uniform = by_hand.masking.draw_uniform(batch, reference.rng)
    draw, counts = by_hand.masking.choose(batch, uniform)
    first, norms = by_hand(batch, draw, counts, "first"), []
    whole = by_hand(batch, draw, counts)
    assert torch.equal(first.corrupt_ids_BL, whole.judgement.corrupt_ids_BL)
    for number, loss in enumerate((first.loss, None)):
        if number:  # the discriminator, whose embeddings the generator has moved by now
            disc_loss, *_ = by_hand.judge(first.corrupt_ids_BL, batch, draw, counts)
            loss = config.method.disc_weight * disc_loss
        loss.backward()
        learning = [p for p in by_hand.parameters() if p.grad is not None]
        ours = by_hand.generator if number == 0 else by_hand.discriminator
        assert {id(p) for p in ours.parameters()} <= {id(p) for p in learning}
        norms.append(torch.nn.utils.clip_grad_norm_(learning, 0.1))
        reference.optimizer.step()
        reference.optimizer.zero_grad()
    assert outcome.grad_norm.item() == pytest.approx(math.hypot(*norms), rel=1e-5)
    ours, expected = (list(each.parameters()) for each in (model, by_hand))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_what_is_written_is_the_sum(train, toy_config):
    """Also after a stop: the run continues to the same bits, and its encoder is the live one."""
    settings = [*APART, "train.accumulation=2", "generator.warmup_steps=3"]
    whole = train("whole", *settings)
    train("parts", *settings, stop_at=4)
    assert_same_end(whole, train("parts", *settings))
    tensors = final_tensors(whole)[1]
    shift = tensors["discriminator.embeddings.tokens.weight"]
    base = tensors["generator.encoder.embeddings.tokens.weight"]
    assert shift.any()
    saved = read_pretrained(whole)
    assert torch.equal(saved.tensors["embeddings.tokens.weight"], base + shift)
    assert torch.equal(saved.generator.encoders[0]["embeddings.tokens.weight"], base)
    # And the way back: a run that begins with it sees the same embeddings.
    config = override(toy_config, [*settings, f"train.init_from={whole}"])
    config = dataclasses.replace(config, model=saved.encoder)
    model = build_model(config, saved.tokenizer, Machine())
    load_start(model, config, saved, torch.ones(len(base)))
    torch.testing.assert_close(model.discriminator.embeddings.tokens.table, base + shift)
    assert torch.equal(model.generator.encoder.embeddings.tokens.table, base)


def test_half_of_a_step_takes_less_memory(toy_config):
    def measure(*settings):
        config, model = build(toy_config, *settings)
        return measure_activations(model, config, torch.device("cpu"))

    assert measure(*APART) < measure(*GDES)
