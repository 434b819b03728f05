import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

from electra.tasks.choice import ChoiceQuestion, MultipleChoice
from electra.tasks.classification import Classification, Example
from electra.tasks.family import Task
from electra.tasks.predictions import score
from electra.tasks.rows import choose_batches, cut_pair, encode_texts, make_batch, pack_row
from electra.tokenizing.formats import SPECIAL_TOKENS
from electra.tokenizing.tokenizer import Tokenizer

CPU = torch.device("cpu")


def toy_task(examples) -> Task:
    return Task("toy", Classification(("f1",), ("n", "y")), {"train": examples})


# --- rows ---


@pytest.mark.parametrize("room", [1, 5, 6, 13])
def test_pairs_are_cut_a_token_at_a_time_from_the_longer_text(room):
    for size_a in range(15):
        for size_b in range(15):
            kept_a, kept_b = size_a, size_b
            while kept_a + kept_b > room:
                if kept_a > kept_b:
                    kept_a -= 1
                else:
                    kept_b -= 1
            assert cut_pair(size_a, size_b, room) == (kept_a, kept_b)


def test_rows_have_special_tokens_and_fit(toy_tokenizer):
    cls, sep = toy_tokenizer.cls_id, toy_tokenizer.sep_id
    assert pack_row([1, 2, 3], None, 8, toy_tokenizer) == ([cls, 1, 2, 3, sep], 5)
    assert pack_row([1, 2, 3], None, 4, toy_tokenizer) == ([cls, 1, 2, sep], 4)
    pair = pack_row([1, 2, 3, 4], [5, 6], 8, toy_tokenizer)
    assert pair == ([cls, 1, 2, 3, sep, 5, 6, sep], 5)


CHARS = "aab the  .,[#\t\n\r\u4e2d\u4e16\u3042\uac00\u00a0\u0085\x01\u200d\u0301\u0327\u00c9\u0130"
CHARS += "\u1e9e\ud83d"


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_first_ids_of_a_text_are_those_of_the_whole(lowercase):
    rng = random.Random(0)
    texts = ["".join(rng.choices(CHARS, k=rng.randrange(400))) for _ in range(1000)]
    letters = [*{*CHARS.lower(), *CHARS} - {"\ud83d", "\n", "\r"}, "##a", "##b", "##the"]
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *letters], lowercase=lowercase)
    whole = tokenizer.encode_batch(texts)
    for most in (1, 3, 20):
        assert encode_texts(tokenizer, texts, most) == [ids[:most] for ids in whole]


def test_batches_carry_ids_mask_segments_and_labels(toy_tokenizer):
    examples = [Example("the queen", "a boat", 1), Example("a", None, 0), Example("a", "", None)]
    rows = toy_task(examples).encode(toy_tokenizer, 8)["train"]
    batch = make_batch(rows, torch.tensor([1, 0, 2]), CPU)
    a, cls, sep = toy_tokenizer.encode("a")[0], toy_tokenizer.cls_id, toy_tokenizer.sep_id
    ids = batch.input_ids
    assert ids[0, :3].tolist() == [cls, a, sep]
    first, second = toy_tokenizer.encode_batch(["the queen", "a boat"])
    kept_a, kept_b = cut_pair(len(first), len(second), 5)
    assert ids[1].tolist() == [cls, *first[:kept_a], sep, *second[:kept_b], sep]
    assert batch.token_type_ids.tolist() == [
        [0] * ids.shape[1],
        [0] * (kept_a + 2) + [1] * (kept_b + 1),
        [0, 0, 0, 1] + [0] * (ids.shape[1] - 4),
    ]
    assert batch.attention_mask.sum(dim=1).tolist() == [3, kept_a + kept_b + 3, 4]
    assert batch.targets["labels"].tolist() == [0, 1, -1]
    assert rows.num_cut == (len(first) + len(second) > 5)


def test_a_batch_of_equal_single_texts_needs_neither_mask_nor_segments(toy_tokenizer):
    examples = [Example("a", None, 0), Example("a", None, 1)]
    rows = toy_task(examples).encode(toy_tokenizer, 8)["train"]
    batch = make_batch(rows, torch.tensor([0, 1]), CPU)
    assert batch.attention_mask is None
    assert batch.token_type_ids is None


def test_an_epoch_holds_every_row_once_with_little_padding():
    lengths = torch.randint(4, 60, (1000,), generator=torch.Generator().manual_seed(0))
    batches = choose_batches(lengths, 16, seed=3, epoch=1)
    assert sorted(torch.cat(batches).tolist()) == list(range(1000))
    assert Counter(map(len, batches)) == {16: 62, 8: 1}
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert int(lengths.sum()) / padded > 0.93  # 0.53 without sorting
    again = choose_batches(lengths, 16, seed=3, epoch=1)
    assert all(torch.equal(one, other) for one, other in zip(batches, again, strict=True))
    for seed, epoch in ((3, 2), (4, 1)):
        other = choose_batches(lengths, 16, seed=seed, epoch=epoch)
        assert torch.cat(other).tolist() != torch.cat(batches).tolist()


# --- metrics ---


