"""Tasks whose files are tables with a text, a pair of texts or choices, and a label or a number."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from electra.errors import count_of, require
from electra.tasks.choice import MultipleChoice, read_swag
from electra.tasks.classification import Classification, order_labels, read_names
from electra.tasks.config import OWN_METRICS, FinetuneConfig, OwnTaskConfig
from electra.tasks.family import Family, Task
from electra.tasks.multi_label import MultiLabel, find_labels, read_sets
from electra.tasks.record import Asked, Columns, Records, find_splits
from electra.tasks.regression import Regression, find_ranges, read_scaled
from electra.tasks.texts import Texts
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
"""Separators of several labels in one cell."""


Splits = Mapping[str, Sequence[Records]]
"""The records of each file of each split."""
Answers = Callable[[str, Records], list[Any]]
"""Returns the label of each record of a split's file, None where it is unknown."""
Learnt = tuple[Texts | MultipleChoice, Answers]
"""The family of a task, and what reads its labels."""


def read_own_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of a folder's tables, or of one table.

    The labels are those of train; whole numbers are names. The ranges of a regression are
    those of train; numbers of the other files may be outside.
    """
    own = config.own
    named = {split: getattr(own, split) for split in ("train", "dev", "test")}
    chosen = {split: [name] for split, name in named.items() if name is not None}
    files = find_splits(data, TABLE_FORMATS, chosen=chosen, setting="own")
    paths = [path for parts in files.values() for path in parts]
    require(
        own.separator == "" or any(format_of(path) in SEPARATED_FORMATS for path in paths),
        f"own.separator is for .csv and .tsv files, and {data} has none",
    )
    tables = {
        split: [read_table(path, separator=own.between) for path in parts]
        for split, parts in files.items()
    }
    train = tables["train"][0]
    columns = _choose_columns(train, own)
    records = {split: [Records(table, columns) for table in part] for split, part in tables.items()}
    family, answers = KINDS[own.kind](records["train"], own)
    usual = OWN_METRICS[own.kind]
    headline = own.metric or usual[0]
    metrics = (headline, *(metric for metric in usual if metric != headline))
    task = label_all(own.name, replace(family, metrics=metrics), answers, records)
    notes = (*_note_columns(train, columns), *_note_labels(task), *_note_texts(task))
    return replace(task, notes=notes)


def read_swag_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return SWAG from its folder: train.csv, val.csv and, if there is one, test.csv, or .parquet.

    A test file may lack the labels.
    """
    files = find_splits(data, TABLE_FORMATS)
    records = {
        split: [read_swag(path, Asked()) for path in paths] for split, paths in files.items()
    }
    return label_all(name, *_learn_choices(records["train"], config.own), records)


def label_all(name: str, family: Family, read: Answers, records: Splits) -> Task:
    """Return the task of records, each with the `label` that is read of it."""
    examples = {
        split: [
            each._replace(label=label)
            for part in parts
            for each, label in zip(family.parse_all(part), read(split, part), strict=True)
        ]
        for split, parts in records.items()
    }
    files = tuple(part.table.path for parts in records.values() for part in parts)
    return Task(name, family, examples, files=files, columns=records["train"][0].columns)


def _learn_names(train: Sequence[Records], own: OwnTaskConfig) -> Learnt:
    """Return the family of one label a text."""
    (column,), tables = train[0].columns.labels, [each.table for each in train]
    for table in tables:
        require(
            not isinstance(table.rows[0].get(column), list),
            f"{table.place(0)}: {column!r} is a list; own.kind=multi_label takes several labels",
        )
    read = [(table, [(name,) for name in table.column(column)]) for table in tables]
    labels = _collect_labels(read, column)
    path = tables[0].path
    require(len(labels) > 1, f"{path}: every {column!r} is {labels[0]!r}; two labels are needed")
    family = Classification(labels=labels, has_pairs=len(train[0].columns.inputs) > 1)
    return family, partial(read_names, labels=labels)


def _learn_sets(train: Sequence[Records], own: OwnTaskConfig) -> Learnt:
    """Return the family of several labels a text."""
    columns, separator = train[0].columns.labels, own.label_separator
    sets = [(p.table, [each or () for each in read_sets("train", p, separator)]) for p in train]
    labels = columns if len(columns) > 1 else _collect_labels(sets, ", ".join(columns))
    kinds = {names for _, part in sets for names in part}
    require(
        len(kinds) > 1,
        f"{train[0].table.path}: the labels of every row are {[*min(kinds)]}; two different sets "
        "are needed",
    )

    def read(split: str, part: Records) -> list[Any]:
        return find_labels(part.table, read_sets(split, part, separator), labels)

    return MultiLabel(labels=labels, has_pairs=len(train[0].columns.inputs) > 1), read


def _learn_numbers(train: Sequence[Records], own: OwnTaskConfig) -> Learnt:
    """Return the family of a number or several for a text."""
    names, ranges = train[0].columns.labels, find_ranges(train)
    family = Regression(names=names, ranges=ranges, has_pairs=len(train[0].columns.inputs) > 1)
    return family, partial(read_scaled, ranges=ranges)


