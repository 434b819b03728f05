"""The answers of a span head: from the outputs for all rows to a text for each question.

Shape suffix: K starts of the beam, and ends of each.
"""

from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from electra.tasks.rows import Outputs
from electra.tasks.squad_rows import SpanRows, Window

MAX_ANSWER = 30
"""Tokens of an answer. Source: configure_finetuning.py max_answer_length."""
N_BEST = 20
"""Answers kept for each question. Source: configure_finetuning.py n_best_size."""
ROW_SPANS = 400
"""Best spans of a row that are considered without a beam: several may have the same text."""

Arrays = dict[str, np.ndarray]
Spans = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Scores, and the numbers of first and last tokens in the text."""


class SpanAnswers(NamedTuple):
    """The answers to each question, in order."""

    n_best: list[list[tuple[str, float]]]
    """Different texts with their scores, best first; empty if no span has a score."""
    null_odds: list[float]
    """Log-odds of "no answer" against the best answer, nats."""

    @property
    def texts(self) -> list[str]:
        """The best text of each question, whatever its null odds; "" where none was found."""
        return [answers[0][0] if answers else "" for answers in self.n_best]


def find_answers(rows: SpanRows, outputs: Outputs) -> SpanAnswers:
    """Return the best answers to each question, and the odds that it has none.

    A span is at most MAX_ANSWER tokens long and starts where its row owns the text. Its text is cut
    from the context from its first token's first character to its last token's last.

    Args:
        rows: The questions, from `encode_questions`.
        outputs: Of a head of span_heads.py, for all rows. Of a BeamSpanHead a span's score is the
            log-probability of start and end, and the null odds are the least `unanswerable` of the
            question's rows. Of a SpanHead the score is the sum of the two logits, and the null odds
            are the least sum at [CLS] of the rows, less the best span's.

    Source: qa_metrics.py write_predictions, which puts the text together again from tokens.
    """
    is_beam = "starts" in outputs
    arrays = {name: values.numpy() for name, values in outputs.items()}
    find_spans = _beam_spans if is_beam else _free_spans
    n_best: list[list[tuple[str, float]]] = []
    null_odds: list[float] = []
    for numbers in _rows_by_question(rows.windows):
        spans = [find_spans(arrays, number, rows.windows[number]) for number in numbers]
        place = rows.windows[numbers[0]].question
        context, offsets = rows.examples[place].context, rows.offsets[place]
        n_best.append(_best_texts(context, offsets, *map(np.concatenate, zip(*spans, strict=True))))
        if is_beam:
            null_odds.append(float(arrays["unanswerable"][numbers].min()))
        else:
            null = arrays["start_logits"][numbers, 0] + arrays["end_logits"][numbers, 0]
            best = n_best[-1][0][1] if n_best[-1] else np.nan  # none where all logits are NaN
            null_odds.append(float(null.min()) - best)
    return SpanAnswers(n_best, null_odds)


def _rows_by_question(windows: list[Window]) -> list[list[int]]:
    numbers = enumerate(window.question for window in windows)
    return [[row for row, _ in rows] for _, rows in groupby(numbers, key=itemgetter(1))]


def _beam_spans(outputs: Arrays, row: int, window: Window) -> Spans:
    scores_KK = outputs["start_scores"][row][:, None] + outputs["end_scores"][row]
    starts_KK, ends_KK = np.broadcast_arrays(outputs["starts"][row][:, None], outputs["ends"][row])
    first, past = window.owned
    is_owned_KK = (starts_KK >= first) & (starts_KK < past)
    is_span_KK = (ends_KK >= starts_KK) & (ends_KK < starts_KK + MAX_ANSWER)
    kept = is_owned_KK & is_span_KK & (scores_KK > -np.inf)
    return scores_KK[kept], starts_KK[kept] - window.shift, ends_KK[kept] - window.shift


def _free_spans(outputs: Arrays, row: int, window: Window) -> Spans:
    first, past = window.owned
    end_logits = np.pad(outputs["end_logits"][row], (0, MAX_ANSWER), constant_values=-np.inf)
    reach = np.lib.stride_tricks.sliding_window_view(end_logits, MAX_ANSWER)[first:past]
    scores = (outputs["start_logits"][row, first:past, None] + reach).ravel()
    places = np.arange(len(scores))
    if len(places) > ROW_SPANS:
        places = np.argpartition(-scores, ROW_SPANS)[:ROW_SPANS]
    places = places[scores[places] > -np.inf]
    starts = first - window.shift + places // MAX_ANSWER
    return scores[places], starts, starts + places % MAX_ANSWER


def _best_texts(
    context: str, offsets: np.ndarray, scores: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> list[tuple[str, float]]:
    """Return the texts of the best spans, each once with its best score."""
    best: dict[str, float] = {}
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(best) == N_BEST:
            break
        text = context[offsets[starts[place], 0] : offsets[ends[place], 1]]
        best.setdefault(text, float(scores[place]))
    return list(best.items())
