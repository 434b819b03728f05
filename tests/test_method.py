"""What is masked, what is drawn from the generator, what dropout keeps, and what is measured."""

import math

import pytest
import torch
from networks import assert_near_tensors, rng
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch.utils._pytree import tree_leaves

from electra.assignments import override
from electra.method.masking import (
    SPAN_WORDS,
    Draw,
    Masking,
    Vocabulary,
    choose_positions,
    choose_positions_of_reference,
    count_slots,
    replace,
)
from electra.method.measures import NUM_INTERVALS, Measures, count_logits, entropy
from electra.method.objective import Judgement, Output
from electra.model.batch import Batch
from electra.model.fixed_distribution import FixedDistribution
from electra.model.likelihood import log_likelihood, log_likelihood_plain
from electra.model.parts import ONE, SPREAD, Dropout, DropoutMasks, num_kept
from electra.model.softmax import CHUNK, loss_and_sample, loss_and_sample_plain
from electra.objectives.cocolm import crop_length
from electra.presets import PRESETS

PAD, UNK, CLS, SEP, MASK = range(5)
NEVER_MASKED = (PAD, CLS, SEP, MASK)
VOCAB = 60


def uniform(like, seed):
    return torch.rand(like.shape, generator=rng(seed))


def draw_at(index, chosen):
    """A draw of these positions."""
    return Draw(index, chosen, *torch.rand(3, *index.shape))


def masking_of(*settings):
    starts_word = torch.arange(VOCAB) % 3 != 0
    return Masking(override(PRESETS["tiny"], settings).method, Vocabulary(starts_word))


def many_rows(num, length=64):
    ids = torch.randint(5, VOCAB, (num, length), generator=rng(8))
    ids[:, 0], ids[:, 30], ids[:, -1] = CLS, SEP, SEP
    return Batch(ids, None, torch.zeros_like(ids))


def where_chosen(rows, draw):
    is_chosen = torch.zeros_like(rows.input_ids_BL, dtype=torch.bool)
    row, slot = draw.chosen_BS.nonzero().T
    is_chosen[row, draw.index_BS[row, slot]] = True
    return is_chosen


# Positions


@pytest.mark.parametrize(
    ("length", "prob", "expected"),
    [(128, 0.15, 19), (512, 0.15, 77), (512, 0.25, 128), (3, 0.15, 1)],
)
def test_number_of_positions(length, prob, expected):
    real = torch.arange(512) < length
    maskable = real.clone()
    maskable[0] = maskable[length - 1] = False
    _, chosen = choose_positions(maskable[None], real[None], prob, uniform(maskable[None], 0))
    assert chosen.sum() == expected


def test_positions_are_distinct_and_never_special(batch):
    ids, real, *_ = batch
    maskable = real & ~torch.isin(ids, torch.tensor(NEVER_MASKED))
    for seed in range(200):
        index_BS, chosen_BS = choose_positions(maskable, real, 0.15, uniform(maskable, seed))
        assert chosen_BS.sum(dim=1).tolist() == [5, 3, 1, 5]
        assert not index_BS[~chosen_BS].any()  # [CLS], which is never masked
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


@pytest.mark.parametrize(("ids", "is_chosen"), [((CLS, 9, SEP), True), ((CLS, SEP, PAD), False)])
def test_a_loss_is_divided_by_the_positions_or_by_one(ids, is_chosen):
    rows = Batch(torch.tensor([ids]), torch.tensor([ids]) != PAD, torch.zeros(1, 3).long())
    draw, counts = masking_of().draw(rows, rng(0))
    assert draw.chosen_BS.any() == is_chosen
    assert (counts.num_chosen, counts.num_maskable) == (1, is_chosen)
    assert (counts.num_real, counts.num_rows) == (2 + is_chosen, 1)


@pytest.mark.parametrize("mode", ["paper", "reference"])
def test_the_shortest_row_has_a_slot(mode):
    assert count_slots(0.15, 3, mode) == 1


