"""Extractive question answering: SQuAD 1.1, SQuAD 2.0 and data in MRQA's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig, require
from electra.corpus.tokenizer import Tokenizer
from electra.files import write_json
from electra.model.heads import build_inner
from electra.model.span_heads import UNANSWERABLE_WEIGHT, BeamSpanHead, SpanHead, span_loss
from electra.tasks.family import Constant, Family
from electra.tasks.records import Record
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tasks.squad_answers import SpanAnswers, find_answers
from electra.tasks.squad_data import SpanQuestion, find_files, read_questions
from electra.tasks.squad_rows import SpanRows, encode_questions
from electra.tasks.squad_score import score_v1, score_v2
from electra.tasks.task import Task

SQUAD_2 = "squad-2.0"
"""The task whose contexts need not hold the answer."""
REFERENCE_THRESHOLD = -2.75
"""Source: configure_finetuning.py qa_na_threshold."""


@dataclass(frozen=True)
class SpanExtraction(Family):
    """Questions whose answers are spans of a context, or that have no answer there."""

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

    def parse(self, record: Record) -> SpanQuestion:
        """Return {"question": ..., "context": ...} as a question.

        A field "id" names the question; the default is the record's number.
        """
        name = record.text("id") if "id" in record.fields else str(record.number)
        return SpanQuestion(name, record.text("question"), record.text("context"), None, None)

    def encode(
        self, examples: Sequence[SpanQuestion], tokenizer: Tokenizer, sequence_length: int
    ) -> SpanRows:
        """Return questions as rows; a context too long for one row has several."""
        return encode_questions(examples, tokenizer, sequence_length, reference=self.reference)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return the head named by `head`; both are without dropout, as in the released code."""
        if self.head == "beam":
            return BeamSpanHead(sizes.hidden_size)
        return SpanHead(sizes.hidden_size, build_inner(sizes))

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
        if rows.examples[0].answers is None:
            return {}
        found = _find(rows, outputs)
        gold = [question.answers or () for question in rows.examples]
        if all(gold):
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
        found = _find(dev, outputs)
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
        found = _find(rows, outputs)
        ids = [question.id for question in rows.examples]
        prefix = "" if split == "dev" else f"{split}_"
        n_best = [_describe(answers) for answers in found.n_best]
        for name, values in (
            ("predictions", found.texts),
            ("null_odds", found.null_odds),
            ("nbest", n_best),
        ):
            write_json(folder / f"{prefix}{name}.json", dict(zip(ids, values, strict=True)))

    def facts(self) -> dict[str, Any]:
        """Return the family's name, the head and the threshold of the null odds."""
        return {"family": "squad", "head": self.head, "null_threshold": self._threshold}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(
            head=facts["head"],
            reference=facts["null_threshold"] == REFERENCE_THRESHOLD,
            may_be_none=facts["task"] == SQUAD_2,
        )

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return each question's `id`, `answer`, best `span` and `prob_none`.

        The answer is the span, or "" if the null odds of SQuAD 2.0 are above the threshold;
        prob_none is the sigmoid of these odds.
        """
        found = _find(rows, outputs)
        return [
            {
                "id": question.id,
                "answer": "" if self.may_be_none and odds > self._threshold else text,
                "span": text,
                "prob_none": round(torch.tensor(odds).sigmoid().item(), 6),
            }
            for question, text, odds in zip(
                rows.examples, found.texts, found.null_odds, strict=True
            )
        ]

    @property
    def _threshold(self) -> float:
        return REFERENCE_THRESHOLD if self.reference else 0.0


def _find(rows: Rows, outputs: Outputs) -> SpanAnswers:
    assert isinstance(rows, SpanRows)
    return find_answers(rows, outputs)


def _entropy(events: Tensor) -> float:
    """Return the entropy of a 0/1 variable, nats, from its events."""
    share = events.double().mean()
    return -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share)).item()


def _describe(answers: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    scores = np.array([score for _, score in answers])
    shares = np.exp(scores - scores.max(initial=-np.inf))
    shares /= shares.sum()
    return [
        {"text": text, "probability": share, "score": score}
        for (text, score), share in zip(answers, shares.tolist(), strict=True)
    ]


def read_squad_task(
    name: str,
    data: Path,
    *,
    train: Sequence[str] = (),
    dev: Sequence[str] = (),
    test: Sequence[str] = (),
    head: Literal["beam", "plain"] = "beam",
    reference: bool = False,
) -> Task:
    """Return the task of a folder's questions.

    Args:
        name: squad-1.1, in whose dev set every question has an answer, or squad-2.0, where some
            have none.
        data: The folder.
        train: Names of files in the folder, read one after the other. Empty: the file whose name
            begins with "train" and ends in .json (SQuAD) or .jsonl (MRQA), compressed or not.
        dev: As for train.
        test: As for train, but optional; answers are ignored.
        head: As `SpanExtraction.head`.
        reference: As `SpanExtraction.reference`.

    Raises:
        UserError: A file is missing, is one of several, is not of its format, or is of the other
            task.
    """
    files = {
        split: find_files(data, split, chosen)
        for split, chosen in (("train", train), ("dev", dev), ("test", test))
    }
    examples = {
        split: read_questions(paths, is_labelled=split != "test")
        for split, paths in files.items()
        if paths
    }
    read = tuple(path for paths in files.values() for path in paths)
    has_unanswerable = any(question.answers == () for question in examples["dev"])
    require(
        has_unanswerable == (name == SQUAD_2),
        f"{files['dev'][0]}: {'some' if has_unanswerable else 'all'} of its questions have "
        f"{'no' if has_unanswerable else 'an'} answer; that is the task "
        f"{SQUAD_2 if has_unanswerable else 'squad-1.1'}",
    )
    family = SpanExtraction(head, reference, may_be_none=has_unanswerable)
    columns = ("question", "context", "answers")
    return Task(name, family, examples, epochs=2, files=read, columns=columns)
