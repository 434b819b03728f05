"""Records: what the files of every task are read into, to train, to score and to predict.

A converter turns a file into records: rows of named fields, which are text or lists of text, with
their places in the file. `Columns` names the fields that a family reads. Rules for files, splits
and cells are checked here, and rules for a family in `Family.parse`.
"""

import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, require
from electra.text.streams import BLOCK_BYTES, STDIN, name_other
from electra.text.table_files import TableFile, read_table, read_texts
from electra.text.tables import TABLE_FORMATS, format_of, require_column, require_format, stem_of

KINDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list"}
SPLITS = {"train": "train", "dev": "dev|validation|valid|val|testa", "test": "test|testb"}
"""Names of a split's files, without format and compression, as regular expressions."""
PART = re.compile("-([0-9]+)-of-([0-9]+)(-[0-9a-f]+)?")
"""End of a part's name: train-00000-of-00002.parquet, with a hash on older hubs."""
PLAIN = ".txt"
UNKNOWN = {"", "-1", "-1.0", "-100", "?", "_", "-", "na", "n/a", "nan", "<na>", "none", "null"}
"""Marks of a label that is not known, in lower case."""


class Columns(NamedTuple):
    """The columns or fields that are read of a task's files."""

    inputs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """The fields of one object of a user's, such as one that a fine-tuned model is asked."""

    place: str
    """Its name in messages."""
    fields: Mapping[str, Any]
    number: int = 0
    """Its position among the records of a request, from 1."""

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping):  # of each row of a file, so nothing is written
            self.require(False, f"{reprlib.repr(self.fields)} must be a dictionary of fields")

    def text(self, name: str) -> str:
        """Return a field that is text; refuse a missing field and any other value."""
        return self.take(name, str)

    def name(self, field: str) -> str:
        """Return a field that is text or a whole number, as text."""
        value = self.fields.get(field)
        return str(value) if type(value) is int else self.text(field)

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts; refuse a missing field and any other value."""
        values = self.take(name, list, "a list of texts")
        if not all(isinstance(value, str) for value in values):
            self.require(False, f"{name!r} is {reprlib.repr(values)}; it must be a list of texts")
        return values

    def take(self, name: str, kind: type, rule: str = "") -> Any:
        """Return a field of a kind in KINDS; refuse a missing field and any other value."""
        rule = rule or KINDS[kind]
        if name not in self.fields:
            has = f"; it has {', '.join(map(repr, self.fields))}" if self.fields else ""
            self.require(False, f"no {name!r}, which must be {rule}{has[:200]}")
        value = self.fields[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.require(False, f"{name!r} is {reprlib.repr(value)}; it must be {rule}")
        return value

    def parts(self, name: str, unit: str) -> "list[Record]":
        """Return the objects in a field that is a list, each named by its unit and number."""
        values = enumerate(self.take(name, list), 1)
        return [Record(f"{self.place} {unit} {number}", value) for number, value in values]

    def require(self, rule_holds: bool, message: str) -> None:
        """Raise UserError with the record's place and the message unless the rule holds."""
        require(rule_holds, f"{self.place}: {message}")


@dataclass(frozen=True)
class Records:
    """The records of a file, and which of their fields are read."""

    table: TableFile
    columns: Columns
    kept: Sequence[Mapping[str, Any]] = ()
    """What the file has of each record, where that is not a row of the table."""

    def __post_init__(self) -> None:
        """Refuse a file without a column that is asked."""
        for name in self.columns.inputs:
            require_column(self.table.path, name, self.table.columns)

    def asked(self, fields: Sequence[str], lists: Collection[str] = ()) -> list[Record]:
        """Return the inputs under the names of a family's fields.

        Each field is a column. A field in `lists` has lists of texts; if it is the last field, it
        may instead be all remaining columns, which have text.
        """
        names = list(self.columns.inputs)
        last = names[len(fields) - 1 :]
        if len(last) > 1:
            names[len(fields) - 1 :] = []
        cells: list[Sequence[Any]] = [
            [*map(list, self.table.lists(name))] if field in lists else self.table.column(name)
            for field, name in zip(fields, names, strict=False)
        ]
        if len(last) > 1:
            cells.append([*map(list, zip(*map(self.table.column, last), strict=True))])
        rows = enumerate(zip(*cells, strict=True))
        return [
            Record(self.table.place(number), dict(zip(fields, row, strict=False)), number + 1)
            for number, row in rows
        ]


class Asked(NamedTuple):
    """The facts that a converter has about the file that it reads."""

    columns: Columns = Columns()
    """Those of training."""
    named: Sequence[str] = ()
    """Columns that a user names in place of those inputs."""
    separator: str = ""
    """Separator of the columns of a .csv or .tsv; if empty, its first line decides."""
    labels: Collection[str] = ()
    """Labels that training has."""


Converter = Callable[[Path, Asked], Records]
"""Reads the inputs of a file that a fine-tuned model is to answer."""


def read_rows(path: Path, asked: Asked) -> Records:
    """Return the rows of a table, or the lines of plain text."""
    inputs = asked.columns.inputs
    if is_plain(path):
        require(
            len(inputs) == 1 and not asked.named,
            f"{path} is plain text, a text a line; {' and '.join(asked.named or inputs)} "
            f"must be columns of a {', '.join(TABLE_FORMATS)} file",
        )
        return list_records(path, Columns(("text",)), [{"text": each} for each in read_texts(path)])
    require_format(path, (PLAIN, *TABLE_FORMATS))
    table = read_table(path, separator=asked.separator)
    return Records(table, Columns(choose_columns(table, asked.named, inputs)))