def test_a_share_is_the_interval_below_it():
    """A number that equals 0.8 shows no [MASK], one that equals 1 / 3.8 begins no span."""
    rows, masking = many_rows(1), masking_of("method.shown_at_mask=80/10/10")
    shown = torch.tensor([[0.0, 0.8, 0.9]])
    largest = torch.full((2, 1, 3), 1 - 2**-24)
    draw = Draw(torch.tensor([[1, 2, 3]]), torch.ones(1, 3).bool(), shown, *largest)
    ids = rows.input_ids_BL[0, 3].item()
    assert masking.mask(rows.input_ids_BL, draw)[0, 1:4].tolist() == [MASK, VOCAB - 1, ids]
    ends = torch.full((1, 64), 1 / SPAN_WORDS)
    unit = masking.find_units(rows.input_ids_BL, rows.input_ids_BL >= 5, ends)
    assert unit.unique_consecutive(return_counts=True)[1].tolist() == [1, 29, 1, 32, 1]
    assert unit.unique().tolist() == [*range(5)]


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


def test_whole_words_are_masked_whole():
    rows = many_rows(400)
    masking = masking_of("method.mask_unit=whole_word")
    draw, _ = masking.draw(rows, rng(0))
    is_chosen = where_chosen(rows, draw)
    assert not is_chosen[torch.isin(rows.input_ids_BL, torch.tensor([CLS, SEP]))].any()
    partly = 0
    for row in range(400):
        ids = rows.input_ids_BL[row].tolist()
        for place in range(1, 63):
            continues = ids[place] >= 5 and ids[place] % 3 == 0
            if continues and ids[place - 1] >= 5:
                partly += int(is_chosen[row, place] != is_chosen[row, place - 1])
    assert partly == 0
    num_chosen = draw.chosen_BS.sum(dim=1)
    assert num_chosen.max() == 10  # round(0.15 * 64)
    assert num_chosen.min() >= 1
    assert 9 < num_chosen.float().mean() < 10  # the word that would exceed it is left out


def test_spans_are_runs_of_words():
    rows = many_rows(4000)
    masking = masking_of("method.mask_unit=span")
    maskable = rows.input_ids_BL >= 5
    uniform = torch.rand(maskable.shape, generator=rng(0))
    unit = masking.find_units(rows.input_ids_BL, maskable, uniform)
    steps = unit[:, 1:] - unit[:, :-1]
    assert set(steps.flatten().tolist()) == {0, 1}
    assert (steps[~maskable[:, 1:]] == 1).all()  # specials are on their own
    assert (steps[~maskable[:, :-1]] == 1).all()
    starts_word = masking.starts_word_V[rows.input_ids_BL[:, 1:]]
    inside = maskable[:, 1:] & maskable[:, :-1]
    assert (steps[inside & ~starts_word] == 0).all()
    share = steps[inside & starts_word].double()  # of words that begin a span: 1 / 3.8
    assert share.mean().item() == pytest.approx(1 / 3.8, abs=4 * 0.44 / math.sqrt(len(share)))
    draw, _ = masking.draw(rows, rng(1))
    assert (where_chosen(rows, draw).sum(dim=1) == 10).all()
    order = torch.rand(maskable.shape, generator=rng(2))
    real = torch.ones_like(maskable)
    index, is_chosen = choose_positions(maskable, real, 0.15, order, unit, cuts=True)
    chosen = torch.zeros_like(maskable).scatter_(1, index, is_chosen)
    late = chosen[:, 1:] & ~chosen[:, :-1] & (steps == 0)  # the last span is cut at its end
    assert not late.any()


@pytest.mark.parametrize(
    ("shown", "shares"),
    [("mask", (1.0, 0.0, 0.0)), ("80/10/10", (0.8, 0.1, 0.1)), ("85/15", (0.85, 0.0, 0.15))],
)
def test_what_a_masked_position_shows(shown, shares):
    """[MASK], random, original: 40,000 positions, within 4 deviations; the rest is untouched."""
    rows = many_rows(4000)
    masking = masking_of(f"method.shown_at_mask={shown}")
    draw, _ = masking.draw(rows, rng(0))
    is_chosen = where_chosen(rows, draw)
    ids = masking.mask(rows.input_ids_BL, draw)
    assert torch.equal(ids[~is_chosen], rows.input_ids_BL[~is_chosen])
    after, before = ids[is_chosen], rows.input_ids_BL[is_chosen]
    assert len(after) == 40_000
    # A random token is the original, or [MASK], once in VOCAB each.
    random = shares[1] * (1 - 2 / VOCAB)
    expected = (shares[0] + shares[1] / VOCAB, random, shares[2] + shares[1] / VOCAB)
    seen = (after == MASK, (after != MASK) & (after != before), after == before)
    for share, is_so in zip(expected, seen, strict=True):
        error = 4 * math.sqrt(share * (1 - share) / 40_000)
        assert is_so.double().mean().item() == pytest.approx(share, abs=error + 1e-12)
    if shares[1]:
        drawn = torch.bincount(after[(after != MASK) & (after != before)], minlength=VOCAB)
        kept = torch.tensor([n for n in range(VOCAB) if n != MASK])
        is_pieces = kept >= 5  # never the original's, so the specials are a little likelier
        counts = drawn[kept[is_pieces]].double()
        assert stats.chisquare(counts).pvalue > 1e-4  # all of one probability


