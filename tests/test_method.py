"""Replaced token detection, detail by detail: what is masked, drawn, labelled and learnt."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from networks import assert_near_tensors, rng
from scipy import stats
from torch.utils._pytree import tree_leaves

from electra.method.masking import Draw, Vocabulary, choose_positions, replace
from electra.method.measures import Measures, entropy
from electra.method.objective import Judgement, Output, Parts
from electra.method.registry import build_objective
from electra.model.batch import Batch
from electra.model.encoder import Dropout
from electra.model.initialisation import init_weights
from electra.model.masked_lm import loss_and_sample, loss_and_sample_plain
from electra.presets import PRESETS, encoder_sizes
from electra.settings import override

PAD, UNK, CLS, SEP, MASK = range(5)
NEVER_MASKED = (PAD, CLS, SEP, MASK)


def uniform(like, seed):
    return torch.rand(like.shape, generator=rng(seed))


def assemble(config, frequencies=None):
    vocabulary = Vocabulary(torch.arange(config.model.vocab_size) % 3 != 0)
    return build_objective(Parts(config, vocabulary, frequencies_V=frequencies))


def build(preset="tiny", dropout=None, settings=()):
    """A preset's networks; with `dropout`, two layers of 128 and a vocabulary of 60 instead."""
    config = PRESETS[preset]
    if dropout is not None:
        probs = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        sizes = encoder_sizes(128, 2, 32, vocab_size=60, **probs)
        config = dataclasses.replace(config, model=sizes)
    model = assemble(override(config, settings), torch.arange(1, 61))
    init_weights(model, 0.02, rng(0))
    return model


@pytest.fixture
def rows():
    """Rows of 32: full, padded, with the shortest possible, with specials in the middle."""
    ids = torch.randint(5, 60, (4, 32), generator=rng(1))
    length = torch.tensor([32, 20, 3, 32])
    real = torch.arange(32) < length[:, None]
    ids[:, 0] = CLS
    ids[torch.arange(4), length - 1] = SEP
    ids[3, 9], ids[3, 10] = SEP, UNK
    types = (torch.arange(32) > 9).long() * real
    return Batch(ids * real, real, types)


def draw_at(index, chosen):
    """A draw of these positions."""
    return Draw(index, chosen, *torch.rand(3, *index.shape))


# Positions


def test_number_of_positions():
    for length, prob, expected in (
        (128, 0.15, 19),
        (512, 0.15, 77),
        (512, 0.25, 128),
        (3, 0.15, 1),
    ):
        real = torch.arange(512) < length
        maskable = real.clone()
        maskable[0] = maskable[length - 1] = False
        _, chosen = choose_positions(maskable[None], real[None], prob, uniform(maskable[None], 0))
        assert chosen.sum() == expected, (length, prob)


def test_positions_are_distinct_and_never_special(rows):
    ids, real, *_ = rows
    maskable = real & ~torch.isin(ids, torch.tensor(NEVER_MASKED))
    for seed in range(200):
        index_BS, chosen_BS = choose_positions(maskable, real, 0.15, uniform(maskable, seed))
        assert chosen_BS.sum(dim=1).tolist() == [5, 3, 1, 5]
        for row in range(4):
            index = index_BS[row, chosen_BS[row]]
            assert len(set(index.tolist())) == len(index)
            assert maskable[row, index].all()


def test_row_with_nothing_to_mask_is_left_alone():
    ids = torch.tensor([[CLS, SEP, PAD, PAD, PAD, PAD, PAD, PAD]])
    real = ids != PAD
    index, chosen = choose_positions(torch.zeros_like(real), real, 0.15, uniform(real, 0))
    assert not chosen.any()
    assert torch.equal(replace(ids, draw_at(index, chosen), MASK), ids)


