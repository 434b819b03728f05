"""Every objective and scheme against its definition, written out a second time here."""

import dataclasses
import itertools
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
import transformers
from networks import assert_near_tensors, rng
from refusals import refuse
from runs import read_records
from test_golden import DEBERTA, MODERN, NEXT_SENTENCE
from torch.utils.flop_counter import FlopCounterMode

import electra
from electra.assignments import override
from electra.checkpoints.folder import read_model
from electra.interop.export import export
from electra.method.config import OBJECTIVES, SCHEMES, MethodConfig
from electra.method.flops import count_true
from electra.method.masking import Vocabulary
from electra.method.measures import Measures, entropy
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.objectives.cocolm import crop
from electra.objectives.masked_language_modelling import mix
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.networks import build_objective, sketch_objective
from electra.pretraining.start import build_model
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 60
VOCABULARY = Vocabulary(torch.arange(VOCAB) % 3 != 0)
SIZES = encoder_sizes(
    128, 2, 32, vocab_size=VOCAB, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
EVERY = {name: [f"method.objective={name}"] for name in OBJECTIVES}
EVERY |= {name: [f"method.scheme={name}", "method.sharing=none"] for _, name in SCHEMES}
EVERY["causal_lm"] += ["model.causal=true"]
EVERY |= {
    "next_sentence": NEXT_SENTENCE,
    "uniform": ["generator.kind=uniform"],
    "unigram": ["generator.kind=unigram"],
    "unshared": ["method.sharing=none"],
    "all_shared": ["method.sharing=all", "generator.layers_fraction=1"],
    "layers_shared": ["generator.hidden_fraction=1", "generator.shared_layers=1"],
    "corrective": ["method.objective=cocolm", "method.contrast_weight=0"],
}
BODIES = ([], MODERN, DEBERTA)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def config_of(*settings):
    config = dataclasses.replace(PRESETS["tiny"], model=SIZES)
    return override(config, ["method.disc_weight=50", *settings])


def build(*settings):
    """An objective with weights large enough to have opinions."""
    counts = torch.arange(1, VOCAB + 1)
    model = build_objective(config_of(*settings), VOCABULARY._replace(counts_V=counts))
    init_weights(model, 0.15, rng(0))
    return model


def gradients(model, output):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(output, parameters, allow_unused=True, retain_graph=True)


def assert_same_loss(model, actual, expected, tolerance=1e-5):
    """The same value, and the same gradients."""
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(actual, expected, **close)
    for a, e in zip(gradients(model, actual), gradients(model, expected), strict=True):
        if a is None or e is None:
            assert a is None or not a.any()
            assert e is None or not e.any()
        else:
            assert_near_tensors([a], [e], tolerance, least=1)


def draw_for(model, batch, seed=2):
    return model.masking.draw(batch, rng(seed))


def compute(model, batch, seed=2):
    draw, counts = draw_for(model, batch, seed)
    return draw, model(batch, draw, counts)


def put(batch, draw, tokens):
    """Rows with tokens (B, S) at the chosen positions, one by one."""
    ids = batch.input_ids_BL.clone()
    for row, slot in draw.chosen_BS.nonzero().tolist():
        ids[row, draw.index_BS[row, slot]] = tokens[row, slot]
    return ids


def masked(batch, draw):
    return put(batch, draw, torch.full_like(draw.index_BS, MASK))


def where_chosen(batch, draw):
    nowhere = batch._replace(input_ids_BL=torch.zeros_like(batch.input_ids_BL))
    return masked(nowhere, draw) == MASK


def all_logits(masked_lm, ids, batch):
    table, bias = masked_lm.softmax
    return masked_lm.head(masked_lm.encoder(ids, *batch.inputs[1:3])) @ table.T + bias


# What holds for all of them


@pytest.mark.parametrize("name", [name for name in EVERY if name != "cocolm"])
def test_in_pieces_as_in_one(name, batch):
    """1 x 8 rows and 2 x 4 rows: same loss, same gradients, same measures."""
    model = build(*EVERY[name])
    batch = batch.each(lambda each: torch.cat([each, each.flip(0)]))
    draw, counts = draw_for(model, batch)
    whole = model(batch, draw, counts)
    parts = slice(0, 4), slice(4, 8)
    halves = [model(batch.rows(rows), draw.rows(rows), counts) for rows in parts]
    assert_same_loss(model, halves[0].loss + halves[1].loss, whole.loss)
    for measure, pair in whole.means.items():
        parts = [torch.stack(half.means[measure]) for half in halves]
        torch.testing.assert_close(parts[0] + parts[1], torch.stack(pair), **CLOSE)


@pytest.mark.parametrize("name", EVERY)
def test_padding_is_nothing(name, batch):
    """The row of 20 tokens alone, and with 12 of padding behind it: same loss and gradients."""
    model = build(*EVERY[name])
    padded = batch.rows(slice(1, 2))
    short = padded.each(lambda each: each[:, :20] if each.dim() > 1 else each)
    short = short._replace(attention_mask_BL=None)
    draw, output = compute(model, padded)
    assert_same_loss(model, output.loss, model(short, draw, model.masking.count(short, draw)).loss)
    if output.judgement:
        assert not output.judgement.is_replaced_BL[:, 20:].any()
        assert not output.judgement.judged_BL[:, 20:].any()


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_what_the_measures_say(name, batch):
    model = build(*EVERY[name])
    output = model(batch, *model.masking.draw(batch, rng(0)))
    total = sum(
        weight * output.means[measure][0] / output.means[measure][1]
        for measure, weight in model.loss_weights.items()
        if measure in output.means
    )
    torch.testing.assert_close(total.float(), output.loss.detach(), **CLOSE)


LN_V = math.log(30_522)
SHARE = 19 / 128
NCE = 50 * 19 / 126 * (LN_V + math.log(0.85 / 0.15))  # noise, believed text with all certainty


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], LN_V + 50 * math.log(2)),
        (["method.objective=rtd_masked_only"], LN_V + 50 * math.log(2)),
        (["method.objective=mlm"], LN_V),
        (["method.objective=replace_mlm"], 2 * LN_V),
        (["method.objective=all_tokens_mlm"], LN_V + math.log(2) + SHARE * LN_V),
        (["method.objective=electric"], LN_V + NCE),
        (["method.objective=teams"], LN_V + 50 * math.log(2) + 2 * math.log(5)),
        # Of two rows a crop is told from three states.
        (["method.objective=cocolm"], LN_V + 50 * math.log(2) + LN_V + math.log(2) + math.log(3)),
        (EVERY["causal_lm"], LN_V),
        (NEXT_SENTENCE, LN_V + math.log(2)),
        (["method.scheme=two_stage", "method.sharing=none"], LN_V),
        # The reward and its baseline are both ln 2, so the policy has nothing to gain.
        (["method.scheme=adversarial"], math.log(2) + 50 * math.log(2)),
        (["generator.kind=uniform"], 50 * math.log(2)),  # a distribution that learns nothing
    ],
)
def test_small_starts_at_the_derived_loss(settings, expected):
    """Step 0 of small with BERT's weights, within 0.5 and 3%."""
    config = override(PRESETS["small"], settings)
    model = build_model(config, make_tokenizer(30_522), Machine())
    ids = torch.randint(1000, 30_000, (2, 128), generator=rng(0))
    ids[:, 0], ids[:, -1] = CLS, SEP
    rows = Batch(ids, None, torch.zeros_like(ids), None, torch.tensor([True, False]))
    output = model(rows, *model.masking.draw(rows, rng(1)))
    assert output.loss.item() == pytest.approx(expected, abs=0.5, rel=0.03)


