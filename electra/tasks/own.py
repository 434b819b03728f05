"""A task of your own: tables with a text, a pair of texts or choices, and a label or a number."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from electra.errors import count_of, require
from electra.tasks.choice import read_choice_task
from electra.tasks.classification import Classification, order_labels, read_names
from electra.tasks.config import OWN_METRICS, FinetuneConfig, OwnTaskConfig
from electra.tasks.family import Columns, Task, find_splits
from electra.tasks.multi_label import MultiLabel, find_labels, read_sets
from electra.tasks.regression import Regression, find_range, read_numbers
from electra.tasks.texts import Example, Texts, combine, read_pairs
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


Tables = Mapping[str, Sequence[TableFile]]
"""The tables of each split."""
Answers = dict[str, list[list[Any]]]
"""What is known of each row of these tables."""


def read_own_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of a folder's tables, or of one table.

    The labels are those of train; whole numbers are names. The ranges of a regression are
    those of train; numbers of the other files may be outside.
    """
    own = config.own
    named = {split: getattr(own, split) for split in ("train", "dev", "test")}
    chosen = {split: [name] for split, name in named.items() if name is not None}
    files = find_splits(data, TABLE_FORMATS, chosen=chosen, setting="own")
    paths = tuple(path for parts in files.values() for path in parts)
    require(
        own.separator == "" or any(format_of(path) in SEPARATED_FORMATS for path in paths),
        f"own.separator is for .csv and .tsv files, and {data} has none",
    )
    tables = {
        split: [read_table(path, separator=own.between) for path in parts]
        for split, parts in files.items()
    }
    train = tables["train"][0]
    texts = _choose_texts(train, own)
    if own.kind == "choice":
        choices = [column.strip() for column in (own.choices or "").split(",")]
        task = read_choice_task(own.name, tables, texts[0], choices, own.label)
        return replace(task, notes=tuple(_note_columns(train, task.columns)))
    columns = Columns(tuple(texts), _choose_labels(train, own))
    both = [each for each in columns.labels if each in texts]
    require(not both, f"own.label must be another column than the texts, not {', '.join(both)}")
    pairs = _read(tables, lambda split, table: read_pairs(table, texts))
    family, answers, notes = KINDS[own.kind](tables, columns.labels, own)
    examples = {
        split: combine(chain(*parts), chain(*answers[split])) for split, parts in pairs.items()
    }
    usual = OWN_METRICS[own.kind]
    headline = own.metric or usual[0]
    metrics = (headline, *(metric for metric in usual if metric != headline))
    return Task(
        own.name,
        replace(family, metrics=metrics, has_pairs=len(texts) > 1),
        examples,
        files=paths,
        columns=columns,
        notes=(*_note_columns(train, columns), *notes, *_note_texts(examples)),
    )


def _read_names(
    tables: Tables, columns: Sequence[str], own: OwnTaskConfig
) -> tuple[Classification, Answers, list[str]]:
    """Return the family of one label a text, the labels and notes."""
    (column,) = columns
    for table in tables["train"]:
        require(
            not isinstance(table.rows[0].get(column), list),
            f"{table.place(0)}: {column!r} is a list; own.kind=multi_label takes several labels",
        )
    read = [(table, [(name,) for name in table.column(column)]) for table in tables["train"]]
    labels = _collect_labels(read, column)
    path = tables["train"][0].path
    require(len(labels) > 1, f"{path}: every {column!r} is {labels[0]!r}; two labels are needed")
    answers = _read(tables, lambda split, table: read_names(table, split, column, labels))
    return Classification(labels=labels), answers, [*_note_labels(labels)]


def _read_sets(
    tables: Tables, columns: Sequence[str], own: OwnTaskConfig
) -> tuple[MultiLabel, Answers, list[str]]:
    """Return the family of several labels a text, the labels and notes."""
    sets = _read(tables, lambda s, table: read_sets(table, s, columns, own.label_separator))
    train, column = [*zip(tables["train"], sets["train"], strict=True)], ", ".join(columns)
    labels = tuple(columns) if len(columns) > 1 else _collect_labels(train, column)
    kinds = {names for _, part in train for names in part}
    require(
        len(kinds) > 1,
        f"{train[0][0].path}: the labels of every row are {[*min(kinds)]}; two different sets are "
        "needed",
    )
    answers = {
        split: [
            find_labels(table, part, labels)
            for table, part in zip(tables[split], parts, strict=True)
        ]
        for split, parts in sets.items()
    }
    return MultiLabel(labels=labels), answers, [*_note_sets(labels, sets)]


def _read_numbers(
    tables: Tables, columns: Sequence[str], own: OwnTaskConfig
) -> tuple[Regression, Answers, list[str]]:
    """Return the family of a number or several for a text, the numbers and notes."""
    answers = _read(tables, lambda split, table: read_numbers(table, split, columns))
    ranges = []
    for place, column in enumerate(columns):
        read = {
            split: [
                (table, [each and each[place] for each in part])
                for table, part in zip(tables[split], parts, strict=True)
            ]
            for split, parts in answers.items()
        }
        ranges.append(find_range(read, column))
    return Regression(names=tuple(columns), ranges=tuple(ranges)), answers, []


KINDS: Mapping[str, Callable[..., tuple[Texts, Answers, list[str]]]] = {
    "classification": _read_names,
    "multi_label": _read_sets,
    "regression": _read_numbers,
}
"""What reads the answers of each kind of task, and makes its family."""


def _read(tables: Tables, read: Callable[[str, TableFile], list[Any]]) -> Answers:
    """Return what is read of each table of each split."""
    return {split: [read(split, table) for table in parts] for split, parts in tables.items()}


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
                f"{several[0]!r} looks like several labels in one cell; each such cell is a label "
                f"of its own ({len(several):,} of {len(labels):,}) unless own.kind=multi_label "
                f"own.label_separator={separator}"
            )


def _note_sets(labels: Sequence[str], sets: Mapping[str, Sequence[Sequence[Any]]]) -> Iterator[str]:
    """Yield how many texts have no label, which labels train has none of, and what dev chooses."""
    for split, parts in sets.items():
        rows = [names for part in parts for names in part]
        if without := sum(names == () for names in rows):
            yield f"no label applies to {without:,} of {count_of(len(rows), 'example')} of {split}"
    known = {name for part in sets["train"] for names in part for name in names}
    if never := [label for label in labels if label not in known]:
        yield f"train has no example of {', '.join(never)}"
    yield (
        "dev chooses the threshold of each label: its scores are not those of unseen texts, for "
        "which a test file is needed"
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
