"""Questions whose answers are spans of a context: of SQuAD 1.1 and 2.0, also flat, and of MRQA.

A row is [CLS] question [SEP] window [SEP]. A context longer than a window is covered by several
windows that overlap; each token is owned by the window that has most of the text around it, and an
answer can begin only there. Sizes: N rows, T tokens of a context.

Source: rajpurkar.github.io/SQuAD-explorer; github.com/mrqa/MRQA-Shared-Task-2019; qa_tasks.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from electra.assignments import from_dict
from electra.errors import UserError, require, require_choice
from electra.files import read_object, write_json
from electra.model.config import EncoderConfig
from electra.model.task_heads import UNANSWERABLE_WEIGHT, BeamSpanHead, SpanHead, span_loss
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Constant, Family, Task, WrittenHead
from electra.tasks.record import Columns, Record, find_splits, require_unique
from electra.tasks.rows import (
    Outputs,
    Rows,
    TaskBatch,
    encode_texts,
    own_words,
    pad_rows,
    start_windows,
)
from electra.tasks.squad_files import COLUMNS, FORMATS, read_asked, read_questions
from electra.tasks.squad_score import score_v1, score_v2
from electra.tokenizing.tokenizer import Tokenizer

SQUAD_2 = "squad-2.0"
"""The task whose contexts need not hold the answer."""
FILES = {"train": "train.*", "dev": "dev.*|valid.*|val", "test": "test.*"}
MAX_QUESTION = 64
"""Tokens of a question; what is longer is cut. Source: configure_finetuning.py max_query_length."""
MAX_CONTEXT_CHARS = 1_000_000
"""Characters of a context, every token of which is read: some 2,000 rows of 512 tokens."""
DOC_STRIDE = 128
"""Tokens from one window's start to the next one's. Source: configure_finetuning.py."""
MAX_ANSWER = 30
"""Tokens of an answer. Source: configure_finetuning.py max_answer_length."""
N_BEST = 20
"""Answers kept for each question. Source: configure_finetuning.py n_best_size."""
ROW_SPANS = 400
"""Best spans of a row that are considered without a beam: several may have the same text."""
REFERENCE_THRESHOLD = -2.75
"""Source: configure_finetuning.py qa_na_threshold."""

Arrays = dict[str, np.ndarray]
Spans = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Scores, and the numbers of first and last tokens in the text."""


class SpanQuestion(NamedTuple):
    """A question, its context and its answers."""

    id: str
    text: str
    context: str
    """The text that is asked about; questions of one file share the object."""
    answers: tuple[str, ...] | None
    """Right answers; empty: the context holds none; None: unknown."""
    span: tuple[int, int] | None
    """Start and end of the first answer in the context, in characters; None without an answer."""


def read_squad_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of a folder's questions: squad-2.0 if some of dev have no answer."""
    listed = {split: getattr(config.squad, split).split(",") for split in FILES}
    chosen = {split: [each.strip() for each in listed[split] if each.strip()] for split in FILES}
    files = find_splits(data, FORMATS, FILES, chosen=chosen, setting="squad")
    family = SpanExtraction(
        config.squad.head, config.mode == "reference", may_be_none=name == SQUAD_2
    )
    examples: dict[str, list[Any]] = {}
    for split, paths in files.items():
        parts = [read_questions(path, is_labelled=split != "test") for path in paths]
        require_unique(parts, "id")
        examples[split] = [
            question._replace(answers=row["answers"], span=row["span"])
            for part in parts
            for question, row in zip(family.parse_all(part), part.table.rows, strict=True)
        ]
    judged = "dev" if "dev" in examples else "train"  # dev is then held out from train
    has_none = any(question.answers == () for question in examples[judged])
    require(
        has_none == (name == SQUAD_2),
        f"{files[judged][0]}: {'some of its questions have no' if has_none else 'all have an'} "
        f"answer; that is the task {SQUAD_2 if has_none else 'squad-1.1'}",
    )
    return Task(
        name,
        family,
        examples,
        epochs=2,
        files=tuple(path for paths in files.values() for path in paths),
        columns=Columns(COLUMNS, ("answers",)),
    )


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


def cut_windows(num_tokens: int, size: int, stride: int) -> list[tuple[range, range]]:
    """Return the tokens of each window of a text, and those of them that the window owns.

    Windows own neighbours, in order. Source: qa_tasks.py, _check_is_max_context there.
    """
    starts = start_windows(num_tokens, size, stride)
    windows = [range(start, min(start + size, num_tokens)) for start in starts]
    owners = own_words(windows, range(num_tokens + 1), window_weight=0.01)
    borders = np.searchsorted(owners, range(len(windows) + 1)).tolist()
    return [(window, range(*borders[n : n + 2])) for n, window in enumerate(windows)]