# Replaced token detection


def test_rtd(batch):
    """Float64: labels, losses, and gradients: those of L_Disc end before the generator."""
    model, seen_correct = build_exactly(), False
    ids, real, *_ = batch
    with torch.no_grad():  # a generator that is sometimes right
        model.generator.head.bias[5:20] = 3.0
    for seed in range(20):
        draw, output, logits, *_, expected = compute_rtd(model, batch, seed)
        judgement = output.judgement
        assert torch.equal(judgement.is_replaced_BL, judgement.corrupt_ids_BL != ids)
        assert torch.equal(judgement.judged_BL, real)
        special = ~real | torch.isin(ids, torch.tensor([PAD, CLS, SEP, MASK]))
        assert not judgement.is_replaced_BL[special].any()
        num_correct, num_chosen = output.means["sampled_accuracy"]
        assert num_chosen == 14
        assert num_chosen - num_correct == judgement.is_replaced_BL.sum()
        is_right = (logits.argmax(-1) == ids) & where_chosen(batch, draw)
        assert output.means["mlm_accuracy"] == (is_right.sum(), 14)
        seen_correct |= bool(num_correct > 0)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert seen_correct
    assert_same_loss(model, output.loss, expected, 1e-6)


def test_measures_are_means_over_tokens_not_of_means(batch):
    model = build()
    measures = Measures(model.loss_weights)
    outputs = [
        model(batch, *model.masking.draw(batch, rng(0))),
        model(batch.rows(slice(0, 1)), *model.masking.draw(batch.rows(slice(0, 1)), rng(1))),
    ]
    for output in outputs:
        measures.add(output)
    record = measures.record()
    num_tokens = sum(int(output.judgement.judged_BL.sum()) for output in outputs)
    expected = sum(output.means["disc_loss"][0].item() for output in outputs) / num_tokens
    assert record["disc_loss"] == pytest.approx(expected, rel=1e-6)
    replaced_rate = sum(int(each.judgement.is_replaced_BL.sum()) for each in outputs) / num_tokens
    assert record["replaced_rate"] == pytest.approx(replaced_rate)
    assert record["constant_disc_loss"] == pytest.approx(entropy(replaced_rate))
    assert record["loss"] == pytest.approx(record["mlm_loss"] + 50 * record["disc_loss"])
    assert entropy(0.138) == pytest.approx(0.402, abs=1e-3)


# Where gradients may flow


