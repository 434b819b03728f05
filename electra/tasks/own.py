"""A task of your own: tables with a text, a pair of texts or choices, and a label or a number."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from electra.errors import UserError, count_of, require
from electra.tasks.choice import read_choice_task
from electra.tasks.classification import Classification, Example, order_labels, read_examples
from electra.tasks.config import OWN_METRICS, OwnTaskConfig
from electra.tasks.family import Task, find_splits
from electra.text.table_files import TableFile, read_table
from electra.text.tables import SEPARATED_FORMATS, TABLE_FORMATS, format_of

TEXT_COLUMNS = ("text", "sentence", "text_a", "sentence1")
TEXT_B_COLUMNS = ("text_b", "sentence2", "text_pair")
PAIRS = (
    *(("text_a", "text_b"), ("sentence1", "sentence2"), ("question1", "question2")),
    *(("premise", "hypothesis"), ("question", "sentence"), ("text1", "text2")),
    *(("sentence_a", "sentence_b"), ("query", "passage")),
)
"""Columns that are the two texts of a pair, where a table has both: GLUE's and others of hubs."""
SEPARATORS_OF_LABELS = ",;|"
"""What may stand between several labels in one cell."""


def read_own_task(data: Path, config: OwnTaskConfig) -> Task:
    """Return the task of a folder's tables, or of one table.

    The labels are those of train; whole numbers are names. The range of a regression is
    that of train; labels of the other files may be outside.
    """
    named = {split: getattr(config, split) for split in ("train", "dev", "test")}
    chosen = {split: [name] for split, name in named.items() if name is not None}
    files = find_splits(data, TABLE_FORMATS, chosen=chosen, setting="own")
    paths = tuple(path for parts in files.values() for path in parts)
    require(
        config.separator == "" or any(format_of(path) in SEPARATED_FORMATS for path in paths),
        f"own.separator is for .csv and .tsv files, and {data} has none",
    )
    tables = {
        split: [read_table(path, separator=config.between) for path in parts]
        for split, parts in files.items()
    }
    texts = _choose_texts(tables["train"][0], config)
    if config.kind == "choice":
        choices = [column.strip() for column in (config.choices or "").split(",")]
        task = read_choice_task(config.name, tables, texts[0], choices, config.label)
        return replace(task, notes=tuple(_note_columns(tables["train"][0], task.columns)))
    is_regression = config.kind == "regression"
    labels = () if is_regression else _collect_labels(tables["train"], config.label)
    read = {
        split: [
            (table, read_examples(table, texts, split, config.label, labels)) for table in parts
        ]
        for split, parts in tables.items()
    }
    found = {split: [each for _, part in parts for each in part] for split, parts in read.items()}
    metrics = OWN_METRICS[config.kind]
    headline = config.metric or metrics[0]
    metrics = (headline, *(metric for metric in metrics if metric != headline))
    label_range = _find_range(read, config.label) if is_regression else None
    read_columns = (*texts, config.label)
    notes = (*_note_columns(tables["train"][0], read_columns), *_note_labels(labels))
    return Task(
        config.name,
        Classification(metrics, labels, label_range, has_pairs=len(texts) > 1),
        found,
        files=paths,
        columns=read_columns,
        notes=(*notes, *_note_texts(found)),
    )


def _note_columns(train: TableFile, read: Sequence[str]) -> Iterator[str]:
    """Yield which columns of train are not read."""
    if unread := [column for column in train.columns if column not in read]:
        yield (
            f"columns that are not read: {', '.join(unread)} (read: {', '.join(read)}; "
            "own.text and own.text_b choose the columns of the texts)"
        )


def _note_labels(labels: Sequence[str]) -> Iterator[str]:
    """Yield that labels look like several in one cell: their parts are, or are in, other labels."""
    for separator in SEPARATORS_OF_LABELS:
        parts = {each: {part.strip() for part in each.split(separator)} for each in labels}
        counts = Counter(part for each in parts.values() for part in each)
        several = [
            each for each, of in parts.items() if len(of) > 1 and all(counts[p] > 1 for p in of)
        ]
        if several:
            yield (
                f"{several[0]!r} looks like several labels in one cell, which is not supported: "
                f"each such cell is a label of its own ({len(several):,} of {len(labels):,})"
            )


