"""Whole tables in memory: rows and columns of a task's files, and lines of a text."""

import io
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.errors import UserError, import_extra, require
from electra.files import parse_json, parse_object, require_regular
from electra.text.arrow import explain_arrow
from electra.text.streams import STDIN, find_mark, name_other, open_source, unchanged
from electra.text.tables import (
    PARQUET_FILE,
    TABLE_FORMATS,
    _split_rows,
    format_of,
    require_column,
    require_format,
)


@dataclass(frozen=True)
class TableFile:
    """Rows of one file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    lines: Sequence[Any]
    """Line of each row in the file, from 1; of a .parquet file, which has no lines, its number."""
    num_short: int = 0
    """Rows that were left out because they have fewer fields than there are columns."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The name of each number of a column of numbers, from 0: ClassLabel of `datasets`."""
    unit: str = "line"
    """What `lines` count."""

    def column(self, name: str, *, fractions: bool = False) -> list[str]:
        """Return a column's values as text; whole numbers and true or false are written out.

        A row that lacks the column, or has something else in it, is refused.
        """
        kinds = (str, int, float) if fractions else (str, int)
        rule = f"it must be {'text or a number' if fractions else 'text'}"
        values = self._values(name, lambda value: isinstance(value, kinds), rule)
        return [self._name(name, value) for value in values]

    def lists(self, name: str) -> list[tuple[str, ...]]:
        """Return a column whose every value is a list of texts; refuse any other value."""
        kinds = (str, int) if name in self.names else str

        def fits(value: object) -> bool:
            return isinstance(value, list) and all(isinstance(text, kinds) for text in value)

        rule = "it must be a list of texts"
        first = self.rows[0].get(name)
        if isinstance(first, list) and all(type(each) is int for each in first) and first:
            rule += "; names of numbers are read from a .parquet file's schema (ClassLabel) alone"
        rows = self._values(name, fits, rule)
        return [tuple(self._name(name, value) for value in row) for row in rows]

    def place(self, number: int) -> str:
        """Return the place of a row for messages: file, and line or row."""
        return f"{self.path} {self.unit} {self.lines[number]}"

    def _name(self, column: str, value: object) -> str:
        """Return a value as text; a number that has a name becomes it."""
        names = self.names.get(column, ())
        return names[value] if type(value) is int and 0 <= value < len(names) else str(value)

    def _values(self, name: str, fits: Callable[[object], bool], rule: str) -> list[Any]:
        """Return the values of a column, all of which fit."""
        require_column(self.path, name, self.columns)
        for number, row in enumerate(self.rows):
            if not fits(row.get(name)):
                what = f"{name!r} is {reprlib.repr(row[name])}" if name in row else f"no {name!r}"
                raise UserError(f"{self.place(number)}: {what}; {rule}")
        return [row[name] for row in self.rows]


def read_table(
    path: Path, columns: tuple[str, ...] = (), separator: str = "", *, may_be_short: bool = False
) -> TableFile:
    """Return the rows of a table in any of TABLE_FORMATS, compressed or not; refuse an empty one.

    `columns` are the columns of a TSV without a header. Without a `separator`, a .tsv has tabs, and
    that of a .csv is detected from its first line. Rows with too few fields are refused, or left
    out and counted if they `may_be_short`.
    """
    require_format(path, TABLE_FORMATS)
    content = read_content(path)
    read = {".parquet": _read_parquet, ".jsonl": _read_jsonl}.get(format_of(path))
    table = (
        read(path, content)
        if read
        else _read_separated(path, content, columns, separator, may_be_short)
    )
    require(bool(table.rows), f"{path} is empty: it must have at least one row")
    return table


def _read_separated(
    path: Path, content: bytes, columns: tuple[str, ...], separator: str, may_be_short: bool
) -> TableFile:
    text = _decode(path, content)
    is_tsv = format_of(path) == ".tsv"
    lines = text.split("\n") if is_tsv else io.StringIO(text, newline="")
    columns = columns if is_tsv else ()
    found = list(_split_rows(path, lines, columns, "", separator, may_be_short))
    found = _unquote(found) if is_tsv and separator in ("", "\t") else found
    columns = tuple(found.pop(0)[1]) if found else ()
    twice = [name for name in columns if columns.count(name) > 1]
    require(not twice, f"{path}: two columns are named {''.join(twice[:1])!r}")
    whole = [(number, fields) for number, fields in found if len(fields) == len(columns)]
    rows = [dict(zip(columns, fields, strict=True)) for _, fields in whole]
    numbers = [number for number, _ in whole]
    return TableFile(path, columns, rows, numbers, len(found) - len(whole))


