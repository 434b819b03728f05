"""Scores against torchmetrics, which has SQuAD 1.1's; version 2.0's is put together from them."""

import math
import random

import pytest
import torch
from torchmetrics.functional.text import squad

from electra.tasks.squad_score import (
    score_answer,
    score_answer_or_none,
    score_v1,
    score_v2,
    sweep_thresholds,
)

WORDS = (
    *("the", "The", "A", "an", "cat", "cats", "Cat's", "dog", "the-cat", "a.b", "A.", "theatre"),
    *("...", "-", "!?", "“x”", "…", "$5", "3.14", "1,000", "Ünï", "ünï", "u\u0308ni\u0308"),
    *("北京", "北 京", "İ", "ß", "SS", "שָׁלוֹם", "👩\u200d👧", "\u200b", "_", "a_b", "\uff41"),
    *("a\u0301", "\u2013", "“the”"),
)
SPACES = (" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2028", "")


def random_text(rng: random.Random) -> str:
    size = rng.choice((0, 1, 1, 2, 2, 3, 5))
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(size))


def random_questions(seed: int, count: int):
    """Predictions near the answers, at times; answers of 1 to 4 texts."""
    rng = random.Random(seed)
    for _ in range(count):
        answers = [random_text(rng) for _ in range(rng.randint(1, 4))]
        near = rng.choice(answers)
        turned = " ".join(reversed(near.split()))
        far = random_text(rng)
        yield rng.choice((far, near, near.upper(), "the " + near, near + " cat", turned)), answers


def by_torchmetrics(said: str, answers: list[str]) -> tuple[float, float]:
    """Exact match and F1, in float32."""
    asked = {"id": "0", "answers": {"text": answers, "answer_start": [0] * len(answers)}}
    scores = squad({"id": "0", "prediction_text": said}, asked)
    return float(scores["exact_match"]) / 100, float(scores["f1"]) / 100


def is_wordless(text: str) -> bool:
    return by_torchmetrics(text, [""])[0] == 1


def oracle_v1(said: str, answers: list[str]) -> tuple[float, float]:
    """By version 1.1's rules; torchmetrics takes the F1 of nothing and nothing from 2.0's."""
    worded = [] if is_wordless(said) else [each for each in answers if not is_wordless(each)]
    return by_torchmetrics(said, answers)[0], by_torchmetrics(said, worded)[1] if worded else 0.0


def oracle_v2(said: str, answers: list[str]) -> tuple[float, float]:
    """By version 2.0's: answers without a word do not count, unless there are no others."""
    worded = [answer for answer in answers if not is_wordless(answer)]
    return by_torchmetrics(said, worded) if worded else (float(is_wordless(said)),) * 2


@pytest.mark.parametrize(
    ("score", "oracle", "share"),
    [(score_answer, oracle_v1, 1), (score_answer_or_none, oracle_v2, 0.7)],
)
def test_every_answer_scores_as_by_the_scripts_of_both_versions(score, oracle, share):
    seen, rng = set(), random.Random(2)
    for said, answers in random_questions(seed=1, count=1500):
        answers = answers if rng.random() < share else []
        ours, theirs = score(said, answers), oracle(said, answers)
        assert ours.exact == theirs[0], (said, answers)
        assert ours.f1 == pytest.approx(theirs[1], rel=3e-7)
        seen.add((ours.exact, ours.f1 > 0, ours.f1 == 1))
    # Wrong, half right, the same words in another order, right, nothing against nothing.
    assert seen - {(1, 0, 0)} == {(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 1)}
    assert ((1, 0, 0) in seen) == (share == 1)


def test_scores_of_a_split_are_means():
    predictions, answers = zip(*random_questions(seed=3, count=300), strict=True)
    theirs = torch.tensor([oracle_v1(*pair) for pair in zip(predictions, answers, strict=True)])
    exact, f1 = theirs.double().mean(dim=0).tolist()
    assert score_v1(predictions, answers) == pytest.approx({"exact": exact, "f1": f1}, rel=1e-6)


def random_split(seed: int, count: int):
    """Questions with null odds, many of which are equal; a third has no answer."""
    rng = random.Random(seed)
    predictions, answers = zip(*random_questions(seed, count), strict=True)
    answers = [right if rng.random() < 0.67 else [] for right in answers]
    odds = [rng.choice((-3.0, -1.5, 0.0, 0.25, rng.gauss(0, 2))) for _ in answers]
    return predictions, odds, answers


def score_at(threshold, predictions, odds, answers):
    """(N, 2) exact match and F1 when odds above the threshold mean no answer."""
    said = ["" if odd > threshold else text for text, odd in zip(predictions, odds, strict=True)]
    return torch.tensor([oracle_v2(*pair) for pair in zip(said, answers, strict=True)]).double()


def test_scores_with_a_threshold_and_of_either_kind_of_question():
    predictions, odds, answers = random_split(seed=4, count=300)
    ours = score_v2(predictions, odds, answers, threshold=0.0)
    scores = score_at(0.0, predictions, odds, answers)
    has_answer = torch.tensor([bool(right) for right in answers])
    for prefix, kind in (("", ...), ("has_answer_", has_answer), ("no_answer_", ~has_answer)):
        found = [ours[f"{prefix}exact"], ours[f"{prefix}f1"]]
        assert found == pytest.approx(scores[kind].mean(dim=0).tolist(), rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_no_threshold_is_better_than_the_best(seed):
    split = random_split(seed, count=20)
    sweep = sweep_thresholds(*split)
    assert sweep.thresholds.tolist() == [min(split[1]) - 1, *sorted(set(split[1]))]
    by_hand = [score_at(each, *split).mean(dim=0) for each in sweep.thresholds.tolist()]
    ours = score_v2(*split, threshold=0.0)
    for name, column in zip(("exact", "f1"), torch.stack(by_hand, dim=1), strict=True):
        assert getattr(sweep, name).tolist() == pytest.approx(column.tolist(), rel=1e-6)
        assert ours[f"best_{name}"] == pytest.approx(float(column.max()), rel=1e-6)
        at_best = score_v2(*split, ours[f"best_{name}_threshold"])
        assert at_best[name] == pytest.approx(ours[f"best_{name}"], rel=1e-12)


def test_a_model_that_diverged_has_scores_that_json_can_hold():
    scores = score_v2(["x", "y"], [math.nan] * 2, [["x"], []], threshold=0.0)
    assert all(map(math.isfinite, scores.values()))


def test_kinds_of_question_that_do_not_occur_have_no_score():
    scores = score_v2(["x"], [0.0], [["x"]], threshold=0.0)
    assert scores["f1"] == scores["has_answer_f1"] == 1
    assert not any(name.startswith("no_answer") for name in scores)