def heard(model, loss):
    """The networks that a loss teaches."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return {
        name.split(".")[0]
        for name, gradient in zip(names, gradients(model, loss), strict=True)
        if gradient is not None and gradient.any()
    }


def test_two_stages(batch):
    model = build(*EVERY["two_stage"], "generator.layers_fraction=1")
    assert heard(model, model(batch, *model.masking.draw(batch, rng(0))).loss) == {"generator"}
    model.begin_stage(1)
    for name, tensor in model.discriminator.state_dict().items():
        assert torch.equal(tensor, model.generator.encoder.state_dict()[name]), name
    output = model(batch, *model.masking.draw(batch, rng(0)))
    assert heard(model, output.loss) == {"discriminator", "discriminator_head"}
    total, number = output.means["disc_loss"]
    torch.testing.assert_close(output.loss, 50 * total / number)


def test_second_stage_takes_embeddings_where_sizes_differ():
    settings = ["generator.hidden_fraction=0.5", "train.initial_weights=bert"]
    model = build(*EVERY["two_stage"], *settings)
    before = model.discriminator.layers[0].output.weight.clone()
    model.begin_stage(1)
    theirs, ours = model.generator.encoder.embeddings, model.discriminator.embeddings
    assert torch.equal(ours.tokens.weight, theirs.tokens.weight)
    assert torch.equal(model.discriminator.layers[0].output.weight, before)


def test_adversarial_by_hand(batch):
    """Rewards, baseline and policy gradient from full softmaxes, position by position."""
    model = build(*EVERY["adversarial"])
    draw, output = compute(model, batch)
    sampled, is_chosen = output.judgement.corrupt_ids_BL, where_chosen(batch, draw)
    log_probs = all_logits(model.generator, masked(batch, draw), batch).log_softmax(-1)
    log_prob = log_probs.gather(2, sampled[:, :, None]).squeeze(2)[is_chosen]
    states = model.discriminator(sampled, *batch.inputs[1:3])
    prob_replaced = model.discriminator_head(states).sigmoid()
    prob_truth = torch.where(sampled != batch.input_ids_BL, prob_replaced, 1 - prob_replaced)
    reward = -prob_truth.log()[is_chosen].detach()
    hidden = model.generator.encoder(masked(batch, draw), *batch.inputs[1:3])
    guess = model.baseline_head(model.generator.head(hidden).detach()).squeeze(-1)[is_chosen]
    baseline = -guess.sigmoid().log()
    policy_loss = -((reward - baseline.detach()) * log_prob).mean()
    truth = (-reward).exp()
    baseline_loss = F.binary_cross_entropy(guess.sigmoid(), truth)
    disc_loss = -prob_truth.log()[batch.attention_mask_BL].mean()
    expected = policy_loss + baseline_loss + 50 * disc_loss
    assert_same_loss(model, output.loss, expected)
    assert heard(model, policy_loss) == {"generator"}
    entropy = -(log_probs.exp() * log_probs).sum(-1)[is_chosen]
    total, number = output.means["generator_entropy"]
    torch.testing.assert_close(total / number, entropy.mean(), **CLOSE)


def test_a_generator_that_begins_alone(batch):
    """Its likelihood is the loss, and what it shares with the discriminator rests."""
    model, whole = build(), build()
    model.rest_until(3, 12)
    assert [model.stage_at(step) for step in (0, 2, 3, 11)] == [0, 0, 1, 1]
    assert model.share_awake == 0.75
    _, output = compute(model, batch)
    total, number = output.means["mlm_loss"]
    torch.testing.assert_close(output.loss.detach(), (total / number).float())
    assert output.judgement is None
    kept = {*model.discriminator.parameters()}
    assert set(model.resting) == kept
    assert not kept >= {*model.generator.parameters()}
    model.begin_stage(1)
    assert not model.resting
    assert compute(model, batch)[1].loss == compute(whole, batch)[1].loss


# The objectives by hand


def predict(model, batch, draw):
    """The generator's loss and samples, which test_method.py tests."""
    original = batch.input_ids_BL.gather(1, draw.index_BS)
    share = draw.chosen_BS / draw.chosen_BS.sum()
    rows = batch._replace(input_ids_BL=masked(batch, draw))
    return model.generator(rows, draw.index_BS, original, share, draw.sample_BS)


def test_masked_only(batch):
    model = build("method.objective=rtd_masked_only")
    draw, output = compute(model, batch)
    is_chosen = where_chosen(batch, draw)
    judgement = output.judgement
    labels = judgement.is_replaced_BL[is_chosen].float()
    expected = F.binary_cross_entropy_with_logits(judgement.logits_BL[is_chosen], labels)
    total, number = output.means["disc_loss"]
    assert judgement.judged_BL.sum() == is_chosen.sum() == 14
    torch.testing.assert_close(total / number, expected)


@pytest.mark.parametrize("shown", ["mask", "80/10/10"])
def test_mlm(batch, shown):
    """Of the positions that are predicted, 80% show [MASK], 10% a random token, 10% their own."""
    model = build("method.objective=mlm", f"method.shown_at_mask={shown}")
    draw, output = compute(model, batch)
    is_chosen, seen = where_chosen(batch, draw), masked(batch, draw)
    if shown == "80/10/10":
        own = batch.input_ids_BL.gather(1, draw.index_BS)
        random = (draw.random_BS * VOCAB).floor().long()
        tokens = torch.where(draw.shown_BS < 0.9, random, own)
        seen = put(batch, draw, torch.where(draw.shown_BS < 0.8, MASK, tokens))
        assert (seen == batch.input_ids_BL)[is_chosen].any()
    logits = all_logits(model.mlm, seen, batch)[is_chosen]
    expected = F.cross_entropy(logits, batch.input_ids_BL[is_chosen])
    assert_same_loss(model, output.loss, expected)


