"""A task: labelled texts, the names of the labels, and what is measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from electra.config import UserError, did_you_mean
from electra.tasks.table import Table


class Example(NamedTuple):
    """A text or a pair of texts, and its label."""

    text_a: str
    text_b: str | None
    label: int | None
    """Place in the task's label names; None where it is not known."""


@dataclass(frozen=True)
class Task:
    """What is asked, and every example of it."""

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    """Names in metrics.METRICS; the first is the headline."""
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    """Empty if there is no test file; its labels may be unknown."""
    epochs: int = 3
    """Passes over train if the user does not say. Source: Table 7."""
    files: tuple[Path, ...] = ()
    """What was read, for manifests."""
    columns: tuple[str, ...] = ()
    """Which columns were read as text, second text if any, and label."""

    @property
    def headline(self) -> str:
        """The metric that summaries are made of."""
        return self.metrics[0]


def read_examples(
    table: Table, labels: Iterable[str], *, text: str, text_b: str | None, label: str | None
) -> list[Example]:
    """Return an example for each row of a table.

    Args:
        table: The rows.
        labels: The names of the labels, in the task's order.
        text: Column of the text.
        text_b: Column of the second text; None: single texts.
        label: Column of the label; None: the labels are not known.

    Raises:
        UserError: A column is missing, or a label is none of `labels`.
    """
    places = {name: place for place, name in enumerate(labels)}
    firsts = table.column(text)
    seconds = [None] * len(firsts) if text_b is None else table.column(text_b)
    names = [None] * len(firsts) if label is None else table.column(label)
    examples = []
    for line, first, second, name in zip(table.lines, firsts, seconds, names, strict=True):
        if name is not None and name not in places:
            raise UserError(
                f"{table.path} line {line}: unknown label {name!r}{did_you_mean(name, places)}"
            )
        examples.append(Example(first, second, None if name is None else places[name]))
    return examples