def test_every_position_is_equally_likely():
    """Chi-square over 126 places, 20,000 rows of 19 draws; level 1e-4.

    Draws within a row exclude one another, so the statistic is scaled by (n-1)/(n-k) to be a
    chi-square of n - 1 degrees.
    """
    real = torch.ones(20_000, 128, dtype=torch.bool)
    maskable = real.clone()
    maskable[:, [0, 127]] = False
    index, _ = choose_positions(maskable, real, 0.15, uniform(maskable, 3))
    counts = torch.bincount(index.flatten(), minlength=128)[1:127].double()
    expected = 20_000 * 19 / 126
    statistic = ((counts - expected) ** 2 / expected).sum().item() * 125 / (126 - 19)
    assert stats.chi2.sf(statistic, 125) > 1e-4


def test_replace_touches_only_the_chosen():
    ids = torch.arange(10, 26).view(2, 8)
    index = torch.tensor([[3, 5, 0], [1, 0, 0]])
    chosen = torch.tensor([[True, True, False], [True, False, False]])
    expected = ids.clone()
    expected[0, 3] = expected[0, 5] = expected[1, 1] = MASK
    assert torch.equal(replace(ids, draw_at(index, chosen), MASK), expected)


# The generator's softmax


def softmax_case(num=70, vocab=1000, size=16, dtype=torch.float32, scale=3.0):
    numbers = rng(5)
    features = (scale * torch.randn(num, size, generator=numbers)).to(dtype).requires_grad_()
    table = (0.3 * torch.randn(vocab, size, generator=numbers)).requires_grad_()
    bias = (0.3 * torch.randn(vocab, generator=numbers)).requires_grad_()
    targets = torch.randint(vocab, (num,), generator=numbers)
    weights = (torch.rand(num, generator=numbers) < 0.9).float() / num
    return [features, table, bias], (targets, weights, torch.rand(num, 5, generator=numbers))


@pytest.fixture
def compiled_loss_and_sample():
    """What a GPU runs, traced as for it but computed by torch's own operations."""
    torch.compiler.reset()
    return torch.compile(loss_and_sample, fullgraph=True, dynamic=False, backend="aot_eager")


@pytest.mark.parametrize("num", [1, 31, 32, 33, 70, 4200])
def test_one_pass_equals_plain(num):
    """Loss 1e-6 relative, gradients 1e-5 of their largest element, same draws and hits."""
    assert_equals_plain(loss_and_sample, num)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
@pytest.mark.parametrize("num", [1, 4200])
def test_compiled_equals_plain(compiled_loss_and_sample, num):
    assert_equals_plain(compiled_loss_and_sample, num)


def assert_equals_plain(predict, num):
    parameters, rest = softmax_case(num)
    plain = loss_and_sample_plain(*parameters, *rest)
    expected = torch.autograd.grad(50 * plain.loss, parameters)
    fused = predict(*parameters, *rest)
    actual = torch.autograd.grad(50 * fused.loss, parameters)
    torch.testing.assert_close(fused.loss, plain.loss, rtol=1e-6, atol=0)
    assert_near_tensors(actual, expected)
    assert (fused.sampled == plain.sampled).float().mean() > 0.999
    assert (fused.others == plain.others).float().mean() > 0.999
    assert torch.equal(fused.correct, plain.correct)


def test_one_pass_in_bfloat16_stays_near_float32():
    parameters, rest = softmax_case(200, dtype=torch.bfloat16)
    exact, _ = softmax_case(200)
    with torch.no_grad():
        exact[0].copy_(parameters[0])
    fused = loss_and_sample(*parameters, *rest).loss
    plain = loss_and_sample_plain(*exact, *rest).loss
    assert abs(fused - plain) < 0.01 * plain


def test_unused_slots_carry_no_gradient():
    parameters, (targets, _, uniform) = softmax_case(6)
    weights = torch.tensor([1.0, 0, 1, 0, 0, 1])
    loss_and_sample(*parameters, targets, weights, uniform).loss.backward()
    is_taught = parameters[0].grad.abs().sum(dim=1) > 0
    assert is_taught.tolist() == (weights > 0).tolist()


