"""Multiple choice: which of several texts continues or answers another.

Each choice is a row, [CLS] context [SEP] choice [SEP]. The output layer gives each row one logit,
and the softmax is over the logits of a question. Source: section 4.4 of the BERT paper (SWAG).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from electra.errors import UserError, require
from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead
from electra.tasks.classification import Labelled, read_names
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import (
    Columns,
    Constant,
    Inputs,
    Record,
    Task,
    WrittenHead,
    choose_columns,
    find_splits,
)
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.table_files import TableFile, read_table
from electra.text.tables import TABLE_FORMATS
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

    fields: ClassVar[tuple[str, ...]] = ("context", "choices")
    pools: ClassVar[bool] = True

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
        question = ChoiceQuestion(context, tuple(choices), None)
        for number, text in enumerate(choices):
            is_given = text.strip() != "" or self.is_blank(question)
            record.require(is_given, f"'choices' has an empty text, choice {number}")
        return question

    def read_inputs(
        self, path: Path, columns: Sequence[str], trained: Columns, separator: str = ""
    ) -> Inputs:
        """Return contexts with their choices: the rows of a table."""
        table = read_table(path, separator=separator)
        context, *rest = choose_columns(table, columns, trained.inputs)
        begin = rest.pop(0) if self.begin else ""
        choices_of = _read_choices(table, rest, begin, self.num_choices, may_be_blank=True)
        contexts = table.column(context)
        found = [
            {"context": context, "choices": list(choices)}
            for context, choices in zip(contexts, choices_of, strict=True)
        ]
        return Inputs(found, table.rows)

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
        return ClassifierHead(sizes, 1, sizes.hidden_dropout_prob, pooling)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return a logit for each choice of each question, (B, C)."""
        return {"logits": head(states, batch.attention_mask).view(-1, self.num_choices)}

    def find_constant(self, train: Rows, dev: Rows) -> Constant:
        """Return loss and scores of equal probabilities: the order of the choices means nothing."""
        return Constant(math.log(self.num_choices), {"accuracy": 1 / self.num_choices})

    def as_transformers(self, parameters: Mapping[str, Tensor]) -> WrittenHead:
        """Return a head that gives each choice a logit."""
        return WrittenHead("MultipleChoice", parameters)

    def facts(self) -> dict[str, Any]:
        """Return the family's name, the number of choices and the column that they begin with."""
        return {"family": "choice", "num_choices": self.num_choices, "begin": self.begin}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return cls(facts["num_choices"], facts["begin"])


def read_choice_task(
    name: str,
    tables: Mapping[str, Sequence[TableFile]],
    context: str,
    choices: Sequence[str],
    label: str,
    begin: str = "",
) -> Task:
    """Return the task of the questions in the tables of each split, one for each row.

    `label` is the column of the right choice's number, from 0. A single column of choices holds
    lists of them. All choices of a row begin with the words in the column `begin`, if it is set.
    """
    examples: dict[str, list[ChoiceQuestion]] = {}
    count = len(_read_choices(tables["train"][0], choices, begin)[0])
    for split, parts in tables.items():
        for table in parts:
            choices_of = _read_choices(table, choices, begin, count)
            labels = read_names(table, split, label, tuple(map(str, range(count))))
            read = zip(table.column(context), choices_of, labels, strict=True)
            examples.setdefault(split, []).extend(ChoiceQuestion(*each) for each in read)
    starts = [begin] if begin else []
    return Task(
        name,
        MultipleChoice(count, begin),
        examples,
        files=tuple(table.path for parts in tables.values() for table in parts),
        columns=Columns((context, *starts, *choices), (label,)),
    )


def _read_choices(
    table: TableFile,
    columns: Sequence[str],
    begin: str,
    count: int = 0,
    *,
    may_be_blank: bool = False,
) -> Sequence[tuple[str, ...]]:
    """Return the choices of each row: so many, or as many as the first has; none is empty."""
    # If they `may_be_blank`, all choices of a row may be empty.
    if len(columns) == 1:
        rows = table.lists(columns[0])
    else:
        rows = list(zip(*(table.column(column) for column in columns), strict=True))
    for number, row in enumerate(rows):
        mistake = _find_mistake(row, len(rows[0]))
        if mistake and not (may_be_blank and len(row) == count and not any(map(str.strip, row))):
            raise UserError(f"{table.place(number)}: {mistake}")
    require(
        count in (0, len(rows[0])),
        f"{table.path}: {len(rows[0])} choices a row; it must be {count}, as in training",
    )
    if not begin:
        return rows
    return [
        tuple(f"{start} {text}" if start else text for text in row)
        for start, row in zip(table.column(begin), rows, strict=True)
    ]


def _find_mistake(choices: Sequence[str], count: int) -> str:
    """Return what is wrong with the choices of a row that must have so many; "" if nothing."""
    if count < 2:
        return f"{count} choice; there must be two or more"
    if len(choices) != count:
        return f"{len(choices)} choices; it must have {count}, as the first row has"
    empty = [number for number, text in enumerate(choices) if not text.strip()]
    return f"choice {empty[0]} is empty; every row must have {count}" if empty else ""


def read_swag(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return SWAG from its folder: train.csv, val.csv and, if there is one, test.csv, or .parquet.

    The context is `sent1`, and a choice is `sent2`, where the second sentence begins, and an
    ending. A test file may lack the labels.
    """
    files = find_splits(data, TABLE_FORMATS)
    tables = {split: [read_table(path) for path in paths] for split, paths in files.items()}
    endings = {
        table.path: [name for name in table.columns if name.startswith("ending")]
        for parts in tables.values()
        for table in parts
    }
    first = next(iter(endings.values()))
    for path, names in endings.items():
        require(len(names) > 1, f"{path}: no columns ending0, ending1, ...; give SWAG's folder")
        require(
            names == first,
            f"{path}: {len(names)} choices a row; it must be {len(first)}, as in training",
        )
    return read_choice_task(name, tables, "sent1", first, "label", begin="sent2")