# Positions of the released code


@pytest.mark.parametrize(
    ("length", "prob", "slots", "drawn", "distinct", "share"),
    [
        (128, 0.15, 19, 19, 17.7, 0.138),
        (512, 0.15, 79, 77, 71.5, 0.140),
        (512, 0.25, 130, 128, 113.3, 0.221),
    ],
)
def test_positions_are_drawn_with_replacement(length, prob, slots, drawn, distinct, share):
    """Means over 4,000 rows within 0.05 of what n (1 - (1 - 1/n)^k) gives."""
    real = torch.ones(4000, length, dtype=torch.bool)
    maskable = real.clone()
    maskable[:, [0, -1]] = False
    uniform = torch.rand(4000, count_slots(prob, length, "reference"), generator=rng(1))
    index, chosen = choose_positions_of_reference(maskable, real, prob, uniform)
    assert index.shape == (4000, slots)
    assert (chosen.sum(dim=1) == drawn).all()
    assert maskable.gather(1, index)[chosen].all()
    hit = torch.zeros_like(maskable).scatter(1, index.masked_fill(~chosen, 0), True)
    hit[:, 0] = False
    mean = hit.sum(dim=1).double().mean().item()
    exact = (length - 2) * (1 - (1 - 1 / (length - 2)) ** drawn)
    assert exact == pytest.approx(distinct, abs=0.06)
    assert mean == pytest.approx(exact, abs=0.05 * (length / 128))
    assert mean / length == pytest.approx(share, abs=0.001)


def test_short_and_empty_rows_of_the_released_code():
    real = torch.arange(32) < torch.tensor([32, 10, 3, 2])[:, None]
    maskable = real.clone()
    maskable[:, 0] = False
    maskable[torch.arange(4), real.sum(dim=1) - 1] = False
    uniform = torch.rand(4, count_slots(0.15, 32, "reference"), generator=rng(0))
    index, chosen = choose_positions_of_reference(maskable, real, 0.15, uniform)
    assert chosen.sum(dim=1).tolist() == [4, 2, 1, 0]
    assert maskable.gather(1, index)[chosen].all()
    assert not index[~chosen].any()


def test_a_uniform_number_selects_a_place_among_the_maskable_ones_in_row_order():
    """From 0 to the largest float32 below 1."""
    maskable = torch.rand(200, 128, generator=rng(0)) < 0.7
    uniform = torch.rand(200, 19, generator=rng(1))
    uniform[:, 0], uniform[:, 1] = 0, 1 - 2**-24
    real = torch.ones_like(maskable)
    index, _ = choose_positions_of_reference(maskable, real, 0.15, uniform)
    for row, numbers, places in zip(maskable, uniform.double(), index, strict=True):
        exact = row.nonzero()[:, 0]
        assert torch.equal(places, exact[(numbers * len(exact)).long()])


def test_a_position_that_is_drawn_twice():
    """A position chosen twice shows [MASK] if either says so, and gets the mean of two ids."""
    masking = masking_of("method.mode=reference", "optimizer.matrices=adamw")
    ids = torch.tensor([[CLS, 10, 11, 12, 13, SEP]])
    draw = Draw(
        index_BS=torch.tensor([[2, 2, 4, 1, 0]]),
        chosen_BS=torch.tensor([[True, True, True, True, False]]),
        shown_BS=torch.tensor([[0.9, 0.1, 0.86, 0.84, 0.0]]),
        random_BS=torch.zeros(1, 5),
        sample_BS=torch.zeros(1, 5),
    )
    assert masking.mask(ids, draw).tolist() == [[CLS, MASK, MASK, 12, 13, SEP]]
    sampled = torch.tensor([[100, 205, 77, 10, 999]])
    assert masking.corrupt(ids, draw, sampled).tolist() == [[CLS, 10, 152, 12, 77, SEP]]


# The softmax of a generator


