"""Scores against torchmetrics, which has SQuAD 1.1's; version 2.0's is put together from them."""

import random

import pytest
import torch
from torchmetrics.functional.text import squad

from electra.tasks.squad_score import (
    normalise_answer,
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
    scores = squad(
        {"id": "0", "prediction_text": said},
        {"id": "0", "answers": {"text": answers, "answer_start": [0] * len(answers)}},
    )
    return float(scores["exact_match"]) / 100, float(scores["f1"]) / 100


def is_wordless(text: str) -> bool:
    return by_torchmetrics(text, [""])[0] == 1


def oracle_v1(said: str, answers: list[str]) -> tuple[float, float]:
    """By version 1.1's rules; torchmetrics takes the F1 of nothing and nothing from 2.0's."""
    exact = by_torchmetrics(said, answers)[0]
    worded = [answer for answer in answers if not is_wordless(answer)]
    return exact, by_torchmetrics(said, worded)[1] if worded and not is_wordless(said) else 0.0


def oracle_v2(said: str, answers: list[str]) -> tuple[float, float]:
    """By version 2.0's: answers without a word do not count, unless there are no others."""
    worded = [answer for answer in answers if not is_wordless(answer)]
    if worded:
        return by_torchmetrics(said, worded)
    return (1.0, 1.0) if is_wordless(said) else (0.0, 0.0)


def test_every_answer_scores_as_by_the_script_of_version_1():
    seen = set()
    for said, answers in random_questions(seed=1, count=1500):
        ours, theirs = score_answer(said, answers), oracle_v1(said, answers)
        assert ours.exact == theirs[0], (said, answers)
        assert ours.f1 == pytest.approx(theirs[1], rel=3e-7)
        seen.add((ours.exact, ours.f1 > 0, ours.f1 == 1))
    # Wrong, half right, the same words in another order, right, nothing against nothing.
    assert seen == {(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 1), (1, 0, 0)}


def test_every_answer_scores_as_by_the_script_of_version_2():
    rng = random.Random(2)
    for said, answers in random_questions(seed=2, count=1500):
        answers = answers if rng.random() < 0.7 else []
        ours, theirs = score_answer_or_none(said, answers), oracle_v2(said, answers)
        assert ours.exact == theirs[0], (said, answers)
        assert ours.f1 == pytest.approx(theirs[1], rel=3e-7)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  cat's\u00a0A.B.", "cats ab"),
        ("an, a the", ""),
        ("theatre \u2013 Athens", "theatre \u2013 athens"),
        ("a\u0301", "\u0301"),  # the mark is no letter, so the article ends before it
        ("“the”", "“ ”"),
        ("", ""),
    ],
)
def test_normal_form(text, normal):
    assert normalise_answer(text) == normal


def test_scores_of_a_split_are_means():
    predictions, answers = zip(*random_questions(seed=3, count=300), strict=True)
    theirs = torch.tensor([oracle_v1(*pair) for pair in zip(predictions, answers, strict=True)])
    exact, f1 = theirs.double().mean(dim=0).tolist()
    assert score_v1(predictions, answers) == pytest.approx({"exact": exact, "f1": f1}, rel=1e-6)


def random_split(seed: int, count: int):
    """Questions with null odds, many of which are equal; a third has no answer."""
    rng = random.Random(seed)
    questions = [
        (said, right if rng.random() < 0.67 else [])
        for said, right in random_questions(seed, count)
    ]
    predictions, answers = zip(*questions, strict=True)
    odds = [rng.choice((-3.0, -1.5, 0.0, 0.25, rng.gauss(0, 2))) for _ in answers]
    return predictions, odds, answers


def score_at(threshold, predictions, odds, answers):
    """(N, 2) exact match and F1 when odds above the threshold mean no answer."""
    said = [
        "" if value > threshold else text for text, value in zip(predictions, odds, strict=True)
    ]
    return torch.tensor([oracle_v2(*pair) for pair in zip(said, answers, strict=True)]).double()


def test_scores_with_a_threshold_and_of_either_kind_of_question():
    predictions, odds, answers = random_split(seed=4, count=300)
    ours = score_v2(predictions, odds, answers, threshold=0.0)
    scores = score_at(0.0, predictions, odds, answers)
    has_answer = torch.tensor([bool(right) for right in answers])
    for prefix, kind in (
        ("", torch.ones_like(has_answer)),
        ("has_answer_", has_answer),
        ("no_answer_", ~has_answer),
    ):
        exact, f1 = scores[kind].mean(dim=0).tolist()
        assert ours[f"{prefix}exact"] == pytest.approx(exact, rel=1e-6)
        assert ours[f"{prefix}f1"] == pytest.approx(f1, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_no_threshold_is_better_than_the_best(seed):
    predictions, odds, answers = random_split(seed, count=20)
    sweep = sweep_thresholds(predictions, odds, answers)
    assert sweep.thresholds.tolist() == [min(odds) - 1, *sorted(set(odds))]
    by_hand = torch.stack(
        [
            score_at(threshold, predictions, odds, answers).mean(dim=0)
            for threshold in sweep.thresholds.tolist()
        ]
    )
    assert sweep.exact.tolist() == pytest.approx(by_hand[:, 0].tolist(), rel=1e-6)
    assert sweep.f1.tolist() == pytest.approx(by_hand[:, 1].tolist(), rel=1e-6)
    ours = score_v2(predictions, odds, answers, threshold=0.0)
    for column, name in enumerate(("exact", "f1")):
        assert ours[f"best_{name}"] == pytest.approx(float(by_hand[:, column].max()), rel=1e-6)
        at_best = score_v2(predictions, odds, answers, ours[f"best_{name}_threshold"])
        assert at_best[name] == pytest.approx(ours[f"best_{name}"], rel=1e-12)


def test_kinds_of_question_that_do_not_occur_have_no_score():
    scores = score_v2(["x"], [0.0], [["x"]], threshold=0.0)
    assert scores["f1"] == scores["has_answer_f1"] == 1
    assert not any(name.startswith("no_answer") for name in scores)