@pytest.mark.parametrize("kind", ["network", "unigram"])
def test_replace_mlm(batch, kind):
    model = build("method.objective=replace_mlm", f"generator.kind={kind}")
    draw, output = compute(model, batch)
    is_chosen = where_chosen(batch, draw)
    prediction = predict(model, batch, draw)
    corrupt = put(batch, draw, prediction.sampled)
    logits = all_logits(model.mlm, corrupt, batch)[is_chosen]
    restore = F.cross_entropy(logits, batch.input_ids_BL[is_chosen])
    expected = restore + (prediction.loss if kind == "network" else 0)
    assert_same_loss(model, output.loss, expected)
    total, number = output.means["replaced_rate"]
    assert total == (corrupt != batch.input_ids_BL).sum()
    assert number == batch.attention_mask_BL.sum()


def test_all_tokens_mlm(batch):
    """The whole mixture over the vocabulary is built: it sums to 1, and gives the loss."""
    model = build("method.objective=all_tokens_mlm")
    draw, output = compute(model, batch)
    logits = all_logits(model.generator, masked(batch, draw), batch)
    is_chosen, real = where_chosen(batch, draw), batch.attention_mask_BL
    mlm_loss = F.cross_entropy(logits[is_chosen], batch.input_ids_BL[is_chosen])
    corrupt = put(batch, draw, predict(model, batch, draw).sampled)
    copy = model.copy_head(model.mlm.encoder(corrupt, *batch.inputs[1:3])).sigmoid()
    softmax = all_logits(model.mlm, corrupt, batch).softmax(-1)
    probs = copy * F.one_hot(corrupt, VOCAB) + (1 - copy) * softmax
    torch.testing.assert_close(probs.sum(-1), torch.ones(4, 32), **CLOSE)
    restore = -probs.gather(2, batch.input_ids_BL[:, :, None]).log().squeeze(2)[real].mean()
    assert_same_loss(model, output.loss, mlm_loss + restore)


def draw_others(weights, original, uniforms):
    """Tokens drawn one after the other, each without those before it and the original."""
    drawn = [original]
    for uniform in uniforms:
        left = [0.0 if token in drawn else each for token, each in enumerate(weights)]
        sums = list(itertools.accumulate(left))
        drawn.append(next(token for token, each in enumerate(sums) if each > uniform * sums[-1]))
    return drawn


def compute_rtd(model, batch, seed=2):
    """Float64: what RTD and its descendants compute, and RTD's two losses by their formulas."""
    draw, output = compute(model, batch, seed)
    ids, real, types, _ = batch.inputs
    corrupt, is_chosen = output.judgement.corrupt_ids_BL, where_chosen(batch, draw)
    logits = all_logits(model.generator, masked(batch, draw), batch)
    mlm_loss = F.cross_entropy(logits[is_chosen], ids[is_chosen])
    states = model.discriminator(corrupt, real, types)
    prob = model.discriminator_head(states).sigmoid()
    disc_loss = F.binary_cross_entropy(prob[real], (corrupt != ids)[real].to(prob))
    return draw, output, logits, states, prob, mlm_loss + 50 * disc_loss


def build_exactly(*settings):
    model = build_objective(config_of(*settings), VOCABULARY, torch.float64).double()
    init_weights(model, 0.15, rng(0))
    return model


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["method.sharing=none", "generator.temperature=1.5"],
        ["method.sharing=gdes", "method.kept_layer=selection"],
        [*EVERY["layers_shared"], "method.selection_weight=3"],
        EVERY["all_shared"],
        [*MODERN, "generator.shared_layers=1"],
        [*DEBERTA, "generator.shared_layers=1", "method.sharing=gdes"],
    ],
    ids=" ".join,
)
def test_teams(batch, settings):
    """Float64: both ends as encoders of their own, the choice candidate by candidate."""
    model = build_exactly("method.objective=teams", *settings)
    draw, output, logits, _, _, rtd_loss = compute_rtd(model, batch)
    ids, real, types, _ = batch.inputs
    states = model.selector(output.judgement.corrupt_ids_BL, real, types)
    head, temperature = model.selection_head, model.generator.temperature
    table, log_probs, num_right = model.discriminator.embeddings.tokens.table, [], 0
    for row, slot in draw.chosen_BS.nonzero().tolist():
        place = draw.index_BS[row, slot]
        weights = (logits[row, place] / temperature).exp().tolist()
        uniforms = draw.sample_BS[row, slot, 1:].tolist()
        candidates = draw_others(weights, ids[row, place].item(), uniforms)
        assert len(set(candidates)) == 5
        inner = F.gelu(F.linear(states[row, place], head.dense.weight, head.dense.bias))
        inner = (inner - inner.mean()) / (inner.var(correction=0) + head.norm.eps).sqrt()
        inner = inner * head.norm.weight + (0 if head.norm.bias is None else head.norm.bias)
        scores = [table[candidate] @ inner for candidate in candidates]
        log_probs.append(scores[0] - torch.stack(scores).exp().sum().log())
        num_right += int(scores[0] == max(scores))
    selection_loss = -sum(log_probs) / 14
    expected = rtd_loss + model.loss_weights["selection_loss"] * selection_loss
    assert_same_loss(model, output.loss, expected, 1e-6)
    assert output.means["selection_accuracy"] == (num_right, 14)
    if not settings:
        assert heard(model, selection_loss) == {"discriminator", "selector", "selection_head"}


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["method.sharing=none", "generator.temperature=1.5", "method.corrective_weight=3"],
        [*EVERY["layers_shared"], "method.sharing=gdes", "method.contrast_weight=2"],
        EVERY["all_shared"],
        [*MODERN, "generator.shared_layers=1"],
        DEBERTA,
    ],
    ids=" ".join,
)
def test_cocolm(batch, settings):
    """Float64: the mixture over the vocabulary, which sums to 1; each crop as a row of its own."""
    model = build_exactly("method.objective=cocolm", *settings)
    draw, output, _, states, prob, expected = compute_rtd(model, batch)
    ids, corrupt = batch.input_ids_BL, output.judgement.corrupt_ids_BL
    table, head = model.discriminator.embeddings.tokens.table, model.corrective_head
    copy = 1 - prob.detach()[:, :, None]
    softmax = (head(states) @ table.T + head.bias).softmax(-1)
    probs = copy * F.one_hot(corrupt, VOCAB) + (1 - copy) * softmax
    torch.testing.assert_close(probs.sum(-1), torch.ones(4, 32).double())
    log_prob = probs.gather(2, ids[:, :, None])[:, :, 0].log()
    corrective_loss = -log_prob[where_chosen(batch, draw)].mean()
    crops = [model.discriminator(*row)[0, 0] for row in crop_by_hand(batch, draw.crop_B)]
    anchors = [each / each.norm() for each in (*states[:, 0], *crops)]
    contrasts = []
    for number, anchor in enumerate(anchors):
        powers = [(anchor @ each).exp() for each in anchors if each is not anchor]
        contrasts.append(sum(powers).log() - anchor @ anchors[(number + 4) % 8])
    contrast_loss, weights = sum(contrasts) / 8, model.loss_weights
    expected = expected + weights["corrective_loss"] * corrective_loss
    expected = expected + weights["contrast_loss"] * contrast_loss
    assert_same_loss(model, output.loss, expected, 1e-6)
    if not settings:
        assert heard(model, corrective_loss) == {"discriminator", "corrective_head"}
        assert heard(model, contrast_loss) == {"discriminator"}