@pytest.mark.parametrize("predict", [loss_and_sample_plain, loss_and_sample])
@pytest.mark.parametrize("vocab", [5, 128, 300])
def test_draws_follow_the_softmax(predict, vocab):
    """Chi-square of 50,000 draws from one distribution against its probabilities; level 1e-4."""
    num = 50_000
    features = torch.ones(num, 1)
    table = torch.randn(vocab, 1, generator=rng(vocab))
    uniform = torch.rand(num, generator=rng(9))
    weights, targets = torch.ones(num), torch.zeros(num, dtype=torch.int64)
    sampled = predict(features, table, torch.zeros(vocab), targets, weights, uniform).sampled
    expected = num * table.squeeze(1).double().softmax(dim=0)
    counts = torch.bincount(sampled, minlength=vocab).double()
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_impossible_tokens_are_never_drawn():
    """Probability 0 at both ends of the vocabulary, uniforms at both ends of [0, 1)."""
    bias = torch.zeros(300)
    bias[:100] = bias[200:] = -1e4
    uniform = torch.tensor([0.0, 1e-9, 0.5, 1 - 2**-24])
    targets = torch.full((4,), 150)
    for predict in (loss_and_sample_plain, loss_and_sample):
        drawn = predict(
            torch.zeros(4, 8), torch.zeros(300, 8), bias, targets, torch.ones(4), uniform
        ).sampled
        assert ((drawn >= 100) & (drawn < 200)).all(), predict.__name__


# The whole method


def mean(output, name):
    """A measure of an output."""
    total, number = output.means[name]
    return total / number


def test_labels_and_losses_are_those_of_the_definition(rows):
    ids, real, types, _ = rows.inputs
    model = build(dropout=0.0).eval()
    with torch.no_grad():  # a generator that is sometimes right
        model.generator.head.bias[5:20] = 3.0
    seen_correct = False
    for seed in range(20):
        output = model.compute(rows, rng(seed))
        judgement = output.judgement
        assert torch.equal(judgement.is_replaced_BL, judgement.corrupt_ids_BL != ids)
        assert torch.equal(judgement.judged_BL, real)
        assert not judgement.is_replaced_BL[~real].any()
        for special in NEVER_MASKED:
            assert not judgement.is_replaced_BL[ids == special].any()
        num_correct, num_chosen = output.means["sampled_accuracy"]
        assert num_chosen == 14
        assert num_chosen - num_correct == judgement.is_replaced_BL.sum()
        seen_correct |= bool(num_correct > 0)
        logits = model.discriminator_head(
            model.discriminator(judgement.corrupt_ids_BL, real, types)
        )
        expected = F.binary_cross_entropy_with_logits(
            logits[real], judgement.is_replaced_BL[real].float()
        )
        torch.testing.assert_close(mean(output, "disc_loss"), expected)
        torch.testing.assert_close(output.loss, mean(output, "mlm_loss") + 5 * expected)
    assert seen_correct


def test_no_discriminator_gradient_reaches_the_generator(rows):
    """Only what both share, the embedding block, hears of L_Disc."""
    model = build(dropout=0.0)
    output = model.compute(rows, rng(0))
    model.loss_weights["disc_loss"] = 0.0
    without = model.compute(rows, rng(0))
    with_disc = torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
    no_disc = torch.autograd.grad(without.loss, list(model.parameters()), allow_unused=True)
    for (name, _), a, b in zip(model.named_parameters(), with_disc, no_disc, strict=True):
        if name.startswith("generator"):
            assert torch.equal(a, b), name
        elif name.startswith("discriminator.embeddings."):
            assert not torch.equal(a, b), name
        else:  # the discriminator's own parameters hear of nothing else
            assert b is None or not b.any(), name
            assert a is not None, name


# Dropout, measures