def binary_cases(count):
    """Labels and predictions of random sizes and shares, one class or one answer now and then."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(1, 40))
        shares = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], 2)
        gold, predicted = (rng.random(size) < share for share in shares)
        yield gold.astype(int).tolist(), predicted.astype(int).tolist()


@pytest.mark.slow
def test_binary_metrics_equal_their_formulas_in_1000_cases():
    constant = 0
    for gold, predicted in binary_cases(1000):
        pairs = Counter(zip(gold, predicted, strict=True))
        hits, misses = pairs[1, 1], pairs[1, 0]
        alarms, rejections = pairs[0, 1], pairs[0, 0]
        spread = math.sqrt(
            (hits + alarms) * (hits + misses) * (rejections + alarms) * (rejections + misses)
        )
        constant += spread == 0
        wrong = misses + alarms
        assert score(("accuracy", "f1", "mcc"), gold, predicted) == pytest.approx(
            {
                "accuracy": (hits + rejections) / len(gold),
                "f1": 2 * hits / (2 * hits + wrong) if hits else 0.0,
                "mcc": (hits * rejections - alarms * misses) / spread if spread else 0.0,
            }
        )
    assert 200 < constant < 900


def test_correlations_equal_their_formulas_in_1000_cases():
    rng = np.random.default_rng(0)

    def correlate(x, y):
        x, y = x - x.mean(), y - y.mean()
        return float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))

    def ranks(x):  # of equal values the mean of their places
        return np.array([(x < value).sum() + ((x == value).sum() - 1) / 2 for value in x])

    for _ in range(1000):
        size = int(rng.integers(3, 30))
        gold = rng.integers(0, 6, size).astype(float)  # with ties, as similarity scores have
        predicted = np.round(gold + rng.normal(0, 2, size), int(rng.integers(0, 4)))
        if rng.random() < 0.05:
            predicted[:] = 1.0
        scores = score(("pearson", "spearman"), gold.tolist(), predicted.tolist())
        if len(set(gold)) == 1 or len(set(predicted)) == 1:
            assert scores == {"pearson": 0.0, "spearman": 0.0}
        else:
            assert scores["pearson"] == pytest.approx(correlate(gold, predicted), abs=1e-9)
            rank_correlation = correlate(ranks(gold), ranks(predicted))
            assert scores["spearman"] == pytest.approx(rank_correlation, abs=1e-9)


def test_f1_of_several_labels_is_their_mean():
    scores = score(("f1", "accuracy"), [0, 0, 1, 2], [0, 1, 1, 1])
    assert scores == pytest.approx({"f1": (2 / 3 + 1 / 2 + 0) / 3, "accuracy": 0.5})


def test_constant_predictions_score_without_warnings():
    expected = {"accuracy": 0.5, "f1": 0.0, "mcc": 0.0}
    assert score(expected, [0, 1], [0, 0]) == expected
    assert score(("mcc", "f1"), [1, 1], [1, 1]) == {"mcc": 0.0, "f1": 1.0}


# --- choices ---


def toy(examples):
    return Task("toy", MultipleChoice(len(examples[0].choices)), {"train": examples})


def test_every_choice_is_a_row_beside_the_context(toy_tokenizer):
    questions = [
        ChoiceQuestion("the queen", ("a boat", "sold", ""), 1),
        ChoiceQuestion("a", ("a", "the castle", "a"), None),
    ]
    rows = toy(questions).encode(toy_tokenizer, 32)["train"]
    assert (len(rows), rows.rows_per_item, rows.input_ids.shape[0]) == (2, 3, 6)
    encode, cls, sep = toy_tokenizer.encode, toy_tokenizer.cls_id, toy_tokenizer.sep_id
    for number, question in enumerate(questions):
        for place, choice in enumerate(question.choices):
            context = [cls, *encode(question.context), sep]
            expected = [*context, *encode(choice), sep]
            row = 3 * number + place
            length = int(rows.lengths[row])
            assert rows.input_ids[row, :length].tolist() == expected
            assert int(rows.first_lengths[row]) == len(context)
    assert rows.targets["labels"].tolist() == [1, -1]
    assert rows.num_cut == 0


def test_a_question_is_cut_once_however_many_of_its_rows_are(toy_tokenizer):
    long = "the old sailor repaired the castle yesterday"
    questions = [
        ChoiceQuestion(long, (long, long, "a"), 0),
        ChoiceQuestion("a", ("a", "a", "a"), 0),
    ]
    rows = toy(questions).encode(toy_tokenizer, 8)["train"]
    assert rows.num_cut == 1
    assert rows.input_ids.shape == (6, 8)


def test_a_batch_keeps_the_rows_of_a_question_together(toy_tokenizer):
    questions = [ChoiceQuestion("a", (f"{'boat ' * n}a", "a"), n % 2) for n in range(5)]
    rows = toy(questions).encode(toy_tokenizer, 32)["train"]
    batch = make_batch(rows, torch.tensor([4, 1]), CPU)
    assert batch.input_ids.shape[0] == 4
    expected = rows.input_ids[[8, 9, 2, 3], : batch.input_ids.shape[1]]
    assert torch.equal(batch.input_ids, expected.long())
    assert batch.targets["labels"].tolist() == [0, 1]