def _unquote(rows: list[tuple[int, Sequence[str]]]) -> list[tuple[int, Sequence[str]]]:
    """Return rows without CSV's quotes, if all quotes of a .tsv are as pandas writes them."""
    cells = [cell for _, fields in rows for cell in fields if '"' in cell]
    is_quoted = all(re.fullmatch('"(?:[^"]|"")*"', cell) for cell in cells)
    if not (is_quoted and any('""' in cell[1:-1] for cell in cells)):
        return rows  # GLUE's quotes, say, are text
    return [
        (number, [cell[1:-1].replace('""', '"') if '"' in cell else cell for cell in fields])
        for number, fields in rows
    ]


def _read_jsonl(path: Path, content: bytes) -> TableFile:
    rows, lines = [], []
    for number, line in enumerate(_decode(path, content).split("\n"), 1):
        if line.strip():
            rows.append(parse_object(line, f"{path} line {number}"))
            lines.append(number)
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    return TableFile(path, columns, rows, lines)


def _read_parquet(path: Path, content: bytes) -> TableFile:
    parquet = import_extra("pyarrow.parquet", "parquet", path)
    with explain_arrow(path):
        table = parquet.read_table(io.BytesIO(content))
        rows, columns = table.to_pylist(), tuple(table.column_names)
    lines = range(1, len(rows) + 1)
    names = _find_names(table.schema.metadata or {})
    return TableFile(path, columns, rows, lines, names=names, unit="row")


def _find_names(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the names of numbers, or of lists of numbers, that `datasets` writes into a schema."""
    found = {}
    try:
        features = parse_json(metadata[b"huggingface"], "the schema")["info"]["features"]
        for column, feature in features.items():
            while isinstance(feature, list) or "feature" in feature:  # of a list of numbers
                feature = feature[0] if isinstance(feature, list) else feature["feature"]
            if feature.get("_type") == "ClassLabel":
                found[column] = tuple(map(str, feature["names"]))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError):
        return {}  # of another program
    return found


def read_text_lines(path: Path) -> list[str]:
    """Return the lines of a text file, compressed or not; refuse what is not UTF-8."""
    # Not splitlines(): it also cuts at characters that occur within texts, such as U+2028.
    return [line.rstrip("\r") for line in _decode(path, read_content(path)).split("\n")]


def read_sentences(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, compressed or not, stripped: one at least is not blank."""
    lines = [line.strip() for line in read_text_lines(path)]
    require(any(lines), f"{path} holds no line of text")
    return lines if lines[-1] else lines[:-1]  # behind the last line feed there is no line


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Return the texts of a file: its lines, also the blank ones, or a column of a table."""
    if (kind := format_of(path)) in TABLE_FORMATS:
        return read_table(path).column(column or "text", fractions=True)
    require(
        kind not in (".json", ".arrow"),
        f"{path} must be lines of text, or a {', '.join(TABLE_FORMATS)} file, not {kind!r}",
    )
    require(
        column is None,
        f"{path} is plain text, one text per line; {column} must be a column of a "
        f"{', '.join(TABLE_FORMATS)} file",
    )
    return read_sentences(path)


def read_content(path: Path) -> bytes:
    """Return the content of a regular file or of standard input, decompressed."""
    if path != STDIN:
        require_regular(path)
    with unchanged(path), open_source(path) as (_, stream):
        content = stream.read()
    other = name_other(content)
    require(not other or content.startswith(PARQUET_FILE), f"{path} is {other}")
    return content


def _decode(path: Path, content: bytes) -> str:
    try:  # GLUE's MRPC begins with a byte-order mark, and so does what Excel calls Unicode text
        return content.decode(find_mark(content) or "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place = "standard input" if path == STDIN else path
        advice = "if it is cp1252, `iconv -f cp1252 -t utf-8` writes it in UTF-8"
        raise UserError(f"{place} line {line}: not UTF-8 text; {advice}") from None