def _note_texts(examples: dict[str, list[Example]]) -> Iterator[str]:
    """Yield what of the texts makes scores wrong: blank ones, and those of dev that train has."""
    for split, part in examples.items():
        if blank := sum(not f"{each.text_a}{each.text_b or ''}".strip() for each in part):
            yield f"{count_of(blank, 'example')} of {split} without text"
    dev = examples.get("dev", [])
    known = {each[:2] for each in examples["train"]}
    shared = sum(each[:2] in known for each in dev)
    if 20 * shared > len(dev):  # fewer move no score by much
        yield f"{shared:,} of {count_of(len(dev), 'dev example')} have a text that is also in train"


def _choose_texts(train: TableFile, config: OwnTaskConfig) -> list[str]:
    """Return the column of the text, or those of both texts of a pair."""
    text, text_b = config.text, config.text_b
    if text is None:
        if text_b is None and config.kind != "choice":
            for pair in PAIRS:
                if set(pair) <= {*train.columns} - {config.label}:
                    return list(pair)
        text = next((column for column in TEXT_COLUMNS if column in train.columns), "")
        require(
            text != "",
            f"{train.path}: no column named {', '.join(TEXT_COLUMNS)}; choose one of "
            f"{', '.join(train.columns)} with own.text",
        )
        detected = (column for column in TEXT_B_COLUMNS if column in train.columns)
        text_b = text_b or next(detected, None)
    return [text] if text_b is None else [text, text_b]


def _collect_labels(train: list[TableFile], column: str) -> tuple[str, ...]:
    """Return the names of a classification's labels, in the order of `order_labels`."""
    places: dict[str, str] = {}
    for table in train:
        for number, name in enumerate(table.column(column)):
            if name not in places:
                places[name] = table.place(number)
    path, labels = train[0].path, order_labels(places)
    if names := train[0].names.get(column, ()):  # in the order of their numbers
        labels = tuple(dict.fromkeys(name for name in (*names, *labels) if name in places))
    count = sum(len(table.rows) for table in train)
    require(len(labels) > 1, f"{path}: every {column!r} is {labels[0]!r}; two labels are needed")
    require(
        2 * len(labels) <= count,
        f"{path}: {column!r} has {len(labels)} labels in {count} rows; a label must "
        "occur twice on average. Choose another column with own.label, or own.kind=regression if "
        "it holds numbers",
    )
    for name, place in places.items():
        require(name != "", f"{place}: {column!r} is empty; leave the row out, or give it a label")
        require(name.isprintable(), f"{place}: the label {name!r} must be printable")
        is_one = (twin := name.strip()) == name or twin not in places
        require(
            is_one,
            f"{place}: the labels {name!r} and {twin!r} differ only in spaces; use one spelling",
        )
    return labels


def _find_range(
    read: dict[str, list[tuple[TableFile, list[Example]]]], column: str
) -> tuple[float, float]:
    """Return the least and the greatest label of train, if every label can be scaled by them."""
    train = [each.label or 0.0 for _, part in read["train"] for each in part]
    least, greatest = float(min(train)), float(max(train))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        size = np.float32(greatest) - np.float32(least)
        require(
            size != 0,
            f"{read['train'][0][0].path}: every {column!r} is {least:g} in float32; two different "
            "numbers are needed",
        )
        for table, part in (each for parts in read.values() for each in parts):
            for number, label in enumerate(each.label for each in part):
                fits = label is None or np.isfinite((np.float32(label) - np.float32(least)) / size)
                if not fits:
                    raise UserError(
                        f"{table.place(number)}: the label {label:g} is beyond float32 on the "
                        f"scale from {least:g} to {greatest:g}"
                    )
    return least, greatest
