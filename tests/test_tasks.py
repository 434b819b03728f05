import math
import random
from collections import Counter

import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from electra.tasks import rows
from electra.tasks.choice import ChoiceQuestion, MultipleChoice
from electra.tasks.classification import Classification
from electra.tasks.family import Task
from electra.tasks.predictions import score
from electra.tasks.rows import choose_batches, cut_pair, encode_texts, make_batch, pack_row
from electra.tasks.texts import Example
from electra.tokenizing.formats import SPECIAL_TOKENS
from electra.tokenizing.tokenizer import Tokenizer

CPU = torch.device("cpu")


def encode(family, examples, tokenizer, sequence_length=32):
    return Task("toy", family, {"train": examples}).encode(tokenizer, sequence_length)["train"]


TEXTS = Classification(("f1",), ("n", "y"))


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
def test_the_first_ids_of_a_text_are_those_of_the_whole(lowercase, monkeypatch):
    monkeypatch.setattr(rows, "GROUP_CHARS", 3000)
    rng = random.Random(0)
    texts = ["".join(rng.choices(CHARS, k=rng.randrange(400))) for _ in range(1000)]
    letters = [*{*CHARS.lower(), *CHARS} - {"\ud83d", "\n", "\r"}, "##a", "##b", "##the"]
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *letters], lowercase=lowercase)
    whole = tokenizer.encode_batch(texts)
    for most in (1, 3, 20):
        assert encode_texts(tokenizer, texts, most) == [ids[:most] for ids in whole]


def test_batches_carry_ids_mask_segments_and_labels(toy_tokenizer):
    examples = [Example("the queen", "a boat", 1), Example("a", None, 0), Example("a", "", None)]
    rows = TEXTS.encode(examples, toy_tokenizer, 8)
    batch = make_batch(rows, torch.tensor([1, 0, 2]), CPU)
    a, cls, sep = toy_tokenizer.encode("a")[0], toy_tokenizer.cls_id, toy_tokenizer.sep_id
    ids = batch.input_ids
    assert ids[0, :3].tolist() == [cls, a, sep]
    first, second = toy_tokenizer.encode_batch(["the queen", "a boat"])
    kept_a, kept_b = cut_pair(len(first), len(second), 5)
    assert ids[1].tolist() == [cls, *first[:kept_a], sep, *second[:kept_b], sep]
    types = [0] * ids.shape[1], [0] * (kept_a + 2) + [1] * (kept_b + 1)
    assert batch.token_type_ids.tolist() == [*types, [0, 0, 0, 1] + [0] * (ids.shape[1] - 4)]
    assert batch.attention_mask.sum(dim=1).tolist() == [3, kept_a + kept_b + 3, 4]
    assert batch.targets["labels"].tolist() == [0, 1, -1]
    assert rows.num_cut == (len(first) + len(second) > 5)


def test_a_batch_of_equal_single_texts_needs_neither_mask_nor_segments(toy_tokenizer):
    rows = encode(TEXTS, [Example("a", None, 0), Example("a", None, 1)], toy_tokenizer, 8)
    batch = make_batch(rows, torch.tensor([0, 1]), CPU)
    assert batch.attention_mask is batch.token_type_ids is None


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


def test_scores_by_hand():
    metrics = {"accuracy": 3 / 5, "f1": 2 / 3, "mcc": 1 / 6}
    assert score(metrics, [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]) == pytest.approx(metrics)
    metrics = {"f1": (2 / 3 + 1 / 2 + 0) / 3, "accuracy": 0.5}  # of several labels the mean
    assert score(metrics, [0, 0, 1, 2], [0, 1, 1, 1], 3) == pytest.approx(metrics)
    # the third of three labels is answered once, and is nobody's label
    assert score(["f1"], [0, 1, 1, 0], [0, 1, 2, 0], 3) == pytest.approx({"f1": (1 + 2 / 3) / 3})
    metrics = {"pearson": 0.9, "spearman": 0.9**0.5}  # equal values have the mean of their ranks
    assert score(metrics, [0, 1, 1, 2], [0, 1, 2, 9]) == pytest.approx(metrics)


def test_scores_are_those_that_glue_names():
    """GLUE's own program takes accuracy, F1 and MCC from scikit-learn, correlations from scipy."""
    draw = random.Random(0)
    for labels in (2, 3):
        for size in (1, 2, 7, 200):
            gold, said = ([draw.randrange(labels) for _ in range(size)] for _ in range(2))
            theirs = {"accuracy": accuracy_score(gold, said)}
            if len({*gold}) == len({*said}) == labels:
                theirs["mcc"] = matthews_corrcoef(gold, said)
            if labels == 2:
                theirs["f1"] = f1_score(gold, said, zero_division=0)
            assert score(theirs, gold, said, labels) == pytest.approx(theirs)
    gold = [draw.choice((0.0, 1.5, 2.0, 5.0)) for _ in range(50)]  # with ties
    said = [each + draw.random() for each in gold]
    theirs = {"pearson": pearsonr(gold, said)[0], "spearman": spearmanr(gold, said)[0]}
    assert score(theirs, gold, said) == pytest.approx(theirs)


def test_constant_predictions_score_without_warnings():
    expected = {"accuracy": 0.5, "f1": 0.0, "mcc": 0.0, "pearson": 0.0, "spearman": 0.0}
    assert score(expected, [0, 1], [0, 0]) == expected
    assert score(["pearson", "spearman"], [0, 1], [0.5, math.nan]) == {"pearson": 0, "spearman": 0}
    expected = {"mcc": 0.0, "f1": 1.0, "pearson": 0.0}
    assert score(expected, [1, 1], [1, 1]) == expected


def test_every_choice_is_a_row_beside_the_context(toy_tokenizer):
    questions = [
        ChoiceQuestion("the queen", ("a boat", "sold", ""), 1),
        ChoiceQuestion("a", ("a", "the castle", "a"), None),
    ]
    rows = MultipleChoice(3).encode(questions, toy_tokenizer, 16)
    assert (rows.counts.tolist(), rows.input_ids.shape[0]) == ([3, 3], 6)
    read, cls, sep = toy_tokenizer.encode, toy_tokenizer.cls_id, toy_tokenizer.sep_id
    asked = [(each.context, choice) for each in questions for choice in each.choices]
    for row, (context, choice) in enumerate(asked):
        first = [cls, *read(context), sep]
        ids = rows.input_ids[row, : int(rows.lengths[row])].tolist()
        assert ids == [*first, *read(choice), sep]
        assert int(rows.first_lengths[row]) == len(first)
    assert rows.targets["labels"].tolist() == [1, -1]
    assert rows.num_cut == 0


def test_a_batch_keeps_the_rows_of_a_question_together(toy_tokenizer):
    questions = [ChoiceQuestion("a", (f"{'boat ' * n}a", "a"), n % 2) for n in range(5)]
    rows = encode(MultipleChoice(2), questions, toy_tokenizer)
    batch = make_batch(rows, torch.tensor([4, 1]), CPU)
    expected = rows.input_ids[[8, 9, 2, 3], : batch.input_ids.shape[1]]
    assert torch.equal(batch.input_ids, expected.long())
    assert batch.targets["labels"].tolist() == [0, 1]