def softmax_case(num=70, vocab=1000, size=16, dtype=torch.float32, scale=3.0):
    numbers = rng(5)
    features = (scale * torch.randn(num, size, generator=numbers)).to(dtype).requires_grad_()
    table = (0.3 * torch.randn(vocab, size, generator=numbers)).requires_grad_()
    bias = (0.3 * torch.randn(vocab, generator=numbers)).requires_grad_()
    targets = torch.randint(vocab, (num,), generator=numbers)
    weights = (torch.rand(num, generator=numbers) < 0.9).float() / num
    return [features, table, bias], (targets, weights, torch.rand(num, 5, generator=numbers))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
@pytest.mark.parametrize(
    ("num", "compiled"),
    [*((num, False) for num in (1, 31, 32, 33, 70, 4200)), (1, True), (4200, True)],
)
def test_one_pass_equals_plain(num, compiled):
    """Loss 1e-6 relative, gradients 1e-5 of their largest element, same draws and hits.

    What a GPU runs is traced as for it, but computed by torch's own operations.
    """
    predict = loss_and_sample
    if compiled:
        torch.compiler.reset()
        predict = torch.compile(predict, fullgraph=True, dynamic=False, backend="aot_eager")
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


@pytest.mark.parametrize("predict", [loss_and_sample, loss_and_sample_plain])
@pytest.mark.parametrize(
    ("vocab", "temperature", "disallow"),
    [
        *((5, 1.0, False), (128, 1.0, False), (300, 1.0, False), (40, 1.0, True)),
        *((40, 0.5, False), (40, 0.5, True), (40, 2.0, False), (40, torch.tensor(2.0), True)),
    ],
)
def test_draws_follow_the_softmax(predict, vocab, temperature, disallow):
    """Chi-square of 50,000 draws against softmax(logits / T), less the original; level 1e-4."""
    num = 50_000
    logits = torch.randn(vocab, generator=rng(3))
    sampled = predict(
        *(torch.ones(num, 1), logits[:, None], torch.zeros(vocab), torch.full((num,), 4)),
        *(torch.full((num,), 1 / num), torch.rand(num, generator=rng(4))),
        temperature=temperature,
        disallow_correct=disallow,
    ).sampled
    probs = (logits.double() / temperature).softmax(0)
    if disallow:
        probs[4] = 0
        assert not (sampled == 4).any()
    assert_drawn_from(probs, sampled)


def assert_drawn_from(probs, sampled):
    kept = probs > 0
    counts = torch.bincount(sampled.flatten(), minlength=len(probs)).double()
    expected = counts.sum() * (probs / probs.sum())[kept]
    assert stats.chisquare(counts[kept], expected).pvalue > 1e-4


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


@pytest.mark.parametrize("disallow", [False, True])
def test_fixed_distributions(disallow):
    """Chi-square of 50,000 draws, for each of three originals; level 1e-4."""
    weights = torch.arange(1, 31).double()
    drawer = FixedDistribution(weights, disallow_correct=disallow)
    for original in (0, 11, 29):
        uniform = torch.rand(1, 50_000, generator=rng(original))
        targets, share = torch.full((1, 50_000), original), torch.full((1, 50_000), 1 / 50_000)
        prediction = drawer(None, None, targets, share, uniform)
        probs = weights / weights.sum()
        assert prediction.loss.item() == pytest.approx(-math.log(probs[original]), rel=1e-5)
        assert disallow is not (prediction.sampled == original).any().item()
        if disallow:
            probs[original] = 0
        assert_drawn_from(probs, prediction.sampled)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
@pytest.mark.parametrize("compiled", [False, True])
def test_log_likelihood_and_entropy(compiled):
    """Over more than one chunk, against the full softmax."""
    num = CHUNK + 100
    features = torch.randn(num, 8, generator=rng(0)).requires_grad_()
    table = torch.randn(50, 8, generator=rng(1)).requires_grad_()
    bias = torch.randn(50, generator=rng(2)).requires_grad_()
    targets = torch.randint(50, (num,), generator=rng(3))
    compute = torch.compile(log_likelihood, backend="aot_eager") if compiled else log_likelihood
    log_prob, entropy = compute(features, table, bias, targets)
    logits = features @ table.T + bias
    expected = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(log_prob, expected.log_prob(targets), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected.entropy(), atol=1e-5, rtol=1e-5)
    weights = torch.randn(num, generator=rng(4))
    parameters = (features, table, bias)
    ours = torch.autograd.grad(log_prob @ weights, parameters)
    theirs = torch.autograd.grad(expected.log_prob(targets) @ weights, parameters)
    assert_near_tensors(ours, theirs, least=1)