def test_cocolm_without_its_parts_is_rtd(batch):
    without = ["method.objective=cocolm", "method.corrective_weight=0", "method.contrast_weight=0"]
    models = build(*without), build()
    assert models[0].networks.keys() == models[1].networks.keys()
    losses = [compute(model, batch)[1].loss for model in models]
    assert losses[0] == losses[1]
    assert all(map(torch.equal, *map(gradients, models, losses)))


def crop_by_hand(batch, uniform):
    for ids, real, types, number in zip(*batch[:3], uniform.tolist(), strict=True):
        inside, inside_types = ids[real].tolist()[1:-1], types[real].tolist()[1:-1]
        cut = len(inside) // 10
        first = int(number * (cut + 1))
        kept = slice(first, first + len(inside) - cut)
        row = torch.tensor([[ids[0], *inside[kept], ids[real][-1]]])
        yield row, None, torch.tensor([[0, *inside_types[kept], types[real][-1]]])


def test_a_crop_begins_anywhere(batch):
    """Rows of 32, 20 and 3 tokens lose 3, 1 and 0, before and behind what is kept."""
    found = set()
    for number in range(8):
        uniform = torch.full((4,), number / 8)
        cropped = crop(batch, uniform)
        assert cropped.input_ids_BL.shape == (4, 29)
        for row, (ids, _, types) in enumerate(crop_by_hand(batch, uniform)):
            real = cropped.attention_mask_BL[row]
            assert torch.equal(cropped.input_ids_BL[row, real], ids[0])
            assert torch.equal(cropped.token_type_ids_BL[row, real], types[0])
            assert real.sum() == (29, 19, 3, 29)[row]
            assert not cropped.input_ids_BL[row, ~real].any()
        found.add(tuple(cropped.input_ids_BL[0].tolist()))
    assert len(found) == 4


def test_crops_leave_the_masks_as_they_are(batch):
    with_crops, without = (draw_for(build(*EVERY[name]), batch)[0] for name in ("cocolm", "rtd"))
    assert without.crop_B is None
    assert 0 <= with_crops.crop_B.min() < with_crops.crop_B.max() < 1
    assert all(map(torch.equal, with_crops[:5], without[:5]))
    assert torch.equal(with_crops.rows(slice(1, 3)).crop_B, with_crops.crop_B[1:3])


def test_a_mixture_of_copy_and_softmax_is_exact_where_its_terms_underflow():
    """Log-odds of copying of 1000, and a softmax of e^-1000; with the derivatives."""
    copy_logits = torch.tensor([[1000.0, 1000.0, -1000.0, -1000.0]], requires_grad=True)
    features, bias = torch.zeros(1, 4, 1), torch.tensor([-1000.0, 0.0])
    is_same = torch.tensor([[True, False, True, False]])
    targets = torch.zeros(1, 4, dtype=torch.int64)
    log_prob = mix(features, torch.zeros(2, 1), bias, targets, copy_logits, is_same)
    assert log_prob.tolist() == [[0, -2000, pytest.approx(-1000 + math.log(2)), -1000]]
    (gradient,) = torch.autograd.grad(log_prob.sum(), copy_logits)
    assert gradient.tolist() == [[0, -1, 0.5, 0]]


