"""Tables of text, TSV or JSON lines, compressed or not, in which every row knows its line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.config import UserError, did_you_mean, require
from electra.corpus.compression import compression_of, open_source

FORMATS = (".tsv", ".jsonl")


@dataclass(frozen=True)
class Table:
    """Rows of one file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    lines: list[int]
    """Line of each row in the file, from 1."""

    def column(self, name: str) -> list[str]:
        """Return a column's values as text; whole numbers and true or false are written out.

        Raises:
            UserError: There is no such column, or a row lacks it or has something else in it.
        """
        require(
            name in self.columns,
            f"{self.path}: no column {name!r}{did_you_mean(name, self.columns)}",
        )
        values = []
        for line, row in zip(self.lines, self.rows, strict=True):
            value = row.get(name)
            if not isinstance(value, str | int):
                what = f"{name!r} is {value!r}" if name in row else f"no {name!r}"
                raise UserError(f"{self.path} line {line}: {what}; it must be text")
            values.append(str(value))
        return values


def format_of(path: Path) -> str:
    """Return the suffix that tells how a table is written, compression aside."""
    return Path(path.name.removesuffix(compression_of(path))).suffix.lower()


def read_table(path: Path, columns: tuple[str, ...] = ()) -> Table:
    """Return the rows of a .tsv or .jsonl file; blank lines are no rows.

    TSV is taken as GLUE writes it: no quoting, a quotation mark is text.

    Args:
        path: The file.
        columns: Names of a TSV's columns if its first line is a row already.

    Raises:
        UserError: The file cannot be read, is empty, or a line does not fit.
    """
    kind = format_of(path)
    require(
        kind in FORMATS, f"{path} must be {' or '.join(FORMATS)}, compressed or not, not {kind!r}"
    )
    lines = [(number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    table = _read_tsv(path, lines, columns) if kind == ".tsv" else _read_jsonl(path, lines)
    require(bool(table.rows), f"{path} is empty: it must have at least one row")
    return table


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, compressed or not.

    Raises:
        UserError: The file cannot be read or is not UTF-8.
    """
    with open_source(path) as (_, stream):
        content = stream.read()
    try:
        text = content.decode("utf-8-sig")  # GLUE's MRPC begins with a byte-order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line}: not UTF-8 text") from None
    # Not splitlines(): it also cuts at characters that occur within texts, such as U+2028.
    return [line.rstrip("\r") for line in text.split("\n")]


def _read_tsv(path: Path, lines: list[tuple[int, str]], columns: tuple[str, ...]) -> Table:
    if lines and not columns:
        columns = tuple(lines.pop(0)[1].split("\t"))
    rows = []
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise UserError(
                f"{path} line {number}: {len(fields)} tab-separated fields; it must have "
                f"{len(columns)}: {', '.join(columns)}"
            )
        rows.append(dict(zip(columns, fields, strict=True)))
    return Table(path, columns, rows, [number for number, _ in lines])


def _read_jsonl(path: Path, lines: list[tuple[int, str]]) -> Table:
    rows = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path} line {number}: not valid JSON: {error}") from None
        require(isinstance(row, dict), f"{path} line {number}: must be a JSON object, not {line!r}")
        rows.append(row)
    return Table(path, tuple(rows[0]) if rows else (), rows, [number for number, _ in lines])
