"""Multiple choice: which of several texts continues or answers another.

Each choice is a row, [CLS] context [SEP] choice [SEP]. The output layer gives each row one logit,
and the softmax is over the logits of a question. Source: section 4.4 of the BERT paper (SWAG).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig
from electra.errors import UserError, require
from electra.model.heads import ClassifierHead, build_inner
from electra.tasks.classification import describe_labels, read_label
from electra.tasks.family import Constant, Family, Record, Task
from electra.tasks.metrics import score
from electra.tasks.predictions import predictions_name, write_labels
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_row, pad_rows
from electra.text.tables import TableFile, find_table, read_table
from electra.tokenizing.tokenizer import Tokenizer


class ChoiceQuestion(NamedTuple):
    """A context, its choices and the right one."""

    context: str
    choices: tuple[str, ...]
    label: int | None
    """Index of the right choice; None if it is unknown."""


@dataclass(frozen=True)
class MultipleChoice(Family):
    """Contexts with `num_choices` choices each; a choice is named by its number, from 0."""

    num_choices: int
    begin: str = ""
    """Column of the words that all choices of a row begin with, if there is one."""
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def labels(self) -> tuple[str, ...]:
        """The numbers of the choices."""
        return _numbers(self.num_choices)

    def parse(self, record: Record) -> ChoiceQuestion:
        """Return {"context": ..., "choices": [...]} as a question."""
        context, choices = record.text("context"), record.texts("choices")
        record.require(
            len(choices) == self.num_choices,
            f"'choices' has {len(choices)} texts; it must have {self.num_choices}, as in training",
        )
        for number, text in enumerate(choices):
            record.require(text.strip() != "", f"'choices' has an empty text, choice {number}")
        return ChoiceQuestion(context, tuple(choices), None)

    def encode(
        self, examples: Sequence[ChoiceQuestion], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return each choice as a row of at most `sequence_length` tokens."""
        contexts = encode_texts(tokenizer, [each.context for each in examples], sequence_length)
        texts = [text for question in examples for text in question.choices]
        choices = iter(encode_texts(tokenizer, texts, sequence_length))
        rows, first_lengths, num_cut = [], [], 0
        for context in contexts:
            is_cut = False
            for _ in range(self.num_choices):
                choice = next(choices)
                row, first_length = pack_row(
                    context,
                    choice,
                    sequence_length,
                    cls_id=tokenizer.cls_id,
                    sep_id=tokenizer.sep_id,
                )
                is_cut |= len(context) + len(choice) > len(row) - 3
                rows.append(row)
                first_lengths.append(first_length)
            num_cut += is_cut
        labels = torch.tensor([-1 if q.label is None else q.label for q in examples])
        return pad_rows(
            rows,
            first_lengths,
            {"labels": labels},
            pad_id=tokenizer.pad_id,
            num_cut=num_cut,
            examples=examples,
            rows_per_item=self.num_choices,
        )

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return dropout and a linear layer to one logit on a row's state."""
        pooling = "mean" if config.pooling == "segments" else config.pooling
        size, dropout_prob = sizes.hidden_size, sizes.hidden_dropout_prob
        return ClassifierHead(size, 1, dropout_prob, pooling, build_inner(sizes))

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return a logit for each choice of each question, (B, C)."""
        return {"logits": head(states, batch.attention_mask).view(-1, self.num_choices)}

    def loss(self, outputs: Outputs, batch: TaskBatch) -> Tensor:
        """Return the mean cross-entropy over the choices, nats."""
        return F.cross_entropy(outputs["logits"], batch.targets["labels"])

    def score(self, rows: Rows, outputs: Outputs) -> dict[str, float]:
        """Return the accuracy as a fraction; empty if the right choices are unknown."""
        if rows.examples[0].label is None:
            return {}
        labels = rows.targets["labels"]
        return score(self.metrics, labels.tolist(), outputs["logits"].argmax(dim=1).tolist())

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of equal probabilities: the order of the choices means nothing."""
        return Constant(math.log(self.num_choices), {"accuracy": 1 / self.num_choices})

    def describe_collapse(self, dev: Rows, outputs: Outputs) -> str | None:
        """Return a note if the same choice is always predicted but the labels differ."""
        taken = outputs["logits"].argmax(dim=1).unique()
        if len(taken) > 1 or len(dev.targets["labels"].unique()) == 1:
            return None
        return f"every dev prediction is choice {int(taken)}"

    def write_predictions(self, folder: Path, split: str, rows: Rows, outputs: Outputs) -> None:
        """Write the right choice, the prediction and the probability of each choice."""
        path = folder / predictions_name(split)
        write_labels(path, self.labels, rows.targets["labels"], outputs["logits"])

    def facts(self) -> dict[str, Any]:
        """Return the family's name, the number of choices and the column that they begin with."""
        return {"family": "choice", "num_choices": self.num_choices, "begin": self.begin}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(facts["num_choices"], facts["begin"])

    def describe_answers(self, rows: Rows, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the number of the predicted choice and the probability of each choice."""
        return describe_labels(self.labels, outputs["logits"])


def read_choice_questions(
    table: TableFile, *, context: str, choices: Sequence[str], label: str | None, begin: str = ""
) -> list[ChoiceQuestion]:
    """Return a question for each row of a table.

    Args:
        table: The rows.
        context: Column of the context of a row's choices.
        choices: Columns of the choices; a single one holds lists of them.
        label: Column of the right choice's number, from 0; None: it is unknown.
        begin: Column of the words that all choices of a row begin with, if there is one.

    Raises:
        UserError: A column is missing, rows have different numbers of choices, a choice is empty,
            or a label is not the number of one.
    """
    if len(choices) == 1:
        rows = table.lists(choices[0])
    else:
        rows = list(zip(*(table.column(column) for column in choices), strict=True))
    contexts = table.column(context)
    begins = table.column(begin) if begin else [""] * len(rows)
    labels = [None] * len(rows) if label is None else table.column(label)
    names, questions = _numbers(len(rows[0])), []
    for number, (first, start, row, name) in enumerate(
        zip(contexts, begins, rows, labels, strict=True)
    ):
        try:
            _check_choices(row, len(names))
            place = None if name is None else int(read_label(name, names))
        except UserError as error:
            raise UserError(f"{table.place(number)}: {error}") from None
        texts = tuple(f"{start} {text}" if start else text for text in row)
        questions.append(ChoiceQuestion(first, texts, place))
    return questions


def count_choices(tables: dict[str, TableFile], examples: dict[str, list[ChoiceQuestion]]) -> int:
    """Return the number of choices of a question.

    Raises:
        UserError: The questions of a split have another number than those of train.
    """
    counts = {split: len(questions[0].choices) for split, questions in examples.items()}
    for split, count in counts.items():
        require(
            count == counts["train"],
            f"{tables[split].path}: {count} choices a row; it must be {counts['train']}, as in "
            f"{tables['train'].path}",
        )
    return counts["train"]


def read_swag(data: Path) -> Task:
    """Return SWAG from its folder: train.csv, val.csv and, if there is one, test.csv.

    The context is `sent1`, and a choice is `sent2`, where the second sentence begins, and an
    ending. A test file may lack the labels.

    Raises:
        UserError: A file is missing or not as SWAG's.
    """
    found = {
        split: find_table(data, stem, ".csv")
        for split, stem in (("train", "train"), ("dev", "val"), ("test", "test"))
    }
    for split, stem in (("train", "train"), ("dev", "val")):
        require(found[split] is not None, f"{data} has no {stem}.csv; give SWAG's folder")
    tables = {split: read_table(path) for split, path in found.items() if path is not None}
    examples = {
        split: read_choice_questions(
            table,
            context="sent1",
            begin="sent2",
            choices=_endings(table),
            label=None if split == "test" and "label" not in table.columns else "label",
        )
        for split, table in tables.items()
    }
    return Task(
        "swag",
        MultipleChoice(count_choices(tables, examples), begin="sent2"),
        examples,
        files=tuple(table.path for table in tables.values()),
        columns=("sent1", "sent2", *_endings(tables["train"]), "label"),
    )


def _endings(table: TableFile) -> list[str]:
    names = [name for name in table.columns if name.startswith("ending")]
    require(len(names) > 1, f"{table.path}: no columns ending0, ending1, ...; give SWAG's folder")
    return names


def _check_choices(choices: Sequence[str], count: int) -> None:
    require(count > 1, f"{count} choice; there must be two or more")
    require(
        len(choices) == count, f"{len(choices)} choices; it must have {count}, as the first row has"
    )
    for number, text in enumerate(choices):
        require(text.strip() != "", f"choice {number} is empty; every row must have {count}")


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