@pytest.mark.parametrize("body", BODIES, ids=" ".join)
def test_next_sentence(batch, body):
    """Float64: the pooler and both classes written out, row by row."""
    model = build_exactly(*NEXT_SENTENCE, "method.shown_at_mask=mask", *body)
    draw, output = compute(model, batch)
    ids, is_chosen, head = masked(batch, draw), where_chosen(batch, draw), model.next_sentence_head
    logits = all_logits(model.mlm, ids, batch)[is_chosen]
    log_probs, num_right = [], 0
    for row, is_next in enumerate([True, False, False, True]):
        states = model.mlm.encoder(*batch._replace(input_ids_BL=ids).rows(slice(row, row + 1))[:3])
        pooled = (head.pooler.weight @ states[0, 0] + head.pooler.bias).tanh()
        follows, does_not = head.dense.weight @ pooled + head.dense.bias
        margin = follows - does_not if is_next else does_not - follows
        log_probs.append(-(1 + (-margin).exp()).log())
        num_right += int(margin > 0)
    nsp_loss = -sum(log_probs) / 4
    expected = F.cross_entropy(logits, batch.input_ids_BL[is_chosen]) + nsp_loss
    assert_same_loss(model, output.loss.double(), expected, 1e-6)
    assert output.means["nsp_accuracy"] == (num_right, 4)
    assert heard(model, nsp_loss) == {"mlm", "next_sentence_head"}


@pytest.mark.parametrize("body", BODIES, ids=" ".join)
def test_causal_lm(batch, body):
    """Float64: each token from a row that ends before it, which so cannot see it."""
    model = build_exactly(*EVERY["causal_lm"], *body)
    _, output = compute(model, batch)
    log_probs, num_right = [], 0
    for ids, types, real in zip(batch[0], batch[2], batch[1], strict=True):
        for end in range(1, int(real.sum())):
            state = model.lm.encoder(ids[None, :end], None, types[None, :end])[0, -1]
            table, bias = model.lm.softmax
            logits = table @ model.lm.head(state) + bias
            log_probs.append(logits.log_softmax(0)[ids[end]])
            num_right += int(logits.argmax() == ids[end])
    assert len(log_probs) == 32 + 20 + 3 + 32 - 4
    assert_same_loss(model, output.loss.double(), -sum(log_probs) / len(log_probs), 1e-6)
    assert output.means["lm_accuracy"] == (num_right, len(log_probs))


@pytest.mark.parametrize("sees", ["before", "after"])
def test_a_tower_sees_one_side(sees, batch):
    """A changed token changes the states from it on, or up to it, and no others."""
    tower = Encoder(SIZES).eval()
    tower.sees = sees
    init_weights(tower, 0.15, rng(0))
    changed = batch.input_ids_BL.clone()
    changed[0, 10] = 5 + (changed[0, 10] - 4) % 50
    before = tower(*batch.inputs)[0]
    after = tower(changed, *batch.inputs[1:])[0]
    is_moved = (before - after).abs().amax(dim=-1) > 1e-6
    expected = torch.arange(32) >= 10 if sees == "before" else torch.arange(32) <= 10
    assert torch.equal(is_moved, expected)


def test_noise_never_sees_what_it_predicts(batch):
    model = build(*EVERY["electric"])
    changed = batch.input_ids_BL.clone()
    changed[0, 10] = 5 + (changed[0, 10] - 4) % 50
    before = model.generator(batch)
    after = model.generator(batch._replace(input_ids_BL=changed))
    moved = (before - after).abs().amax(dim=-1) > 1e-6
    assert not moved[0, 10]
    assert moved[0, [9, 11]].all()
    assert not moved[1:].any()


def test_electric(batch):
    """The NCE posterior from k q and (n - k) exp(-E), not from a logit."""
    model = build(*EVERY["electric"])
    draw, output = compute(model, batch)
    ids, judged = batch.input_ids_BL, output.judgement.judged_BL
    assert torch.equal(judged, (ids >= 5) | (ids == UNK))
    noised, is_noise = output.judgement.corrupt_ids_BL, output.judgement.is_replaced_BL
    assert is_noise.sum() == draw.chosen_BS.sum()  # also where the draw is the original
    assert torch.equal(noised[~is_noise], ids[~is_noise])

    table, bias = model.generator.softmax
    q = (model.generator(batch) @ table.T + bias).softmax(-1)
    q_of_text = q.gather(2, ids[:, :, None]).squeeze(2)
    q_of_noised = q.gather(2, noised[:, :, None]).squeeze(2).detach()
    p = (-model.energy(batch._replace(input_ids_BL=noised))).exp()
    k, n = 0.15, 1.0
    posterior = k * q_of_noised / (k * q_of_noised + (n - k) * p)
    nce = F.binary_cross_entropy(posterior[judged], is_noise[judged].float())
    mlm_loss = -q_of_text[judged].log().mean()
    expected = mlm_loss + model.loss_weights["disc_loss"] * nce
    assert_same_loss(model, output.loss, expected)


# Sharing and sizes


SMALL = 14_196_219
"""Parameters. Source: derived from the released code, as those of base and large."""
ENCODER = 13_483_008