def _learn_choices(train: Sequence[Records], own: OwnTaskConfig) -> Learnt:
    """Return the family of as many choices as the first record has."""
    (_, *names), table = train[0].columns.inputs, train[0].table
    count = len(names) if len(names) > 1 else len(table.lists(names[0])[0])
    require(count > 1, f"{table.place(0)}: {count} choice; there must be two or more")
    family = MultipleChoice(count)
    return family, partial(read_names, labels=family.labels)


KINDS: Mapping[str, Callable[[Sequence[Records], OwnTaskConfig], Learnt]] = {
    "classification": _learn_names,
    "multi_label": _learn_sets,
    "regression": _learn_numbers,
    "choice": _learn_choices,
}
"""What makes of train the family of a kind, and what reads the labels of any file for it."""


def _choose_columns(train: TableFile, own: OwnTaskConfig) -> Columns:
    """Return the columns of texts, choices and labels."""
    texts = _choose_texts(train, own)
    if own.kind == "choice":
        choices = [column.strip() for column in (own.choices or "").split(",")]
        return Columns((texts[0], *choices), (own.label,))
    labels = _choose_labels(train, own)
    both = [each for each in labels if each in texts]
    require(not both, f"own.label must be another column than the texts, not {', '.join(both)}")
    return Columns(tuple(texts), labels)


def _choose_labels(train: TableFile, own: OwnTaskConfig) -> tuple[str, ...]:
    """Return the columns that own.label names: several are separated by commas."""
    if own.kind == "classification" or own.label in train.columns:
        return (own.label,)
    names = [name.strip() for name in own.label.split(",")]
    twice = [name for name in names if names.count(name) > 1]
    require(not twice, f"own.label names {''.join(twice[:1])!r} twice")
    return tuple(names)


def _note_columns(train: TableFile, columns: Columns) -> Iterator[str]:
    """Yield which columns of train are not read."""
    read = columns.inputs + columns.labels
    if unread := [column for column in train.columns if column not in read]:
        yield (
            f"columns that are not read: {', '.join(unread)} (read: {', '.join(read)}; "
            "own.text and own.text_b choose the columns of the texts)"
        )


def _note_labels(task: Task) -> Iterator[str]:
    """Yield notes on labels that a user may not expect."""
    if isinstance(task.family, Classification):
        yield from _note_joined(task.family.labels)
    if isinstance(task.family, MultiLabel):
        yield from _note_sets(task, task.family.labels)


def _note_joined(labels: Sequence[str]) -> Iterator[str]:
    """Yield a note if cells seem to hold several labels: their parts occur in other labels."""
    for separator in SEPARATORS_OF_LABELS:
        parts = {each: {part.strip() for part in each.split(separator)} for each in labels}
        counts = Counter(part for each in parts.values() for part in each)
        several = [
            each for each, of in parts.items() if len(of) > 1 and all(counts[p] > 1 for p in of)
        ]
        if several:
            yield (
                f"{several[0]!r} looks like several labels in one cell; each such cell is a label "
                f"of its own ({len(several):,} of {len(labels):,}) unless own.kind=multi_label "
                f"own.label_separator={separator}"
            )


def _note_sets(task: Task, labels: Sequence[str]) -> Iterator[str]:
    """Yield how many texts have no label, which labels train has none of, and what dev chooses."""
    for split, part in task.examples.items():
        if without := sum(each.label == () for each in part):
            yield f"no label applies to {without:,} of {count_of(len(part), 'example')} of {split}"
    known = {place for each in task.examples["train"] for place in each.label}
    if never := [label for place, label in enumerate(labels) if place not in known]:
        yield f"train has no example of {', '.join(never)}"
    yield (
        "dev chooses the threshold of each label: its scores are not those of unseen texts, for "
        "which a test file is needed"
    )


def _note_texts(task: Task) -> Iterator[str]:
    """Yield notes on texts that distort scores: blank texts, and dev texts that are in train."""
    for split, part in task.examples.items():
        if blank := sum(map(task.family.is_blank, part)):
            yield f"{count_of(blank, 'example')} of {split} without text"
    dev = task.examples.get("dev", [])
    known = {each[:2] for each in task.examples["train"]}
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


def _collect_labels(
    train: Sequence[tuple[TableFile, Sequence[Sequence[str]]]], column: str
) -> tuple[str, ...]:
    """Return the names of labels, in the order of `order_labels`, from those of each row."""
    places: dict[str, str] = {}
    for table, rows in train:
        for number, names in enumerate(rows):
            for name in names:
                if name not in places:
                    places[name] = table.place(number)
    table, labels = train[0][0], order_labels(places)
    if known := table.names.get(column, ()):  # in the order of their numbers
        labels = tuple(dict.fromkeys(name for name in (*known, *labels) if name in places))
    sizes = [len(names) for _, rows in train for names in rows]
    require(
        2 * len(labels) <= sum(sizes),
        f"{table.path}: {column!r} has {len(labels)} labels in {len(sizes)} rows; a label must "
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