def test_dropout_keeps_the_share_it_says():
    """One million elements: kept share within 4 deviations of 0.9, mean within 4 of 1."""
    torch.manual_seed(0)
    x = torch.ones(1000, 1000, requires_grad=True)
    out = Dropout(0.1).train()(x)
    kept = (out != 0).double().mean().item()
    assert kept == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 1e6))
    assert out.mean().item() == pytest.approx(1.0, abs=4 * math.sqrt(0.09 / 1e6) / 0.9)
    out.sum().backward()
    assert torch.equal(x.grad, out)
    assert torch.equal(Dropout(0.1).eval()(x), x)
    neighbours = (out[:, :-1] != 0) & (out[:, 1:] != 0)
    assert neighbours.double().mean().item() == pytest.approx(0.81, abs=0.003)


def judge(logits, is_replaced, judged):
    """An output of which only the discriminator's logits matter."""
    ones = torch.ones(2)
    judgement = Judgement(logits.long(), is_replaced, judged, logits, logits)
    return Output(ones.sum(), {"replaced_rate": (ones[0], ones.sum())}, judgement)


@pytest.mark.parametrize("spread", [1, 30, 1e-3])
@pytest.mark.parametrize("decimals", [1, 6])
def test_area_under_curve_against_scikit_learn(spread, decimals):
    """Within half the largest share of originals in one interval, ties and huge logits included."""
    from sklearn.metrics import roc_auc_score

    is_replaced = torch.rand(40, 500, generator=rng(0)) < 0.2
    judged = torch.rand(40, 500, generator=rng(1)) < 0.7
    logits = torch.randn(40, 500, generator=rng(2)) + is_replaced
    logits = spread * logits.round(decimals=decimals)
    measures = Measures({})
    for rows in (slice(0, 16), slice(16, 32), slice(32, 40)):
        measures.add(judge(logits[rows], is_replaced[rows], judged[rows]))
    expected = roc_auc_score(is_replaced[judged], logits[judged])
    originals = logits[judged & ~is_replaced].clamp(-16, 16)
    interval = (originals.double() * 2048).floor()
    largest_share = interval.unique(return_counts=True)[1].max().item() / len(originals)
    found = measures.record()["disc_auc"]
    assert found == pytest.approx(expected, abs=largest_share / 2)
    if spread == 1:  # far from the bound, since the errors cancel
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("share", [0, 1])
def test_no_area_under_curve_of_one_kind_of_token(share):
    measures = Measures({})
    is_replaced = torch.full((2, 3), bool(share))
    measures.add(judge(torch.zeros(2, 3), is_replaced, torch.ones(2, 3, dtype=torch.bool)))
    assert math.isnan(measures.record()["disc_auc"])


def test_measures_do_not_keep_logits():
    """What is held after fifty outputs is less than the logits of ten."""
    measures = Measures({})
    flags = torch.ones(40, 500, dtype=torch.bool)
    for _ in range(50):
        measures.add(judge(torch.zeros(40, 500), flags, flags))
    held = [each for each in tree_leaves(vars(measures)) if isinstance(each, torch.Tensor)]
    assert sum(tensor.numel() for tensor in held) < 10 * 40 * 500


def test_measures_are_means_over_tokens_not_of_means(rows):
    model = build(dropout=0.0).eval()
    measures = Measures(model.loss_weights)
    outputs = [
        model.compute(rows, rng(0)),
        model.compute(rows.rows(slice(0, 1)), rng(1)),
    ]
    for output in outputs:
        measures.add(output)
    record = measures.record()
    num_tokens = sum(int(output.judgement.judged_BL.sum()) for output in outputs)
    expected = sum(output.means["disc_loss"][0].item() for output in outputs) / num_tokens
    assert record["disc_loss"] == pytest.approx(expected, rel=1e-6)
    num_replaced = sum(int(output.judgement.is_replaced_BL.sum()) for output in outputs)
    assert record["replaced_rate"] == pytest.approx(num_replaced / num_tokens)
    assert record["constant_disc_loss"] == pytest.approx(entropy(num_replaced / num_tokens))
    assert record["loss"] == pytest.approx(record["mlm_loss"] + 5 * record["disc_loss"])
    assert entropy(0.138) == pytest.approx(0.402, abs=1e-3)