@pytest.mark.parametrize(
    ("preset", "settings", "expected"),
    [
        ("small", [], SMALL),
        ("base", [], 119_386_427),
        ("large", [], 354_655_291),
        # A second block: 128 (30,522 + 512 + 2 + 2).
        ("small", ["method.sharing=none"], SMALL + 3_972_864),
        ("small", ["generator.hidden_fraction=1"], 23_122_875),
        # Less the map of the embeddings, (128 + 1) 256, and a layer.
        (
            "small",
            ["generator.hidden_fraction=1", "generator.shared_layers=1"],
            23_122_875 - 33_024 - 789_760,
        ),
        # One encoder, a discriminator's head, a softmax's: 128 (256 + 3) + 30,522.
        ("small", ["method.sharing=all", "generator.hidden_fraction=1"], ENCODER + 66_049 + 63_674),
        ("small", ["method.objective=mlm"], ENCODER + 63_674),
        ("small", ["generator.kind=unigram"], ENCODER + 66_049),
    ],
)
def test_parameter_counts(preset, settings, expected):
    model = sketch_objective(override(PRESETS[preset], settings))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_generator_sizes_outright():
    settings = ["generator.hidden_size=256", "generator.num_hidden_layers=3"]
    config = override(PRESETS["small"], settings)
    sizes = config.generator.encoder(config.model)
    assert (sizes.hidden_size, sizes.num_hidden_layers) == (256, 3)
    assert (sizes.num_attention_heads, sizes.intermediate_size) == (4, 1024)


# Generators


def test_generators_that_do_not_learn(batch):
    """Fixed distributions have the frequencies of their names; a network is not trained."""
    counts = torch.arange(1, VOCAB + 1).double()
    for kind, weights in (("uniform", torch.ones(VOCAB).double()), ("unigram", counts)):
        probs = build(f"generator.kind={kind}").generator.probs_V
        torch.testing.assert_close(probs, weights / weights.sum())
    assert build().networks["generator"].trained == 1
    model = build("generator.kind=frozen", "generator.frozen_run=run", "method.sharing=none")
    assert not any(each.requires_grad for each in model.generator.parameters())
    assert model.networks["generator"].trained == 0
    _, output = compute(model, batch)
    assert heard(model, output.loss) == {"discriminator", "discriminator_head"}


@pytest.mark.parametrize("name", EVERY)
def test_a_checkpoint_holds_parameters_alone(name):
    model = build(*EVERY[name])
    assert model.state_dict().keys() == dict(model.named_parameters(remove_duplicate=False)).keys()


def test_a_low_temperature_draws_the_most_probable_other(batch):
    """Also where the original is so probable that the powers of all others underflow."""
    model = build("generator.temperature=0.01", "generator.disallow_correct=true")
    batch.input_ids_BL[batch.input_ids_BL >= 5] = 7
    with torch.no_grad():
        model.generator.head.bias[7] = 9
    draw, output = compute(model, batch)
    logits = all_logits(model.generator, masked(batch, draw), batch)[where_chosen(batch, draw)]
    logits[:, 7] = -math.inf
    drawn = output.judgement.corrupt_ids_BL[where_chosen(batch, draw)]
    assert (logits.gather(1, drawn[:, None])[:, 0] > logits.amax(dim=1) - 0.2).all()


def test_a_temperature_that_falls():
    """From 2 towards 1 by e in a tenth of the run, with which a run that ends early continues."""
    for steps in (["train.steps=200"], ["train.steps=50", "optimizer.planned_steps=200"]):
        model = build("generator.temperature=2", "generator.temperature_decay=0.1", *steps)
        found = []
        for step in (0, 20, 40):
            model.begin_step(step)
            found.append(model.generator.temperature.item())
        assert found == pytest.approx([2, 1 + 1 / math.e, 1 + math.exp(-2)])


# Refusals


