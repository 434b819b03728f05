"""A user's own task: tables with a text, a pair, or a context and choices, and a label."""

import math
from pathlib import Path

import numpy as np

from electra.config import OWN_METRICS, OwnTaskConfig
from electra.errors import UserError, require
from electra.tasks.choice import MultipleChoice, count_choices, read_choice_questions
from electra.tasks.classification import Classification, Example, read_examples
from electra.tasks.family import Task
from electra.text.tables import TABLE_FORMATS, TableFile, read_table, stem_of

TEXT_COLUMNS = ("text", "sentence", "text_a", "sentence1")
TEXT_B_COLUMNS = ("text_b", "sentence2")
TABLE_FILE_NAMES = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid", "val"),
    "test": ("test",),
}


def read_own_task(data: Path, config: OwnTaskConfig) -> Task:
    """Return a task from a folder's train, dev and, if there is one, test file.

    The labels are those of train, sorted; whole numbers are names. The range of a regression is
    that of train; labels of the other files may be outside.

    Raises:
        UserError: A file or column is missing or ambiguous, a file is empty, dev or test has a
            label that train lacks, or the labels of train are not those of such a task.
    """
    files = {split: _find_file(data, split, getattr(config, split)) for split in TABLE_FILE_NAMES}
    tables = {split: read_table(path) for split, path in files.items() if path is not None}
    text, text_b = _choose_columns(tables["train"], config)
    if config.kind == "choice":
        return _read_choice(tables, text, config)
    is_regression = config.kind == "regression"
    labels = () if is_regression else _collect_labels(tables["train"], config.label)
    examples = {
        split: read_examples(
            table,
            labels or (-math.inf, math.inf),
            text=text,
            text_b=text_b,
            label=_find_label(split, table, config),
        )
        for split, table in tables.items()
    }
    label_range = _find_range(tables, examples, config.label) if is_regression else None
    return Task(
        config.name,
        Classification(_order_metrics(config), labels, label_range, has_pairs=text_b is not None),
        examples,
        files=tuple(table.path for table in tables.values()),
        columns=tuple(column for column in (text, text_b, config.label) if column),
    )


def _find_range(
    tables: dict[str, TableFile], examples: dict[str, list[Example]], column: str
) -> tuple[float, float]:
    """Return the least and the greatest label of train, if every label can be scaled by them."""
    numbers = [example.label for example in examples["train"] if example.label is not None]
    least, greatest = float(min(numbers)), float(max(numbers))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        size = np.float32(greatest) - np.float32(least)
        require(
            size != 0,
            f"{tables['train'].path}: every {column!r} is {least:g} in float32; two different "
            "numbers are needed",
        )
        for split, table in tables.items():
            for number, example in enumerate(examples[split]):
                if example.label is None:
                    continue
                scaled = (np.float32(example.label) - np.float32(least)) / size
                require(
                    bool(np.isfinite(scaled)),
                    f"{table.place(number)}: the label {example.label:g} is beyond float32 on the "
                    f"scale from {least:g} to {greatest:g}",
                )
    return least, greatest


def _read_choice(tables: dict[str, TableFile], text: str, config: OwnTaskConfig) -> Task:
    columns = [column.strip() for column in (config.choices or "").split(",")]
    examples = {
        split: read_choice_questions(
            table, context=text, choices=columns, label=_find_label(split, table, config)
        )
        for split, table in tables.items()
    }
    return Task(
        config.name,
        MultipleChoice(count_choices(tables, examples)),
        examples,
        files=tuple(table.path for table in tables.values()),
        columns=(text, *columns, config.label),
    )


def _order_metrics(config: OwnTaskConfig) -> tuple[str, ...]:
    """Return all metrics of the kind of task, the chosen one first."""
    metrics = OWN_METRICS[config.kind]
    chosen = config.metric or metrics[0]
    return (chosen, *(metric for metric in metrics if metric != chosen))


def _find_label(split: str, table: TableFile, config: OwnTaskConfig) -> str | None:
    """Return the column of the label, which a test file need not have."""
    return None if split == "test" and config.label not in table.columns else config.label


def _find_file(data: Path, split: str, chosen: str | None) -> Path | None:
    if chosen is not None:
        require((data / chosen).is_file(), f"own.{split}: no file {data / chosen}")
        return data / chosen
    require(data.is_dir(), f"{data} is not a folder; give the one with train and dev files")
    found = sorted(
        path
        for path in data.iterdir()
        if stem_of(path, TABLE_FORMATS) in TABLE_FILE_NAMES[split] and path.is_file()
    )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{data} has several {split} files: {names}; choose one with own.{split}")
    if not found and split != "test":
        first, *others = TABLE_FORMATS
        raise UserError(
            f"{data} has no {split} file; add {split}{first} (or {', '.join(others)}), or name it "
            f"with own.{split}"
        )
    return found[0] if found else None


def _choose_columns(train: TableFile, config: OwnTaskConfig) -> tuple[str, str | None]:
    if config.text is not None:
        return config.text, config.text_b
    text = next((column for column in TEXT_COLUMNS if column in train.columns), None)
    if text is None:
        raise UserError(
            f"{train.path}: no column named {', '.join(TEXT_COLUMNS)}; choose one of "
            f"{', '.join(train.columns)} with own.text"
        )
    detected = next((column for column in TEXT_B_COLUMNS if column in train.columns), None)
    return text, config.text_b or detected


def _collect_labels(train: TableFile, column: str) -> tuple[str, ...]:
    names = train.column(column)
    labels = tuple(sorted(set(names)))
    if len(labels) < 2:
        raise UserError(f"{train.path}: every {column!r} is {labels[0]!r}; two labels are needed")
    if 2 * len(labels) > len(names):
        raise UserError(
            f"{train.path}: {column!r} has {len(labels)} labels in {len(names)} rows; a label must "
            "occur twice on average. Choose another column with own.label, or own.kind=regression "
            "if it holds numbers"
        )
    for number, name in enumerate(names):
        require(
            name != "" and name.isprintable(),
            f"{train.place(number)}: the label {name!r} must be printable and not empty",
        )
    return labels