def test_log_likelihood_in_bfloat16_is_that_of_the_definition():
    """Both round logits and gradients to bfloat16 where they enter a matrix product."""
    features = torch.randn(100, 16, generator=rng(0)).bfloat16().requires_grad_()
    table = torch.randn(300, 16, generator=rng(1)).requires_grad_()
    bias = torch.randn(300, generator=rng(2)).requires_grad_()
    targets = torch.randint(300, (100,), generator=rng(3))
    results = []
    for compute in (log_likelihood, log_likelihood_plain):
        log_prob, entropy = compute(features, table, bias, targets)
        results.append((log_prob, entropy, *torch.autograd.grad(log_prob.sum(), (table, bias))))
    assert_near_tensors(*results, tolerance=1e-2)
    torch.testing.assert_close(results[0][:2], results[1][:2], atol=1e-5, rtol=1e-5)


# Dropout, measures


@pytest.mark.parametrize("is_pooled", [False, True])
def test_dropout_keeps_the_share_it_says(is_pooled):
    """One million elements: kept share within 4 deviations of 0.9, mean within 4 of 1."""
    torch.manual_seed(0)
    assert DropoutMasks(1000, torch.float32, [1e-6]).pools[1e-6].all()
    masks = DropoutMasks(1_000_000, torch.float32, [0.1]) if is_pooled else None
    x = torch.ones(1000, 1000, requires_grad=True)
    out = Dropout(0.1).train()(x, masks)
    kept = (out != 0).double().mean().item()
    assert kept == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 1e6))
    assert out.mean().item() == pytest.approx(1.0, abs=4 * math.sqrt(0.09 / 1e6) / 0.9)
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.9], rel=1e-4)
    out.sum().backward()
    assert torch.equal(x.grad, out)
    assert torch.equal(Dropout(0.1).eval()(x, masks), x)
    neighbours = (out[:, :-1] != 0) & (out[:, 1:] != 0)
    assert neighbours.double().mean().item() == pytest.approx(0.81, abs=0.003)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_keep_the_share_they_say(dtype):
    """A million elements: the share, neighbours and two masks at a time, within 4 deviations."""
    torch.manual_seed(0)
    masks = DropoutMasks(1_000_000, dtype, [0.1])
    one, two = (masks.draw(0.1, (1000, 1000)).double() for _ in range(2))
    assert one.unique().tolist() == [0.0, 1.0]
    for kept, second in ((one, two), (two, one)):
        assert kept.mean().item() == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 1e6))
        for other in (second, kept.roll(1, 1), kept.roll(1, 0), kept.roll(7, 0)):
            both = (kept * other).mean().item()
            assert both == pytest.approx(0.81, abs=4 * math.sqrt(0.81 * 0.19 / 1e6))


def test_a_mask_of_the_largest_size_fits_the_pool_wherever_it_begins(monkeypatch):
    masks = DropoutMasks(100, torch.float32, [0.5])
    last = torch.tensor(SPREAD - 1)
    monkeypatch.setattr(torch, "randint", lambda *_: last)
    assert masks.draw(0.5, (100,)).shape == (100,)


def test_probabilities_are_exact_to_one_in_131072():
    for prob in (0.1, 0.15, 0.5, 1 / 3):
        assert num_kept(prob) / ONE == pytest.approx(1 - prob, abs=2**-17)
        assert Dropout(prob).scale == pytest.approx(1 / (1 - prob), rel=2**-15)


def test_without_dropout_nothing_is_drawn():
    assert Dropout(0.0).train().draw((3,), DropoutMasks(3, torch.float32, [])) is None


def judge(logits, is_replaced, judged):
    """An output of which only the discriminator's logits matter."""
    ones = torch.ones(2)
    judgement = Judgement(logits.long(), is_replaced, judged, logits, logits)
    return Output(ones.sum(), {"replaced_rate": (ones[0], ones.sum())}, judgement)


@pytest.mark.parametrize("spread", [1, 30, 1e-3])
@pytest.mark.parametrize("decimals", [1, 6])
def test_area_under_curve_against_scikit_learn(spread, decimals):
    """Within half the largest share of originals in one interval, ties and huge logits included."""
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