REFERENCE = "method.mode=reference optimizer.matrices=adamw"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("method.objective=electric generator.kind=uniform", "network, not uniform: its noise is"),
        ("method.objective=electric generator.temperature=2", "1, not 2: it needs the softmax"),
        ("method.objective=electric generator.disallow_correct=true", "it needs the softmax"),
        (
            "method.scheme=two_stage method.sharing=none model.architecture=modernbert "
            "model.embedding_size=128 generator.hidden_fraction=0.5 train.initial_weights=bert",
            "be 1 for method.sharing none, method.scheme two_stage, in architecture modernbert",
        ),
        (
            f"method.objective=electric {REFERENCE}",
            "needs method.objective=rtd or mlm, not electric: the re",
        ),
        (
            f"method.objective=replace_mlm {REFERENCE}",
            "needs method.objective=rtd or mlm, not replace_mlm",
        ),
        (f"method.scheme=adversarial {REFERENCE}", "needs method.scheme=joint, not adversarial"),
        ("method.scheme=adversarial generator.temperature=2", "not adversarial: it rewards the so"),
        (f"method.objective=teams {REFERENCE}", "needs method.objective=rtd or mlm, not teams"),
        ("examples.next_sentence=true", "needs examples.single_segment_prob=0, not 0.1: every row"),
        (" ".join(NEXT_SENTENCE[1:]), "needs method.objective=mlm, not rtd"),
        (" ".join(NEXT_SENTENCE) + " examples.attend=document", "[CLS] judges both segments"),
        (f"{' '.join(NEXT_SENTENCE)} {REFERENCE}", "needs method.mode=paper, not reference"),
        ("method.objective=causal_lm", "needs model.causal: a token must not see the next one"),
        ("model.causal=true", "needs method.objective=causal_lm, not rtd: the others read both"),
        ("method.objective=teams method.scheme=two_stage method.sharing=none", "must be joint"),
        ("method.objective=teams generator.kind=unigram", "needs generator.kind=network or"),
        ("method.objective=teams model.num_hidden_layers=1", "num_hidden_layers other than 1"),
        ("method.objective=teams train.updates=apart", "needs method.objective=rtd, not teams"),
        ("method.selection_weight=3", "needs method.objective=teams, not rtd"),
        ("method.objective=cocolm method.scheme=adversarial", "must be joint"),
        ("method.objective=cocolm train.updates=apart", "needs method.objective=rtd, not cocolm"),
        ("method.corrective_weight=0", "needs method.objective=cocolm, not rtd"),
        ("method.contrast_weight=0", "needs method.objective=cocolm, not rtd"),
        (
            "method.objective=cocolm train.accumulation=2",
            "contrast_weight 1 needs train.accumulation=1, not 2: it compares whole rows",
        ),
        ("method.objective=cocolm train.batch_size=1", "needs train.batch_size other than 1"),
        ("method.objective=cocolm examples.attend=document", "needs examples.attend=row"),
        ("generator.shared_layers=2", "must be at most the generator's 1 layers, with generator.h"),
        ("generator.shared_layers=1 generator.warmup_steps=9", "layers are frozen"),
    ],
)
def test_what_an_objective_cannot_do_is_refused_when_it_is_built(settings, says):
    refuse(says, lambda: sketch_objective(config_of(*settings.split())))


# The example in the documentation


def test_example_of_a_new_objective(batch, train, toy_config, tmp_path, monkeypatch):
    """The code in docs/OBJECTIVES.md: labels and loss by hand, then a run of twelve steps."""
    page = (Path(electra.__file__).parent.parent / "docs" / "OBJECTIVES.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module = ModuleType("electra.objectives.shuffled_token_detection")
    exec(compile(code, "docs/OBJECTIVES.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (name, place) = re.findall(r'^    "(\w+)": "(.*)",$', page, re.MULTILINE)[0]
    monkeypatch.setitem(OBJECTIVES, name, place)
    (kind,) = re.findall(r'^ {8}"(\w+)": "(.*)",$', page, re.MULTILINE)
    monkeypatch.setitem(MethodConfig.kinds, *kind)
    setting = f"method.objective={name}"
    refuse(
        "needs an objective with a generator, not shuffled",
        config_of,
        setting,
        "generator.warmup_steps=2",
    )
    model = build(setting)
    draw, counts = draw_for(model, batch)
    output = model(batch, draw, counts)
    judgement, ids = output.judgement, batch.input_ids_BL
    is_chosen = where_chosen(batch, draw)
    assert torch.equal(judgement.corrupt_ids_BL[~is_chosen], ids[~is_chosen])
    for row in range(4):
        assert sorted(judgement.corrupt_ids_BL[row].tolist()) == sorted(ids[row].tolist())
    assert judgement.is_replaced_BL.sum() >= 8
    real = batch.attention_mask_BL
    labels = judgement.is_replaced_BL[real].float()
    expected = F.binary_cross_entropy_with_logits(judgement.logits_BL[real], labels)
    torch.testing.assert_close(output.loss, expected, **CLOSE)
    with FlopCounterMode(display=False) as counter:
        model(batch, draw, counts).loss.backward()
    flops = counter.get_total_flops() / ids.numel()
    assert count_true(model, ids.shape[1]) == pytest.approx(flops, rel=0.01)
    run = train("run", setting)
    assert read_records(run, "heldout")[-1]["disc_loss"] > 0
    assert read_model(run).encoder.hidden_size == toy_config.model.hidden_size
    export(run, tmp_path / "exported")
    theirs = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "exported")
    assert theirs.config.hidden_size == toy_config.model.hidden_size


@pytest.mark.parametrize("start", ["bert", "neighbours"])
def test_what_is_kept_begins_alike_whatever_the_objective(start):
    expected = None
    for name, settings in EVERY.items():  # from rtd on
        if name == "unigram" or (name, start) == ("causal_lm", "neighbours"):
            continue  # the first has no counts here, the second never looks ahead
        config = config_of(*settings, f"train.initial_weights={start}")
        kept = build_model(config, make_tokenizer(VOCAB), Machine()).kept.state_dict()
        expected = expected or kept
        assert all(torch.equal(tensor, expected[key]) for key, tensor in kept.items()), name


@pytest.mark.parametrize(
    ("objective", "prob"), [("rtd", 0.25), ("rtd_masked_only", 0.5), ("teams", 0.25)]
)
def test_the_first_judgement_is_the_share_of_replaced_tokens(objective, prob):
    """If the generator is never right; of the masked tokens alone it is no share that could be."""
    model = build(f"method.objective={objective}", "method.mask_prob=0.25")
    counts = torch.arange(1, VOCAB + 1)
    model.set_constant_predictions(counts)
    torch.testing.assert_close(model.generator.head.bias.exp(), counts / counts.sum())
    bias = model.discriminator_head.dense_prediction.bias
    torch.testing.assert_close(bias.sigmoid(), torch.tensor([prob]))
