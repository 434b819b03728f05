"""Scores of answers as fractions, equal to those of SQuAD's evaluation scripts.

Source: evaluate-v1.1.py and evaluate-v2.0.py of rajpurkar.github.io/SQuAD-explorer.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class AnswerScore(NamedTuple):
    """The scores of one answer."""

    exact: float
    """1 if it is a right answer, after `normalise_answer`; else 0."""
    f1: float
    """F1 of its words against those of the most similar right answer."""


class Sweep(NamedTuple):
    """Scores by the threshold of the null odds above which a question is answered with ""."""

    thresholds: np.ndarray
    """Ascending: one below all odds, then each that occurs."""
    exact: np.ndarray
    f1: np.ndarray


def normalise_answer(text: str) -> str:
    """Return the text in lower case without ASCII punctuation, articles and superfluous space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def score_answer(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Return the best scores of a prediction over the right answers, as version 1.1 does.

    Two texts that are empty after normalisation are an exact match with an F1 of 0.
    """
    said = normalise_answer(prediction)
    right = [normalise_answer(answer) for answer in answers]
    return AnswerScore(float(said in right), max(_word_f1(said, answer) for answer in right))


def score_answer_or_none(prediction: str, answers: Sequence[str]) -> AnswerScore:
    """Return the scores of a prediction as version 2.0 does: "" is right if there is no answer.

    Right answers that are empty after normalisation do not count, unless all are.
    """
    answers = [answer for answer in answers if normalise_answer(answer)]
    if not answers or not normalise_answer(prediction):
        agrees = float(not answers and not normalise_answer(prediction))
        return AnswerScore(agrees, agrees)
    return score_answer(prediction, answers)


def _word_f1(said: str, right: str) -> float:
    said_words, right_words = said.split(), right.split()
    num_same = sum((Counter(said_words) & Counter(right_words)).values())
    if not num_same:
        return 0.0
    precision, recall = num_same / len(said_words), num_same / len(right_words)
    return 2 * precision * recall / (precision + recall)


def score_v1(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return `f1` and `exact` where every question has an answer: SQuAD 1.1, MRQA."""
    scores = [score_answer(said, right) for said, right in zip(predictions, answers, strict=True)]
    return _mean(scores, "")


def score_v2(
    predictions: Sequence[str],
    null_odds: Sequence[float],
    answers: Sequence[Sequence[str]],
    threshold: float,
) -> dict[str, float]:
    """Return the scores where some questions have no answer: SQuAD 2.0.

    These are `f1` and `exact` over all questions, and over those with and without an answer
    (`has_answer_`, `no_answer_`). Also the best scores over all thresholds on these questions:
    `best_f1` at `best_f1_threshold` and `best_exact` at `best_exact_threshold`.
    """
    # For a model that diverged they are NaN, which is no threshold, and no JSON.
    null_odds = [0.0 if math.isnan(odds) else odds for odds in null_odds]
    said = [
        "" if odds > threshold else text for text, odds in zip(predictions, null_odds, strict=True)
    ]
    scores = [score_answer_or_none(*pair) for pair in zip(said, answers, strict=True)]
    kinds = {"has_answer_": True, "no_answer_": False}
    result = _mean(scores, "")
    for kind, has_answer in kinds.items():
        of_kind = [
            score for score, right in zip(scores, answers, strict=True) if bool(right) is has_answer
        ]
        result |= _mean(of_kind, kind) if of_kind else {}
    sweep = sweep_thresholds(predictions, null_odds, answers)
    for name, values in (("f1", sweep.f1), ("exact", sweep.exact)):
        best = int(values.argmax())
        result[f"best_{name}"] = float(values[best])
        result[f"best_{name}_threshold"] = float(sweep.thresholds[best])
    return result


def sweep_thresholds(
    predictions: Sequence[str], null_odds: Sequence[float], answers: Sequence[Sequence[str]]
) -> Sweep:
    """Return the scores of SQuAD 2.0 at every threshold that changes a prediction.

    Source: find_best_thresh of evaluate-v2.0.py. It differs where odds are equal (it also stops
    between them, which no threshold can), where a question without answer has a prediction without
    words (it counts it as wrong here, and as right in its scores), and where it is best to answer
    nothing (it calls that the threshold 0).
    """
    odds = np.asarray(null_odds, np.float64)
    order = odds.argsort(kind="stable")
    answered = np.array(
        [score_answer_or_none(*pair) for pair in zip(predictions, answers, strict=True)]
    )
    unanswered = np.array([score_answer_or_none("", right) for right in answers])
    gains = (answered - unanswered)[order].cumsum(axis=0)
    scores = (unanswered.sum(axis=0) + np.vstack([np.zeros(2), gains])) / len(odds)
    ascending = odds[order]
    is_last_of_equals = np.append(ascending[1:] > ascending[:-1], True)
    thresholds = np.concatenate([[ascending[0] - 1], ascending])
    kept = np.concatenate([[True], is_last_of_equals])
    return Sweep(thresholds[kept], *scores[kept].T)


def _mean(scores: Sequence[AnswerScore], prefix: str) -> dict[str, float]:
    return {
        f"{prefix}f1": sum(score.f1 for score in scores) / len(scores),
        f"{prefix}exact": sum(score.exact for score in scores) / len(scores),
    }
