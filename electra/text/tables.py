"""Tables of text in any of TABLE_FORMATS, compressed or not; every row has its line number."""

import csv
import io
import json
import reprlib
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from electra.errors import UserError, did_you_mean, import_extra, require
from electra.text.streams import DECOMPRESSORS, STDIN, compression_of, open_source

TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class TableFile:
    """Rows of one file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    lines: Sequence[int]
    """Line of each row in the file, from 1; of a .parquet file, which has no lines, its number."""

    def column(self, name: str, *, fractions: bool = False) -> list[str]:
        """Return a column's values as text; whole numbers and true or false are written out.

        Args:
            name: The column.
            fractions: Whether fractional numbers are allowed.

        Raises:
            UserError: There is no such column, or a row lacks it or has something else in it.
        """
        kinds = (str, int, float) if fractions else (str, int)
        rule = f"it must be {'text or a number' if fractions else 'text'}"
        values = self._values(name)
        for number, value in enumerate(values):
            self._require(isinstance(value, kinds), number, name, rule)
        return [str(value) for value in values]

    def lists(self, name: str) -> list[tuple[str, ...]]:
        """Return a column whose every value is a list of texts.

        Raises:
            UserError: There is no such column, or a row lacks it or has something else in it.
        """
        values = self._values(name)
        for number, value in enumerate(values):
            is_list = isinstance(value, list) and all(isinstance(text, str) for text in value)
            self._require(is_list, number, name, "it must be a list of texts")
        return [tuple(value) for value in values]

    def place(self, number: int) -> str:
        """Return the place of a row for messages: file, and line or row."""
        unit = "row" if format_of(self.path) == ".parquet" else "line"
        return f"{self.path} {unit} {self.lines[number]}"

    def _values(self, name: str) -> list[Any]:
        require(
            name in self.columns,
            f"{self.path}: no column {name!r}{did_you_mean(name, self.columns)}",
        )
        return [row.get(name) for row in self.rows]

    def _require(self, fits: bool, number: int, name: str, rule: str) -> None:
        if not fits:
            row = self.rows[number]
            what = f"{name!r} is {reprlib.repr(row[name])}" if name in row else f"no {name!r}"
            raise UserError(f"{self.place(number)}: {what}; {rule}")


def format_of(path: Path) -> str:
    """Return the suffix that names the format of a table, without that of a compression."""
    return Path(path.name.removesuffix(compression_of(path))).suffix.lower()


def stem_of(path: Path, formats: Sequence[str]) -> str:
    """Return a file's name without format and compression; empty if the format is another."""
    kind = format_of(path)
    return (
        path.name.removesuffix(compression_of(path)).removesuffix(kind) if kind in formats else ""
    )


def find_table(folder: Path, stem: str, suffix: str) -> Path | None:
    """Return a folder's file of this name, compressed or not, if there is one."""
    paths = (folder / (stem + suffix + compression) for compression in ("", *DECOMPRESSORS))
    return next((path for path in paths if path.is_file()), None)


def read_table(path: Path, columns: tuple[str, ...] = ()) -> TableFile:
    """Return the rows of a table; blank lines are no rows.

    TSV is read as GLUE writes it: without quoting, a quotation mark is text. CSV may be quoted, so
    that a text can hold commas and line breaks.

    Args:
        path: The file.
        columns: Names of a TSV's columns if its first line is a row already.

    Raises:
        UserError: The file cannot be read, is empty, or a line does not fit.
    """
    kind = format_of(path)
    require(
        kind in TABLE_FORMATS,
        f"{path} must be {', '.join(TABLE_FORMATS)}, compressed or not, not {kind!r}",
    )
    content = read_content(path)
    if kind == ".parquet":
        table = _read_parquet(path, content)
    elif kind == ".jsonl":
        table = _read_jsonl(path, _number_lines(_decode(path, content)))
    elif kind == ".tsv":
        lines = _number_lines(_decode(path, content))
        fields = [(number, line.split("\t")) for number, line in lines]
        table = _name_fields(path, fields, columns, "tab-separated")
    else:
        table = _name_fields(path, _read_csv(path, _decode(path, content)), (), "comma-separated")
    require(bool(table.rows), f"{path} is empty: it must have at least one row")
    return table


def read_text_lines(path: Path) -> list[str]:
    """Return the lines of a text file, compressed or not.

    Raises:
        UserError: The file cannot be read or is not UTF-8.
    """
    return _split_lines(_decode(path, read_content(path)))


def read_content(path: Path) -> bytes:
    """Return the content of a file, decompressed.

    Raises:
        UserError: The file cannot be read, or is neither a regular file nor standard input.
    """
    require_regular(path)
    with open_source(path) as (_, stream):
        return stream.read()


def require_regular(path: Path) -> None:
    """Refuse a path that exists but is no regular file, such as a FIFO, which could block forever.

    Raises:
        UserError: The path is no regular file and not standard input.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # opening it says why
    require(path == STDIN or stat.S_ISREG(mode), f"{path} is not a regular file; give one that is")


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # GLUE's MRPC begins with a byte-order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line}: not UTF-8 text") from None


def _split_lines(text: str) -> list[str]:
    # Not splitlines(): it also cuts at characters that occur within texts, such as U+2028.
    return [line.rstrip("\r") for line in text.split("\n")]


def _number_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their numbers."""
    return [(number, line) for number, line in enumerate(_split_lines(text), 1) if line.strip()]


def _read_csv(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """Return the fields of every record, with the number of the line it begins at."""
    csv.field_size_limit(sys.maxsize)  # a text may be longer than the module's 131,072 characters
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    records, begin = [], 1
    try:
        for fields in reader:
            if fields:
                records.append((begin, fields))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} line {begin}: not valid CSV: {error}") from None
    return records


def _name_fields(
    path: Path, records: list[tuple[int, list[str]]], columns: tuple[str, ...], separated: str
) -> TableFile:
    if records and not columns:
        columns = tuple(records.pop(0)[1])
        twice = [name for name in columns if columns.count(name) > 1]
        require(not twice, f"{path}: two columns are named {''.join(twice[:1])!r}")
    for number, fields in records:
        if len(fields) != len(columns):
            raise UserError(
                f"{path} line {number}: {len(fields)} {separated} fields; it must have "
                f"{len(columns)}: {', '.join(columns)}"
            )
    rows = [dict(zip(columns, fields, strict=True)) for _, fields in records]
    return TableFile(path, columns, rows, [number for number, _ in records])


def _read_jsonl(path: Path, lines: list[tuple[int, str]]) -> TableFile:
    rows = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path} line {number}: not valid JSON: {error}") from None
        except RecursionError:
            raise UserError(f"{path} line {number}: JSON that is nested too deeply") from None
        require(
            isinstance(row, dict),
            f"{path} line {number}: must be a JSON object, not {reprlib.repr(line)}",
        )
        rows.append(row)
    return TableFile(path, tuple(rows[0]) if rows else (), rows, [number for number, _ in lines])


def _read_parquet(path: Path, content: bytes) -> TableFile:
    parquet = import_extra("pyarrow.parquet", "parquet", path)
    try:
        table = parquet.read_table(io.BytesIO(content))
        rows = table.to_pylist()
    except import_module("pyarrow").ArrowException as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged or cut off: {reason}") from None
    return TableFile(path, tuple(table.column_names), rows, range(1, len(rows) + 1))