def list_records(path: Path, columns: Columns, rows: list[dict[str, Any]]) -> Records:
    """Return the records of a file that has no columns of its own."""
    names = columns.inputs + columns.labels
    return Records(TableFile(path, names, rows, range(1, len(rows) + 1)), columns)


class Inputs(NamedTuple):
    """The inputs in a file for a fine-tuned model to answer, in its order."""

    records: list[dict[str, Any]]
    """As `Family.parse` takes them."""
    rows: Sequence[Mapping[str, Any]]
    """Each in the file: all columns of a table, else the record."""


def number_records(values: Iterable[Any]) -> list[Record]:
    """Return dictionaries as records, numbered from 1; refuse any other value."""
    return [Record(f"record {number}", value, number) for number, value in enumerate(values, 1)]


def is_unlabelled(values: Iterable[Any], labels: Iterable[str] = ()) -> bool:
    """Return whether no value is a label: each is one of UNKNOWN, and none is one of `labels`."""
    texts = {str(value).strip() for value in values}
    return texts.isdisjoint(labels) and {text.lower() for text in texts} <= UNKNOWN


def require_unique(parts: Iterable[Records], name: str) -> None:
    """Refuse records that have the same value in a field."""
    known: set[str] = set()
    for part in parts:
        for number, row in enumerate(part.table.rows):
            is_new = row[name] not in known
            place = part.table.place(number)
            require(is_new, f"{place}: an {name} must be that of one {part.table.unit}")
            known.add(row[name])


# Files


def find_splits(
    data: Path,
    formats: Sequence[str],
    splits: Mapping[str, str] = SPLITS,
    *,
    chosen: Mapping[str, Sequence[str]] = {},
    setting: str = "",
) -> dict[str, list[Path]]:
    """Return the files of each split in a folder; a train file is required.

    `data` may be the train file alone. `splits` has a regular expression for file names, without
    format and compression. `chosen` has names of files to use instead, and `setting` is the section
    of the settings that chooses them.
    """
    require(data.is_dir() or data.is_file(), f"{data} is not a folder; give the one with the files")
    folder = data if data.is_dir() else data.parent
    found: dict[str, list[Path]] = {}
    for split, names in splits.items():
        paths = [folder / name for name in chosen.get(split, ())]
        for path in paths:
            require(path.is_file(), f"{setting}.{split}: no file {path}")
        if not paths and data.is_dir():
            paths = find_split(data, split, formats, names, setting)
        elif not paths and split == "train":
            paths = [data]
        found |= {split: paths} if paths else {}
    if "train" not in found:
        listed = ", ".join(formats) + (f", or name it with {setting}.train" if setting else "")
        near = "".join(f"; {path.name} is {_tell(path)}" for path in [*folder.glob("train.*")][:1])
        raise UserError(f"{data} has no train file; add train with {listed}{near}")
    paths = [path for each in found.values() for path in each]
    twice = [path for path in paths if paths.count(path) > 1]
    require(
        not twice,
        f"{', '.join(map(str, twice[:1]))} is used for two splits; give each split its own file",
    )
    return found


def _tell(path: Path) -> str:
    """Return the kind of a file that has none of a task's formats."""
    with path.open("rb") as file:
        return name_other(file.read(BLOCK_BYTES)) or "none of these"


def find_split(
    folder: Path, split: str, formats: Sequence[str], names: str = "", setting: str = ""
) -> list[Path]:
    """Return the file of a split, or its parts, by its name in any case; empty if there is none."""
    found = sorted(
        path
        for path in folder.iterdir()
        if re.fullmatch(names or split, PART.sub("", stem_of(path, formats)), re.IGNORECASE)
        and path.is_file()
    )
    listed = ", ".join(path.name for path in found)
    parts = [match for path in found if (match := PART.search(path.name))]
    is_one = len({PART.sub("", path.name) for path in found}) == 1 and len(parts) == len(found)
    advice = f"choose with {setting}.{split}" if setting else "keep one of them there"
    require(len(found) <= 1 or is_one, f"{folder} has several {split} files: {listed}; {advice}")
    numbers = [int(part[1]) for part in parts]
    whole = [*range(int(parts[0][2]))] if parts else []
    require(
        numbers == whole, f"{folder} has only {listed} of {len(whole)} parts; add the missing ones"
    )
    return found


def is_plain(path: Path) -> bool:
    """Return whether a file to predict is plain text: standard input or .txt."""
    return path == STDIN or format_of(path) == PLAIN


def choose_columns(
    table: TableFile, columns: Sequence[str], expected: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that the user named, or else those expected; all of them are there."""
    require(
        len(columns) in (0, len(expected)),
        f"--columns must name {len(expected)}, as {', '.join(expected)}, not {', '.join(columns)}",
    )
    missing = [name for name in columns or expected if name not in table.columns]
    require(
        not missing,
        f"{table.path}: no column {', '.join(map(repr, missing))}; its columns are "
        f"{', '.join(table.columns)}; say with --columns which to read in place of "
        f"{', '.join(expected)}",
    )
    return tuple(columns or expected)


def read_cells(
    table: TableFile,
    split: str,
    column: str,
    read: Callable[[str], Any],
    labels: Sequence[str] = (),
    *,
    fractions: bool = False,
) -> list[Any]:
    """Return the result of `read` for each cell of a column; its errors get the cell's place.

    All are None if a split other than train and dev has no labels: the column is missing, or
    `is_unlabelled`. Cells in `labels` always count as labels; with `fractions`, cells may be
    numbers with decimals.
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
