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
from torch import Tensor, nn

from electra.config import EncoderConfig, FinetuneConfig
from electra.errors import UserError, require
from electra.model.heads import ClassifierHead, build_inner
from electra.tasks.classification import Labelled, read_labels
from electra.tasks.family import Constant, Record, Task
from electra.tasks.inputs import choose_columns, require_format
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.tables import TABLE_FORMATS, TableFile, find_table, read_table
from electra.tokenizing.tokenizer import Tokenizer


class ChoiceQuestion(NamedTuple):
    """A context, its choices and the right one."""

    context: str
    choices: tuple[str, ...]
    label: int | None
    """Index of the right choice; None if it is unknown."""


@dataclass(frozen=True)
class MultipleChoice(Labelled):
    """Contexts with `num_choices` choices each; a choice is named by its number, from 0."""

    num_choices: int
    begin: str = ""
    """Column of the words that all choices of a row begin with, if there is one."""
    metrics: tuple[str, ...] = ("accuracy",)

    @property
    def labels(self) -> tuple[str, ...]:
        """The numbers of the choices."""
        return tuple(map(str, range(self.num_choices)))

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

    def read_records(
        self, path: Path, columns: Sequence[str], trained: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return contexts with their choices: the rows of a table."""
        require_format(path, TABLE_FORMATS)
        table = read_table(path)
        context, *rest = choose_columns(table, columns, trained[:-1])  # the last is the label's
        begin = rest.pop(0) if self.begin else ""
        questions = read_choice_questions(table, context, rest, begin=begin)
        count = len(questions[0].choices)
        require(
            count == self.num_choices,
            f"{path}: {count} choices a row; the model was trained on {self.num_choices}",
        )
        return [{"context": each.context, "choices": list(each.choices)} for each in questions]

    def encode(
        self, examples: Sequence[ChoiceQuestion], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return each choice as a row of at most `sequence_length` tokens."""
        contexts = encode_texts(tokenizer, [each.context for each in examples], sequence_length)
        texts = [text for question in examples for text in question.choices]
        choices = iter(encode_texts(tokenizer, texts, sequence_length))
        pairs = [(context, next(choices)) for context in contexts for _ in range(self.num_choices)]
        labels = torch.tensor([-1 if each.label is None else each.label for each in examples])
        return pack_rows(
            pairs, {"labels": labels}, tokenizer, sequence_length, examples, self.num_choices
        )

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return dropout and a linear layer to one logit on a row's state."""
        pooling = "mean" if config.pooling == "segments" else config.pooling
        size, dropout_prob = sizes.hidden_size, sizes.hidden_dropout_prob
        return ClassifierHead(size, 1, dropout_prob, pooling, build_inner(sizes))

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return a logit for each choice of each question, (B, C)."""
        return {"logits": head(states, batch.attention_mask).view(-1, self.num_choices)}

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of equal probabilities: the order of the choices means nothing."""
        return Constant(math.log(self.num_choices), {"accuracy": 1 / self.num_choices})

    def facts(self) -> dict[str, Any]:
        """Return the family's name, the number of choices and the column that they begin with."""
        return {"family": "choice", "num_choices": self.num_choices, "begin": self.begin}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(facts["num_choices"], facts["begin"])


def read_choice_questions(
    table: TableFile,
    context: str,
    choices: Sequence[str],
    label: str | None = None,
    *,
    begin: str = "",
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
    count = len(rows[0])
    for number, row in enumerate(rows):
        if mistake := _find_mistake(row, count):
            raise UserError(f"{table.place(number)}: {mistake}")
    if begin:
        starts = table.column(begin)
        rows = [
            tuple(f"{start} {text}" if start else text for text in row)
            for start, row in zip(starts, rows, strict=True)
        ]
    labels: Sequence[Any] = [None] * len(rows)
    if label is not None:
        labels = read_labels(table, label, tuple(map(str, range(count))))
    contexts = table.column(context)
    return [ChoiceQuestion(*each) for each in zip(contexts, rows, labels, strict=True)]


def _find_mistake(choices: Sequence[str], count: int) -> str:
    """Return what is wrong with the choices of a row that must have so many; "" if nothing."""
    if count < 2:
        return f"{count} choice; there must be two or more"
    if len(choices) != count:
        return f"{len(choices)} choices; it must have {count}, as the first row has"
    empty = [number for number, text in enumerate(choices) if not text.strip()]
    return f"choice {empty[0]} is empty; every row must have {count}" if empty else ""


def choice_task(
    name: str,
    tables: dict[str, TableFile],
    examples: dict[str, list[ChoiceQuestion]],
    columns: Sequence[str],
    begin: str = "",
) -> Task:
    """Return the task of the questions in tables.

    Raises:
        UserError: The questions of a split have another number of choices than those of train.
    """
    counts = {split: len(questions[0].choices) for split, questions in examples.items()}
    for split, count in counts.items():
        require(
            count == counts["train"],
            f"{tables[split].path}: {count} choices a row; it must be {counts['train']}, as in "
            f"{tables['train'].path}",
        )
    return Task(
        name,
        MultipleChoice(counts["train"], begin),
        examples,
        files=tuple(table.path for table in tables.values()),
        columns=tuple(columns),
    )


def read_swag(data: Path) -> Task:
    """Return SWAG from its folder: train.csv, val.csv and, if there is one, test.csv.

    The context is `sent1`, and a choice is `sent2`, where the second sentence begins, and an
    ending. A test file may lack the labels.

    Raises:
        UserError: A file is missing or not as SWAG's.
    """
    tables = {}
    for split, stem in (("train", "train"), ("dev", "val"), ("test", "test")):
        path = find_table(data, stem, ".csv")
        require(
            path is not None or split == "test", f"{data} has no {stem}.csv; give SWAG's folder"
        )
        if path is not None:
            tables[split] = read_table(path)
    examples = {}
    for split, table in tables.items():
        label = None if split == "test" and "label" not in table.columns else "label"
        examples[split] = read_choice_questions(
            table, "sent1", _endings(table), label, begin="sent2"
        )
    columns = ("sent1", "sent2", *_endings(tables["train"]), "label")
    return choice_task("swag", tables, examples, columns, begin="sent2")


def _endings(table: TableFile) -> list[str]:
    names = [name for name in table.columns if name.startswith("ending")]
    require(len(names) > 1, f"{table.path}: no columns ending0, ending1, ...; give SWAG's folder")
    return names
