"""Extractive question answering: SQuAD 1.1, SQuAD 2.0 and what is written in MRQA's format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig, require
from electra.corpus.tokenizer import Tokenizer
from electra.files import write_json
from electra.model.span_heads import UNANSWERABLE_WEIGHT, BeamSpanHead, SpanHead, span_loss
from electra.tasks.rows import Outputs, Rows, TaskBatch
from electra.tasks.squad_answers import SpanAnswers, find_answers
from electra.tasks.squad_data import SpanQuestion, find_files, read_questions
from electra.tasks.squad_rows import Windows, encode_questions
from electra.tasks.squad_score import score_v1, score_v2
from electra.tasks.task import Constant, Task

SQUAD_2 = "squad-2.0"
"""The task in which a text need not hold the answer."""
REFERENCE_THRESHOLD = -2.75
"""Source: configure_finetuning.py qa_na_threshold."""


@dataclass
class SquadTask(Task):
    """Questions whose answers are spans of a text, or that have none there."""

    longest_row: ClassVar[int] = 512

    name: str
    examples: dict[str, list[SpanQuestion]]
    files: tuple[Path, ...] = ()
    head: Literal["beam", "plain"] = "beam"
    """beam: the end is judged given the start, and whether there is an answer by a classifier;
    plain: BERT's two logits for each position."""
    reference: bool = False
    """Whether to do as the released code: train rows that do not hold the answer of an answerable
    question as answerable, and say "no answer" above odds of -2.75 instead of 0."""
    metrics: tuple[str, ...] = ("f1", "exact")
    epochs: int = 2
    columns: tuple[str, ...] = ("question", "context", "answers")
    _windows: dict[str, Windows] = field(default_factory=dict)
    """Of each split, from `encode`."""

    def encode(self, tokenizer: Tokenizer, sequence_length: int) -> dict[str, Rows]:
        """Return each split as rows; a text that is too long for one has several."""
        rows = {}
        for split, questions in self.examples.items():
            rows[split], self._windows[split] = encode_questions(
                questions, tokenizer, sequence_length, reference=self.reference
            )
        return rows

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return the head that `head` names; neither has dropout, as in the released code."""
        return (BeamSpanHead if self.head == "beam" else SpanHead)(sizes.hidden_size)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return what the head says; to a beam in training the right starts are told."""
        if self.head == "plain":
            return head(states, batch.token_type_ids)
        starts = batch.targets["start"] if head.training else None
        return head(states, batch.token_type_ids, starts)

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the loss of a batch, nats, from what the head says in training."""
        return span_loss(outputs, batch.targets)

    def score(self, split: str, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return F1 and exact match, and what SQuAD 2.0 adds if questions without answer occur."""
        questions = self.examples[split]
        if questions[0].answers is None:
            return {}
        found = self._find(split, outputs)
        gold = [question.answers or () for question in questions]
        if all(gold):
            return score_v1(found.texts, gold)
        return score_v2(found.texts, found.null_odds, gold, self._threshold)

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return what "no answer" gives, as likely as in train, with all tokens else alike."""
        is_held = train.targets["start"] > 0
        num_tokens = train.lengths - train.first_lengths - 1
        loss = _entropy(is_held) + torch.where(is_held, num_tokens.log(), 0.0).mean().item()
        if self.head == "beam":
            loss += UNANSWERABLE_WEIGHT * _entropy(train.targets["unanswerable"])
        num_none = sum(question.answers == () for question in self.examples["dev"])
        share = num_none / len(self.examples["dev"])
        return Constant(loss, dict.fromkeys(self.metrics, share))

    def describe_collapse(self, rows: Rows, outputs: Outputs) -> str | None:
        """Return what all dev questions are answered with, if it is one and the same."""
        found = self._find("dev", outputs)
        may_be_none = any(question.answers == () for question in self.examples["dev"])
        said = {
            "" if may_be_none and odds > self._threshold else text
            for text, odds in zip(found.texts, found.null_odds, strict=True)
        }
        if len(said) > 1 or len(found.texts) == 1:
            return None
        return f"every dev prediction is {said.pop()!r}" if any(said) else "no dev answer is given"

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write predictions.json, null_odds.json and nbest.json, other splits' with their name.

        SQuAD's scripts read the first two: `evaluate-v2.0.py DATA predictions.json --na-prob-file
        null_odds.json --na-prob-thresh T`. Every question has its best text, never "" for want of
        confidence, so that the scripts can look for the best threshold. In nbest.json a text's
        probability is that among those of its question.
        """
        found = self._find(split, outputs)
        ids = [question.id for question in self.examples[split]]
        prefix = "" if split == "dev" else f"{split}_"
        n_best = [_describe(answers) for answers in found.n_best]
        for name, values in (
            ("predictions", found.texts),
            ("null_odds", found.null_odds),
            ("nbest", n_best),
        ):
            write_json(folder / f"{prefix}{name}.json", dict(zip(ids, values, strict=True)))

    def facts(self) -> dict[str, Any]:
        """Return family, head and the odds above which there is no answer."""
        return {"family": "squad", "head": self.head, "null_threshold": self._threshold}

    @classmethod
    def from_facts(cls, facts: dict[str, Any], examples: dict[str, list[SpanQuestion]]) -> Self:
        """Return the task of a saved model, with questions to be answered."""
        is_reference = facts["null_threshold"] == REFERENCE_THRESHOLD
        return cls(facts["task"], examples, head=facts["head"], reference=is_reference)

    def describe_answers(self, split: str, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return each question's `id`, `answer`, best `span` and `prob_none`.

        The answer is the span, or "" where SQuAD 2.0's null odds are above the threshold; prob_none
        is what these odds come to as a probability.
        """
        found = self._find(split, outputs)
        may_be_none = self.name == SQUAD_2
        return [
            {
                "id": question.id,
                "answer": "" if may_be_none and odds > self._threshold else text,
                "span": text,
                "prob_none": round(torch.tensor(odds).sigmoid().item(), 6),
            }
            for question, text, odds in zip(
                self.examples[split], found.texts, found.null_odds, strict=True
            )
        ]

    @property
    def _threshold(self) -> float:
        return REFERENCE_THRESHOLD if self.reference else 0.0

    def _find(self, split: str, outputs: Outputs) -> SpanAnswers:
        return find_answers(self.examples[split], self._windows[split], outputs)


def _entropy(events: Tensor) -> float:
    """Return the entropy of events that are 0 or 1, nats."""
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
) -> SquadTask:
    """Return the task of a folder's questions.

    Args:
        name: squad-1.1, in whose dev set every question has an answer, or squad-2.0, where some
            have none.
        data: The folder.
        train: Names of files in it, read one after the other. None: the one whose name begins with
            "train" and ends in .json (SQuAD) or .jsonl (MRQA), compressed or not.
        dev: Likewise.
        test: Likewise; there need be none, and its answers are not known.
        head: As `SquadTask.head`.
        reference: As `SquadTask.reference`.

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
    return SquadTask(name, examples, read, head, reference)