def test_logits_that_are_nan_are_ties():
    """As an evaluation of a network that has diverged gives them."""
    measures, is_replaced = Measures({}), torch.rand(4, 9, generator=rng(0)) < 0.5
    logits = torch.full((4, 9), math.nan)
    output = judge(torch.zeros(4, 9), is_replaced, torch.ones_like(is_replaced))
    assert output.judgement
    measures.add(output._replace(judgement=output.judgement._replace(logits_BL=logits)))
    assert measures.record()["disc_auc"] == 0.5


def test_a_certain_event_has_no_entropy():
    assert entropy(0) == entropy(1) == 0


def test_a_mean_over_nothing_is_no_loss_of_0():
    """All steps of a window were skipped."""
    measures = Measures({"replaced_rate": 1.0})
    flags = torch.ones(2, 3, dtype=torch.bool)
    measures.add(judge(torch.zeros(2, 3), flags, flags), is_skipped=torch.tensor(True))
    assert all(math.isnan(value) for value in measures.record().values())


def judge_some(seed):
    """An output in which each measure differs from seed to seed."""
    is_replaced, judged = (torch.rand(4, 50, generator=rng(seed + n)) < 0.5 for n in (0, 1))
    output = judge(torch.randn(4, 50, generator=rng(seed + 2)), is_replaced, judged)
    return output._replace(means={"replaced_rate": ((is_replaced & judged).sum(), judged.sum())})


def record_of(*outputs, **how):
    measures = Measures({"replaced_rate": 2.0})
    for each in outputs:
        measures.add(each, **how)
    return measures.record()


def test_a_record_is_of_its_own_window_and_of_all_processes():
    one, two = judge_some(0), judge_some(10)
    measures, others = Measures({"replaced_rate": 2.0}), Measures({})
    measures.add(one)
    assert measures.record() == record_of(one) != record_of(two)
    measures.add(two)
    assert measures.record() == record_of(two)
    measures.add(one)
    measures.add(two, is_skipped=torch.tensor(True))
    assert measures.record() == record_of(one)
    measures.add(one, is_skipped=torch.tensor(False))
    others.add(two)
    theirs = iter((others.sums_N2, others.counts_2K))
    found = measures.record(lambda tensors: [each.add_(next(theirs)) for each in tensors])
    assert found == record_of(one, two)
    assert found["loss"] == 2 * found["replaced_rate"]


def test_logits_are_counted_in_intervals_and_those_that_are_none_as_0():
    logits = torch.tensor([[-99.0, -16.0, 0.0, math.nan, 16 - 1e-5, 16.0, 99.0]])
    counts_2K, flags = torch.zeros(2, NUM_INTERVALS, dtype=torch.int64), torch.ones(1, 7).bool()
    count_logits(counts_2K, Judgement(flags.long(), ~flags, flags, logits, logits))
    places = {0: 2, NUM_INTERVALS // 2: 2, NUM_INTERVALS - 1: 3}
    assert {n: counts_2K[0, n].item() for n in counts_2K[0].nonzero().flatten().tolist()} == places
    assert not counts_2K[1].any()


@pytest.mark.parametrize("length", range(8, 601, 7))
def test_a_crop_fits_into_its_row(length):
    """Nine tenths of what [CLS] and [SEP] enclose, rounded up, whatever the row's length."""
    for real in range(3, length + 1):
        assert real - (real - 2) // 10 <= crop_length(length) <= length


def test_of_two_spans_with_almost_the_same_number_one_comes_first():
    unit_BL = torch.tensor([[0] + 8 * [1] + 8 * [2] + [3]])
    real_BL = torch.ones_like(unit_BL, dtype=torch.bool)
    maskable_BL = (unit_BL == 1) | (unit_BL == 2)
    uniform_BL = torch.zeros(1, 18)
    uniform_BL[0, 1:3] = torch.tensor([0.5 + 2**-24, 0.5])  # the numbers of spans 1 and 2
    index_BS, chosen_BS = choose_positions(
        maskable_BL, real_BL, 8 / 18, uniform_BL, unit_BL, cuts=True
    )
    assert sorted(index_BS[chosen_BS].tolist()) == [*range(9, 17)]


def test_measures_do_not_keep_logits():
    """What is held after fifty outputs is less than the logits of ten."""
    measures = Measures({})
    flags = torch.ones(40, 500, dtype=torch.bool)
    for _ in range(50):
        measures.add(judge(torch.zeros(40, 500), flags, flags))
    held = [each for each in tree_leaves(vars(measures)) if isinstance(each, torch.Tensor)]
    assert sum(tensor.numel() for tensor in held) < 10 * 40 * 500
