"""Questions as rows of token ids, and the mapping from a row's tokens to characters of the context.

A row is [CLS] question [SEP] window [SEP]. A context longer than a window is covered by several
windows that overlap; each token is owned by the window that has most of the text around it, and an
answer can begin only there. Sizes: N rows, T tokens of a context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from electra.config import UserError, require
from electra.corpus.tokenizer import Tokenizer
from electra.tasks.rows import Rows, encode_texts, pad_rows
from electra.tasks.squad_data import SpanQuestion

MAX_QUESTION = 64
"""Tokens of a question; what is longer is cut. Source: configure_finetuning.py max_query_length."""
MAX_CONTEXT_CHARS = 1_000_000
"""Characters of a context, every token of which is read: some 2,000 rows of 512 tokens."""
DOC_STRIDE = 128
"""Tokens from one window's start to the next one's. Source: configure_finetuning.py."""


class Window(NamedTuple):
    """The part of a context in a row."""

    question: int
    """Index of the question in the split."""
    shift: int
    """Position in the row minus the number of the token in the context."""
    owned: tuple[int, int]
    """First position at which an answer may begin, and the one after the last."""


@dataclass(frozen=True, kw_only=True)
class SpanRows(Rows):
    """Rows of questions, and what maps their positions to characters of the contexts."""

    windows: list[Window]
    """The window of each row; those of a question follow one another."""
    offsets: list[np.ndarray]
    """(T, 2) for each question: where the characters of each token of its context begin and end."""


def cut_windows(num_tokens: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Return first token, and the one after the last, of windows that cover a text.

    Source: qa_tasks.py.
    """
    spans = []
    start = 0
    while True:
        spans.append((start, min(start + size, num_tokens)))
        if start + size >= num_tokens:
            return spans
        start += stride


def own_tokens(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the tokens that each window owns: first, and the one after the last.

    A token is owned by the window with the most tokens on its poorer side, a hundredth for each
    token of the window added; of equals by the first. These are always neighbours, and windows own
    them in order. Source: qa_tasks.py _check_is_max_context.
    """
    num_tokens = spans[-1][1]
    most, owners = np.full(num_tokens, -np.inf), np.zeros(num_tokens, np.int64)
    for number, (start, end) in enumerate(spans):
        tokens = np.arange(start, end)
        poorer = np.minimum(tokens - start, end - 1 - tokens) + 0.01 * (end - start)
        is_better = poorer > most[start:end]
        most[start:end][is_better] = poorer[is_better]
        owners[start:end][is_better] = number
    ends = np.searchsorted(owners, np.arange(len(spans)), side="right")
    return list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))


def cover_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Return the first and the last token with characters in [start, end).

    Where there is none, the first comes after the last.
    """
    first = np.searchsorted(offsets[:, 1], start, side="right")
    last = np.searchsorted(offsets[:, 0], end, side="left") - 1
    return int(first), int(last)


def encode_questions(
    questions: Sequence[SpanQuestion],
    tokenizer: Tokenizer,
    sequence_length: int,
    *,
    reference: bool,
) -> SpanRows:
    """Return questions as rows of at most `sequence_length` tokens.

    The targets are `start` and `end`, the positions of the first answer's first and last token, and
    `unanswerable`, 1 where the row does not hold all of that answer; start and end are 0 there. All
    are -1 where the answer is not known.

    Args:
        questions: Those of a split.
        tokenizer: Cuts them into tokens.
        sequence_length: Longest row. A question keeps at most half of it; windows overlap by at
            least half of what it leaves.
        reference: As the released code, say that a row without the answer of an answerable question
            is answerable.

    Raises:
        UserError: A context or an answer has no token, or a context is too long.
    """
    asked = {question.context: question for question in questions}
    contexts = {context: _encode_context(asked[context], tokenizer) for context in asked}
    max_question = min(MAX_QUESTION, sequence_length // 2)
    texts = encode_texts(tokenizer, [question.text for question in questions], max_question + 1)
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    rows: list[list[int]] = []
    first_lengths: list[int] = []
    targets: list[tuple[int, int, int]] = []
    windows: list[Window] = []
    for number, (question, text) in enumerate(zip(questions, texts, strict=True)):
        context_ids, offsets = contexts[question.context]
        answer, first = _find_answer(question, offsets), cls + text[:max_question] + sep
        size = sequence_length - len(first) - 1
        spans = cut_windows(len(context_ids), size, min(DOC_STRIDE, (size + 1) // 2))
        for (start, end), (owned, owned_end) in zip(spans, own_tokens(spans), strict=True):
            shift = len(first) - start
            windows.append(Window(number, shift, (owned + shift, owned_end + shift)))
            rows.append(first + context_ids[start:end] + sep)
            first_lengths.append(len(first))
            if question.answers is None:
                targets.append((-1, -1, -1))
            elif answer and start <= answer[0] <= answer[1] < end:
                targets.append((answer[0] + shift, answer[1] + shift, 0))
            else:
                targets.append((0, 0, int(answer is None or not reference)))
    named = zip(("start", "end", "unanswerable"), torch.tensor(targets).unbind(dim=1), strict=True)
    num_cut = sum(len(text) > max_question for text in texts)
    padded = pad_rows(
        rows,
        first_lengths,
        dict(named),
        pad_id=tokenizer.pad_id,
        num_cut=num_cut,
        examples=questions,
    )
    offsets_of = [contexts[question.context][1] for question in questions]
    return SpanRows(**vars(padded), windows=windows, offsets=offsets_of)


def _encode_context(question: SpanQuestion, tokenizer: Tokenizer) -> tuple[list[int], np.ndarray]:
    """Return the ids of the text and their offsets (T, 2)."""
    num_chars = len(question.context)
    require(
        num_chars <= MAX_CONTEXT_CHARS,
        f"question {question.id!r}: its context has {num_chars:,} characters; it must have at most "
        f"{MAX_CONTEXT_CHARS:,}",
    )
    ids, offsets = tokenizer.encode_with_offsets(question.context)
    if not ids:
        raise UserError(f"question {question.id!r}: its context has no token; it must have one")
    return ids, np.array(offsets, np.int32)


def _find_answer(question: SpanQuestion, offsets: np.ndarray) -> tuple[int, int] | None:
    """Return the first and the last token of the first answer, None if there is none."""
    if question.span is None:
        return None
    first, last = cover_span(offsets, *question.span)
    if first > last:
        raise UserError(f"question {question.id!r}: its answer has no token; it must have one")
    return first, last