def cover_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Return the first and the last token with characters in [start, end).

    Where there is none, the first comes after the last.
    """
    first = np.searchsorted(offsets[:, 1], start, side="right")
    last = np.searchsorted(offsets[:, 0], end, side="left") - 1
    return int(first), int(last)


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


class SpanAnswer(NamedTuple):
    """A span of a context that may answer a question."""

    text: str
    score: float
    start: int
    """Place in the context, in characters."""


class SpanAnswers(NamedTuple):
    """The answers to each question, in order."""

    n_best: list[list[SpanAnswer]]
    """Answers of different texts, best first; empty if no span has a score."""
    null_odds: list[float]
    """Log-odds of "no answer" against the best answer, nats."""

    @property
    def texts(self) -> list[str]:
        """The best text of each question, whatever its null odds; "" where none was found."""
        return [answers[0].text if answers else "" for answers in self.n_best]


def find_answers(rows: Rows, outputs: Outputs) -> SpanAnswers:
    """Return the best answers to each question, and the odds that it has none.

    A span is at most MAX_ANSWER tokens long and starts where its row owns the text. Its text is cut
    from the context from its first token's first character to its last token's last. With a
    BeamSpanHead the score of a span is the log-probability of start and end, and the null odds are
    the least `unanswerable` of the question's rows. With a SpanHead the score is the sum of the two
    logits, and the null odds are the least sum at [CLS] of the rows, less the best span's.

    Source: qa_metrics.py write_predictions, which puts the text together again from tokens.
    """
    assert isinstance(rows, SpanRows)
    is_beam = "starts" in outputs
    arrays = {name: values.numpy() for name, values in outputs.items()}
    find_spans = _beam_spans if is_beam else _free_spans
    n_best: list[list[SpanAnswer]] = []
    null_odds: list[float] = []
    for place, group in groupby(range(len(rows)), lambda row: rows.windows[row].question):
        numbers = list(group)
        spans = [find_spans(arrays, number, rows.windows[number]) for number in numbers]
        context, offsets = rows.examples[place].context, rows.offsets[place]
        n_best.append(
            _best_answers(context, offsets, *map(np.concatenate, zip(*spans, strict=True)))
        )
        if is_beam:
            null_odds.append(float(arrays["unanswerable"][numbers].min()))
        else:
            null = arrays["start_logits"][numbers, 0] + arrays["end_logits"][numbers, 0]
            best = n_best[-1][0].score if n_best[-1] else np.nan  # none where all logits are NaN
            null_odds.append(float(null.min()) - best)
    return SpanAnswers(n_best, null_odds)


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


def _best_answers(
    context: str, offsets: np.ndarray, scores: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> list[SpanAnswer]:
    """Return the best spans, of each text the best."""
    best: dict[str, SpanAnswer] = {}
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(best) == N_BEST:
            break
        start = int(offsets[starts[place], 0])
        text = context[start : offsets[ends[place], 1]]
        best.setdefault(text, SpanAnswer(text, float(scores[place]), start))
    return list(best.values())


@dataclass(frozen=True)
class SpanExtraction(Family):
    """Questions whose answers are spans of a context, or that have no answer there."""

    fields: ClassVar[tuple[str, ...]] = ("id", *COLUMNS)
    convert = staticmethod(read_asked)
    longest_row: ClassVar[int] = 512

    head: Literal["beam", "plain"] = "beam"
    """beam: the end is predicted given the start, and answerability by a classifier; plain: BERT's
    two logits for each position."""
    reference: bool = False
    """Whether to follow the released code: rows that do not hold the answer of an answerable
    question are trained as answerable, and the threshold of "no answer" is -2.75 instead of 0."""
    may_be_none: bool = False
    """Whether a saved model may answer that the context holds no answer, as in SQuAD 2.0."""
    metrics: tuple[str, ...] = ("f1", "exact")

    def text_of(self, example: SpanQuestion) -> str:
        """Return the context: the questions about a text stay together."""
        return example.context

    def is_labelled(self, example: SpanQuestion) -> bool:
        """Return whether the answers to a question are known; it may have none."""
        return example.answers is not None

    def parse(self, record: Record) -> SpanQuestion:
        """Return {"question": ..., "context": ...} as a question.

        A field "id" names the question; the default is the record's number.
        """
        name = record.name("id") if "id" in record.fields else str(record.number)
        return SpanQuestion(name, record.text("question"), record.text("context"), None, None)

    def is_blank(self, example: SpanQuestion) -> bool:
        """Return whether there is neither a question nor a context; an id is no text."""
        return not (example.text + example.context).strip()

    def encode(
        self, examples: Sequence[SpanQuestion], tokenizer: Tokenizer, sequence_length: int
    ) -> SpanRows:
        """Return questions as rows; a context too long for one row has several.

        A question keeps at most half of a row, and windows overlap by at least half of the rest.
        The targets are `start` and `end`, the positions of the first answer's first and last token,
        and `unanswerable`, 1 where the row does not hold all of that answer; start and end are 0
        there. All are -1 where the answer is not known.

        Raises:
            UserError: A context or an answer has no token, or a context is too long.
        """
        asked = {question.context: question for question in examples}
        contexts = {context: _encode_context(asked[context], tokenizer) for context in asked}
        most = min(MAX_QUESTION, sequence_length // 2)
        texts = encode_texts(tokenizer, [question.text for question in examples], most + 1)
        cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
        rows: list[tuple[list[int], int]] = []
        targets: list[tuple[int, int, int]] = []
        windows: list[Window] = []
        for number, (question, text) in enumerate(zip(examples, texts, strict=True)):
            context_ids, offsets = contexts[question.context]
            answer, first = _find_answer(question, offsets), cls + text[:most] + sep
            size = sequence_length - len(first) - 1
            stride = min(DOC_STRIDE, (size + 1) // 2)
            for tokens, owned in cut_windows(len(context_ids), size, stride):
                shift = len(first) - tokens.start
                windows.append(Window(number, shift, (owned.start + shift, owned.stop + shift)))
                rows.append((first + context_ids[tokens.start : tokens.stop] + sep, len(first)))
                if question.answers is None:
                    targets.append((-1, -1, -1))
                elif answer and answer[0] in tokens and answer[1] in tokens:
                    targets.append((answer[0] + shift, answer[1] + shift, 0))
                else:
                    targets.append((0, 0, int(answer is None or not self.reference)))
        columns = torch.tensor(targets).unbind(dim=1)
        named = dict(zip(("start", "end", "unanswerable"), columns, strict=True))
        is_cut = [len(text) > most for text in texts]
        padded = pad_rows(rows, named, tokenizer, examples, is_cut=is_cut)
        offsets_of = [contexts[question.context][1] for question in examples]
        return SpanRows(**vars(padded), windows=windows, offsets=offsets_of)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return the head named by `head`; both are without dropout, as in the released code."""
        if self.head == "beam":
            require(
                not (self.may_be_none and sizes.causal) or config.bilstm,
                "squad.head beam judges answerability by [CLS], which sees no text in a causal "
                "encoder; set squad.head=plain",
            )
            return BeamSpanHead(sizes.hidden_size)
        return SpanHead(sizes)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return the outputs of the head; in training, a beam is given the right starts."""
        if self.head == "plain":
            return head(states, batch.token_type_ids)
        starts = batch.targets["start"] if head.training else None
        return head(states, batch.token_type_ids, starts)

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the loss of a batch, nats, from the outputs of the head in training."""
        return span_loss(outputs, batch.targets)

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return F1 and exact match; also SQuAD 2.0's scores if some questions have no answer."""
        if not self.is_labelled(rows.examples[0]):
            return {}
        found = find_answers(rows, outputs)
        gold = [question.answers or () for question in rows.examples]
        if all(gold) and not self.may_be_none:
            return score_v1(found.texts, gold)
        return score_v2(found.texts, found.null_odds, gold, self._threshold)

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of "no answer" with its share in train, all tokens else equal."""
        is_held = train.targets["start"] > 0
        num_tokens = train.lengths - train.first_lengths - 1
        loss = _entropy(is_held) + torch.where(is_held, num_tokens.log(), 0.0).mean().item()
        if self.head == "beam":
            loss += UNANSWERABLE_WEIGHT * _entropy(train.targets["unanswerable"])
        num_none = sum(question.answers == () for question in dev.examples)
        share = num_none / len(dev.examples)
        return Constant(loss, dict.fromkeys(self.metrics, share))

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if all questions of dev have the same prediction."""
        found = find_answers(dev, outputs)
        may_be_none = any(question.answers == () for question in dev.examples)
        said = {
            "" if may_be_none and odds > self._threshold else text
            for text, odds in zip(found.texts, found.null_odds, strict=True)
        }
        if len(said) > 1 or len(found.texts) == 1:
            return None
        return f"every dev prediction is {said.pop()!r}" if any(said) else "no dev answer is given"

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write predictions.json, null_odds.json and nbest.json, with a prefix if not for dev.

        SQuAD's scripts read the first two: `evaluate-v2.0.py DATA predictions.json --na-prob-file
        null_odds.json --na-prob-thresh T`. Every question has its best text, even if it is probably
        unanswerable, so that the scripts can search the best threshold. In nbest.json the
        probabilities of a question's texts sum to 1.
        """
        found = find_answers(rows, outputs)
        ids = [question.id for question in rows.examples]
        prefix = "" if split == "dev" else f"{split}_"
        n_best = [_describe(answers) for answers in found.n_best]
        for name, values in (
            ("predictions", found.texts),
            ("null_odds", np.nan_to_num(found.null_odds).tolist()),  # of a model that diverged
            ("nbest", n_best),
        ):
            write_json(folder / f"{prefix}{name}.json", dict(zip(ids, values, strict=True)))

    def read_answers(self, folder: Path, split: str) -> list[dict[str, Any]]:
        """Return each question's `id` and best `span`."""
        texts, _ = self._read_kept(folder, split)
        return [{"id": name, "span": text} for name, text in texts.items()]

    def score_answers(self, folder: Path, split: str, examples: Sequence[Any]) -> dict[str, float]:
        """Return the scores of the texts in the files; the right answers are in the examples."""
        if not examples:
            return {}
        texts, odds = self._read_kept(folder, split)
        ids, gold = [each.id for each in examples], [each.answers or () for each in examples]
        require(list(texts) == ids, f"{folder}: the questions are not those of the task's files")
        if all(gold) and not self.may_be_none:
            return score_v1(list(texts.values()), gold)
        return score_v2(list(texts.values()), [odds[name] for name in ids], gold, self._threshold)

    def _read_kept(self, folder: Path, split: str) -> tuple[dict[str, str], dict[str, float]]:
        """Return the best text and the null odds of each question."""
        prefix = "" if split == "dev" else f"{split}_"
        names = ("predictions", "null_odds")
        texts, odds = (read_object(folder / f"{prefix}{name}.json") for name in names)
        return texts, odds

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return the two logits of each position; refuse the head that searches."""
        require(
            self.head == "plain",
            f"transformers has no class with a {self.head} head, which searches; fine-tune with "
            "--set squad.head=plain to export, or use electra predict",
        )
        return WrittenHead("QuestionAnswering", parameters)

    def facts(self) -> dict[str, Any]:
        """Return the family's name, the head and the threshold of the null odds."""
        return {"family": "squad", "head": self.head, "null_threshold": self._threshold}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        kinds = {SpanExtraction(reference=each)._threshold: each for each in (False, True)}
        require_choice("null_threshold", facts["null_threshold"], kinds)
        how = {"reference": kinds[facts["null_threshold"]], "may_be_none": facts["task"] == SQUAD_2}
        return from_dict(cls, {"head": facts["head"], **how})

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return each question's `id`, `answer`, best `span` with its `start`, and `prob_none`.

        The answer is the span, or "" if the null odds of SQuAD 2.0 are above the threshold;
        prob_none is the sigmoid of these odds.
        """
        found = find_answers(rows, outputs)
        return [
            {
                "id": question.id,
                "answer": "" if self.may_be_none and odds > self._threshold else text,
                "span": text,
                "start": best[0].start if best else 0,
                "prob_none": round(torch.tensor(odds).sigmoid().item(), 6),
            }
            for question, best, text, odds in zip(
                rows.examples, found.n_best, found.texts, found.null_odds, strict=True
            )
        ]

    def describe_blank(self, example: SpanQuestion) -> dict[str, Any]:
        """Return no answer and no span."""
        return {"id": example.id, **dict.fromkeys(("answer", "span", "start", "prob_none"))}

    @property
    def _threshold(self) -> float:
        return REFERENCE_THRESHOLD if self.reference else 0.0


def _entropy(events: Tensor) -> float:
    """Return the entropy of a 0/1 variable, nats, from its events."""
    share = events.double().mean()
    return -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share)).item()


def _describe(answers: Sequence[SpanAnswer]) -> list[dict[str, Any]]:
    scores = np.nan_to_num([each.score for each in answers])
    shares = np.exp(scores - scores.max(initial=-np.inf))
    shares /= shares.sum()
    return [
        {"text": each.text, "probability": share, "score": score}
        for each, share, score in zip(answers, shares.tolist(), scores.tolist(), strict=True)
    ]
