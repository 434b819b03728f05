"""A task: labelled texts, the names of the labels, and what is measured."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from electra.config import UserError, did_you_mean, require
from electra.tasks.table import Table


class Example(NamedTuple):
    """A text or a pair of texts, and its label."""

    text_a: str
    text_b: str | None
    label: int | float | None
    """Place in the task's label names, or the number itself; None where it is not known."""


@dataclass(frozen=True)
class Task:
    """What is asked, and every example of it."""

    name: str
    labels: tuple[str, ...]
    """Their names; none where the label is a number."""
    metrics: tuple[str, ...]
    """Names in metrics.METRICS; the first is the headline."""
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    """Empty if there is no test file; its labels may be unknown."""
    label_range: tuple[float, float] | None = None
    """Least and greatest label of a regression; None: the labels are names."""
    epochs: int = 3
    """Passes over train if the user does not say. Source: Table 7."""
    files: tuple[Path, ...] = ()
    """What was read, for manifests."""
    columns: tuple[str, ...] = ()
    """Which columns were read as text, second text if any, and label."""

    @property
    def num_outputs(self) -> int:
        """Numbers that a model says of an example: one for each label, or one."""
        return len(self.labels) or 1

    @property
    def headline(self) -> str:
        """The metric that summaries are made of."""
        return self.metrics[0]


def read_examples(
    table: Table,
    labels: tuple[str, ...] | tuple[float, float],
    *,
    text: str,
    text_b: str | None,
    label: str | None,
) -> list[Example]:
    """Return an example for each row of a table.

    Args:
        table: The rows.
        labels: The names of the labels, in the task's order; or the least and the greatest number.
        text: Column of the text.
        text_b: Column of the second text; None: single texts.
        label: Column of the label; None: the labels are not known.

    Raises:
        UserError: A column is missing, or a label is none of `labels`.
    """
    firsts = table.column(text)
    seconds = [None] * len(firsts) if text_b is None else table.column(text_b)
    names = [None] * len(firsts) if label is None else table.column(label)
    examples = []
    for line, first, second, name in zip(table.lines, firsts, seconds, names, strict=True):
        try:
            place = None if name is None else _read_label(name, labels)
        except UserError as error:
            raise UserError(f"{table.path} line {line}: {error}") from None
        examples.append(Example(first, second, place))
    return examples


def _read_label(name: str, labels: tuple[str, ...] | tuple[float, float]) -> int | float:
    if isinstance(labels[0], str):
        if name not in labels:
            raise UserError(f"unknown label {name!r}{did_you_mean(name, map(str, labels))}")
        return labels.index(name)
    least, greatest = (float(label) for label in labels)
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    require(
        least <= value <= greatest,
        f"the label must be a number in [{least:g}, {greatest:g}], not {name!r}",
    )
    return value
