"""Texts and pairs of texts with an answer each: what their families share."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from electra.errors import UserError, require
from electra.model.config import EncoderConfig
from electra.model.task_heads import ClassifierHead, FeatureHead, PairHead
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import (
    PLAIN,
    Columns,
    Family,
    Inputs,
    Record,
    choose_columns,
    is_plain,
    is_unlabelled,
)
from electra.tasks.rows import Outputs, Rows, TaskBatch, encode_texts, pack_rows
from electra.text.table_files import TableFile, read_table, read_texts
from electra.text.tables import TABLE_FORMATS, require_format
from electra.tokenizing.tokenizer import Tokenizer


class Example(NamedTuple):
    """A text or a pair of texts, and its answer."""

    text_a: str
    text_b: str | None
    label: Any
    """As the family has it: index of a label, indices of labels, numbers; None if it is unknown."""


@dataclass(frozen=True)
class Texts(Family):
    """A family whose every item is a text or a pair of texts. The output is "logits"."""

    reads_features: ClassVar[bool] = True
    pools: ClassVar[bool] = True

    metrics: tuple[str, ...] = ()
    has_pairs: bool = field(default=False, kw_only=True)
    """Whether an example is a pair of texts."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Numbers that the head gives for each row."""

    @abstractmethod
    def encode_labels(self, labels: Sequence[Any]) -> Tensor:
        """Return the labels of examples, of which any may be None, as the target "labels"."""

    @property
    def fields(self) -> tuple[str, ...]:
        """One text or two."""
        return ("text_a", "text_b") if self.has_pairs else ("text",)

    def parse(self, record: Record) -> Example:
        """Return {"text": ...}, or {"text_a": ..., "text_b": ...} of pairs, as an example."""
        if self.has_pairs:
            return Example(record.text("text_a"), record.text("text_b"), None)
        return Example(record.text("text"), None, None)

    def read_inputs(
        self, path: Path, columns: Sequence[str], trained: Columns, separator: str = ""
    ) -> Inputs:
        """Return the rows of a table, or the lines of plain text."""
        if is_plain(path):
            require(
                len(trained.inputs) == 1 and not columns,
                f"{path} is plain text, a text a line; {' and '.join(columns or trained.inputs)} "
                f"must be columns of a {', '.join(TABLE_FORMATS)} file",
            )
            lines = [{"text": line} for line in read_texts(path)]
            return Inputs(lines, lines)
        require_format(path, (PLAIN, *TABLE_FORMATS))
        table = read_table(path, separator=separator)
        texts = [table.column(each) for each in choose_columns(table, columns, trained.inputs)]
        found = [dict(zip(self.fields, each, strict=True)) for each in zip(*texts, strict=True)]
        return Inputs(found, table.rows)

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, sequence_length: int
    ) -> Rows:
        """Return each example as one row of at most `sequence_length` tokens."""
        firsts = encode_texts(tokenizer, [each.text_a for each in examples], sequence_length)
        pairs = [each.text_b for each in examples if each.text_b is not None]
        seconds = iter(encode_texts(tokenizer, pairs, sequence_length))
        texts = [
            (first, None if each.text_b is None else next(seconds))
            for each, first in zip(examples, firsts, strict=True)
        ]
        labels = self.encode_labels([each.label for each in examples])
        return pack_rows(texts, {"labels": labels}, tokenizer, sequence_length, examples)

    def build_head(self, sizes: EncoderConfig, config: FinetuneConfig) -> nn.Module:
        """Return a linear layer on one state of a row or on those of two texts, or BiLSTMs."""
        size, count, drop = sizes.hidden_size, self.num_outputs, config.dropout_prob
        if config.features.layers:
            return FeatureHead(size, count, config.features, of="row", dropout_prob=drop)
        if config.pooling == "segments" and self.has_pairs:
            return PairHead(size + sizes.embedding_size, count, drop)
        pooling = "mean" if config.pooling == "segments" else config.pooling
        return ClassifierHead(sizes, count, drop, pooling)

    def answer(self, head: nn.Module, states: Tensor, batch: TaskBatch) -> Outputs:
        """Return (B, `num_outputs`) numbers."""
        rows = states, batch.attention_mask
        if isinstance(head, PairHead):
            assert batch.token_type_ids is not None
            return {"logits": head(*rows, batch.token_type_ids)}
        return {"logits": head(*rows)}


def read_pairs(table: TableFile, columns: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the text of each row and the second one of a pair, whose columns are one or two."""
    firsts, *others = [table.column(each) for each in columns]
    return list(zip(firsts, others[0] if others else [None] * len(firsts), strict=True))


def combine(pairs: Iterable[tuple[str, str | None]], labels: Iterable[Any]) -> list[Example]:
    """Return an example for each text or pair and its label."""
    return [Example(a, b, label) for (a, b), label in zip(pairs, labels, strict=True)]


def read_cells(
    table: TableFile,
    split: str,
    column: str,
    read: Callable[[str], Any],
    labels: Sequence[str] = (),
    *,
    fractions: bool = False,
) -> list[Any]:
    """Return what `read` makes of each cell of a column; its refusals get the cell's place.

    All are None if a split other than train and dev has no label: the column is missing, or
    `is_unlabelled`. `labels` are cells that are labels in any case; with `fractions`, cells may be
    such numbers.
    """
    if lacks_labels(table, split, column, labels):
        return [None] * len(table.rows)
    cells = table.column(column, fractions=fractions)
    require(
        not is_unlabelled(cells, labels),
        f"{table.path}: every {column!r} is {cells[0]!r}, as in a file without labels; {split} "
        "must have them",
    )
    found = []
    for number, cell in enumerate(cells):
        try:
            found.append(read(cell))
        except UserError as error:
            raise UserError(f"{table.place(number)}: {error}") from None
    return found


def lacks_labels(table: TableFile, split: str, column: str, labels: Sequence[str] = ()) -> bool:
    """Return whether a split that needs no labels has none in a column."""
    cells = (row.get(column) for row in table.rows)
    return not split.startswith(("train", "dev")) and is_unlabelled(cells, labels)
