"""Multiple choice: which of several texts continues or answers another.

Each choice is a row, [CLS] context [SEP] choice [SEP]. The output layer gives each row one logit,
and the softmax is over the logits of a question. Source: section 4.4 of the BERT paper (SWAG).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from electra.assignments import from_dict
from electra.errors import require
from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead
from electra.tasks.classification import Labelled
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Constant, WrittenHead
from electra.tasks.record import Asked, Columns, Record, Records
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.table_files import read_table
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
    lists: ClassVar[tuple[str, ...]] = ("choices",)
    pools: ClassVar[bool] = True

    num_choices: int
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

    def encode(
        self, examples: Sequence[ChoiceQuestion], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return each choice as a row of at most `sequence_length` tokens."""
        contexts = encode_texts(tokenizer, [each.context for each in examples], sequence_length)
        texts = [text for question in examples for text in question.choices]
        choices = iter(encode_texts(tokenizer, texts, sequence_length))
        pairs = [(context, next(choices)) for context in contexts for _ in range(self.num_choices)]
        labels = torch.tensor([-1 if each.label is None else each.label for each in examples])
        counts = [self.num_choices] * len(examples)
        return pack_rows(pairs, {"labels": labels}, tokenizer, sequence_length, examples, counts)

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
        """Return the family's name and the number of choices."""
        return {"family": "choice", "num_choices": self.num_choices}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Return the family of a saved model."""
        return from_dict(cls, {"num_choices": facts["num_choices"]})


def read_swag(path: Path, asked: Asked) -> Records:
    """Return SWAG's questions: contexts and choices, which are a beginning and one of the endings.

    They are in the columns sent1, sent2 and ending0, ending1, ..., unless others are named.
    """
    table = read_table(path, separator=asked.separator)
    endings = [name for name in table.columns if name.startswith("ending")]
    context, *columns = asked.named or ("sent1", "sent2", *endings)
    require(len(columns) > 2, f"{path}: no columns ending0, ending1, ...; give SWAG's folder")
    rows = []
    texts = zip(*map(table.column, columns), strict=True)
    for row, (start, *others) in zip(table.rows, texts, strict=True):
        choices = [f"{start} {text}" if start and text.strip() else text for text in others]
        rows.append({**row, "choices": choices})
    whole = replace(table, columns=(*table.columns, "choices"), rows=rows)
    return Records(whole, Columns((context, "choices"), ("label",)), table.rows)
