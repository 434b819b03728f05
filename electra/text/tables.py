"""Records: rows of csv, tsv, jsonl, parquet and arrow files and of datasets of Hugging Face.

A corpus is read row by row, for the column that holds its text (`*_texts`). A table of a task is
read as a whole, and every row has its line number (`read_table`).
"""

import csv
import io
import itertools
import re
import reprlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from electra.errors import UserError, did_you_mean, import_extra, require
from electra.files import parse_json, parse_object, require_regular
from electra.text.streams import (
    BLOCK_BYTES,
    STDIN,
    compression_of,
    find_mark,
    name_other,
    open_source,
    stream_blocks,
    unchanged,
)
from electra.text.urls import DATASET

TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
SEPARATED_FORMATS = (".csv", ".tsv")
JSONL_SPELLINGS = (".ndjson", ".json-lines", ".jsonlines")
"""Other names of .jsonl."""
COLUMNAR_FORMATS = (".parquet", ".arrow")
"""Formats that are not text, and have an encoding of their own."""
MAX_RECORD_CHARS = 1 << 28
"""Most characters of a record of text, and of a field of a .csv: both have to be in memory."""
ARROW_FILE = b"ARROW1"
"""How an Arrow file that has an index begins."""
PARQUET_FILE = b"PAR1"
"""How a Parquet file begins."""
PARQUET_BATCH = 256
"""Rows of a Parquet file that are read at a time."""
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
"""What may separate the columns of a .csv, and its name."""


SEPARATOR_LINE = re.compile(r"""\ufeff?"?sep=([^\w\s"]|\t)"?\s*""", re.IGNORECASE)
"""First line by which Excel is told what separates the columns."""


def format_of(path: Path) -> str:
    """Return the suffix that names a file's format: that of "a.jsonl.gz" is ".jsonl"."""
    suffix = (path.with_suffix("") if compression_of(path) else path).suffix.lower()
    return ".jsonl" if suffix in JSONL_SPELLINGS else suffix


def require_format(path: Path, formats: Sequence[str]) -> None:
    """Refuse a file of another format."""
    require(
        format_of(path) in formats,
        f"{path} must be {', '.join(formats)}, compressed or not, not {format_of(path)!r}",
    )


def stem_of(path: Path, formats: Sequence[str]) -> str:
    """Return a file's name without format and compression; empty if the format is another."""
    plain = path.with_suffix("") if compression_of(path) else path
    return plain.stem if format_of(path) in formats else ""


# Rows of both


def _split_rows(
    path: Path,
    lines: Iterable[str],
    columns: Sequence[str] = (),
    kind: str = "",
    separator: str = "",
    may_be_short: bool = False,
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield a table's columns and its rows that are not blank, with the line where each begins.

    A first line such as "sep=;", by which Excel is told the separator, is none of the rows.
    """
    if columns:
        yield 0, columns
    lines, begin = iter(lines), 1
    first = next(lines, "")
    if found := SEPARATOR_LINE.fullmatch(first):
        separator, begin = separator or found[1], 2
        first = next(lines, "")
    lines = itertools.chain([first], lines)
    is_raw = (kind or format_of(path)) == ".tsv" and separator in ("", "\t")
    if is_raw:
        separator, rows = "\t", _split_tsv(lines, begin)
    else:
        separator = separator or tell_separator(first)
        rows = _split_csv(path, lines, separator, begin)
    for number, fields in rows:
        if not is_raw:  # Excel also writes the separators of empty cells beside and below the table
            used = [place for place, cell in enumerate(fields, 1) if cell.strip()]
            if len(fields) > 1 and not used:
                continue
            fields = fields[: max([len(columns), 1, *used])]
        columns = columns or fields
        if len(fields) > len(columns) or (len(fields) < len(columns) and not may_be_short):
            name = SEPARATORS.get(separator, repr(separator))
            is_cut = is_raw and any(cell.count('"') % 2 for cell in fields)
            advice = "; if its cells are quoted, name it .csv" if is_cut else ""
            raise UserError(
                f"{path} line {number}: {len(fields)} {name}-separated fields; it must have "
                f"{len(columns)}: {', '.join(columns)}{advice}"
            )
        yield number, fields


def tell_separator(header: str) -> str:
    """Return what separates the columns of a .csv: what stands most often in its first line."""
    unquoted = re.sub('"[^"]*"', "", header)
    return max(SEPARATORS, key=unquoted.count)


def _split_tsv(lines: Iterable[str], begin: int) -> Iterator[tuple[int, list[str]]]:
    empty: list[tuple[int, list[str]]] = []  # rows of empty cells, unless they end the file
    for number, line in enumerate(lines, begin):
        row = number, line.rstrip("\r\n").split("\t")
        if line.strip():
            yield from (*empty, row)
            empty = []
        elif "\t" in line:
            empty.append(row)


def _split_csv(
    path: Path, lines: Iterable[str], separator: str, first: int
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_RECORD_CHARS)  # of the process; the module's own is 131,072
    rows = csv.reader(lines, delimiter=separator, strict=True)
    begin = first
    try:
        for fields in rows:
            if fields:
                yield begin, fields
            begin = rows.line_num + first
    except csv.Error as error:
        raise UserError(f"{path} line {begin}: not valid CSV: {error}") from None


def _require_column(place: object, name: str, columns: Iterable[str]) -> None:
    if name not in columns:
        raise UserError(f"{place}: no column {name!r}{did_you_mean(name, columns)}")


@contextmanager
def _explain_arrow(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into ours."""
    try:
        yield
    except (import_module("pyarrow").ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged or cut off: {reason}") from None


# Texts of a corpus


def separated_texts(
    path: Path, lines: Iterable[str], text_field: str, kind: str = ""
) -> Iterator[str]:
    """Yield the texts of a column of a .csv or .tsv (`kind`), whose first row names the columns."""
    rows = _split_rows(path, lines, kind=kind)
    _, columns = next(rows, (1, []))
    _require_column(path, text_field, columns)
    place = columns.index(text_field)
    yield from (fields[place] for _, fields in rows)


def jsonl_texts(
    path: Path,
    lines: Iterable[str],
    text_field: str,
    origin: str = "",
    names: Sequence[str] | None = None,
) -> Iterator[str | None]:
    """Yield the text of each line that is not blank: a string, or an object with the field.

    Null is None. `path` and `origin`, where the lines begin, are for messages. With `names` of
    tokens, in id order, a line or its field may be a list of ids, whose names become the words of
    the text.
    """
    numbers = itertools.count(1)
    for line in lines:
        place = f"{path}, line {next(numbers)}{origin}"
        if line.strip():
            try:
                record = parse_json(line.lstrip("\x1e"), place)
            except UserError as error:
                is_named = format_of(path) == ".jsonl"
                advice = "" if is_named else "; --set form=text reads the file as plain text"
                raise UserError(f"{error}{advice}") from None
            text = _text_of(record, text_field, place, names)
            del record
            del line  # which may be as large as the text
            yield text


def json_texts(
    path: Path, content: str, text_field: str, names: Sequence[str] | None = None
) -> Iterator[str | None]:
    """Yield the texts of a JSON file that is one value: an array of records, or one record."""
    value = parse_json(content, path)
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        yield _text_of(record, text_field, f"{path}, record {number}", names)


def _text_of(record: Any, text_field: str, place: str, names: Sequence[str] | None) -> str | None:
    """Return the text of a record, which may be the text itself; None: it is null."""
    if isinstance(record, str | None):
        return record
    if names is None or not isinstance(record, list):
        if not isinstance(record, dict):
            raise UserError(f"{place}: must be a JSON object, not {reprlib.repr(record)}")
        _require_column(place, text_field, record)
        record = record[text_field]
    if names is not None and isinstance(record, list):
        for token_id in record:
            if not (type(token_id) is int and 0 <= token_id < len(names)):
                raise UserError(
                    f"{place}: {token_id!r} is no id of the vocabulary, whose ids are 0 to "
                    f"{len(names) - 1:,}"
                )
        return " ".join([names[token_id] for token_id in record])
    if not isinstance(record, str | None):
        raise UserError(f"{place}: {text_field!r} must hold text, not {type(record).__name__}")
    return record


def arrow_texts(path: Path, stream: IO[bytes], text_field: str) -> Iterator[bytes | None]:
    """Yield the texts of a column of an Arrow file, as `datasets` saves them, as bytes."""
    ipc = import_extra("pyarrow.ipc", "parquet", path)
    with _explain_arrow(path):
        first = stream.read(len(ARROW_FILE))
        require(
            first != ARROW_FILE,
            f"{path} is an Arrow file with an index (Feather), and not a stream, as `datasets` "
            "saves; save it as .parquet",
        )
        rest = iter(lambda: stream.read(BLOCK_BYTES), b"")
        reader = ipc.open_stream(stream_blocks(itertools.chain([first], rest)))
        _require_column(path, text_field, reader.schema.names)
        for batch in reader:
            place = reader.schema.names.index(text_field)
            yield from _to_bytes(path, batch.column(place), text_field)


def parquet_texts(
    path: Path, source: IO[bytes], stream: IO[bytes], text_field: str, start: int, stop: int | None
) -> Iterator[bytes | None]:
    """Yield the texts of a column of a Parquet file as bytes; null is None.

    Of a range of the file, from byte `start` to before `stop`, the row groups that begin in it.
    `source` and `stream` are those of `open_source`.
    """
    parquet = import_extra("pyarrow.parquet", "parquet", path)
    with tempfile.TemporaryFile() as unpacked:
        if source is not stream:
            # The index is at the end of the file, so a compressed file is first expanded on disk.
            shutil.copyfileobj(stream, unpacked)
            stream = unpacked
        with _explain_arrow(path):
            file = parquet.ParquetFile(stream)
            _require_column(path, text_field, file.schema_arrow.names)
            columns = (file.metadata.row_group(n).column(0) for n in range(file.num_row_groups))
            # A file may name no dictionary, and may hold its row groups in any order.
            begins = [each.dictionary_page_offset or each.data_page_offset for each in columns]
            ends = [start, sys.maxsize if stop is None else stop]
            groups = range(*np.searchsorted(np.maximum.accumulate(begins), ends))
            for batch in file.iter_batches(PARQUET_BATCH, groups, columns=[text_field]):
                yield from _to_bytes(path, batch.column(0), text_field)


def _to_bytes(path: Path, column: Any, text_field: str) -> Iterator[bytes | None]:
    """Yield the texts of an Arrow array: bytes, because it may hold invalid UTF-8."""
    pyarrow = import_module("pyarrow")
    try:
        binary = column.cast(pyarrow.large_binary())
    except pyarrow.ArrowNotImplementedError:
        raise UserError(f"{path}: column {text_field!r} does not hold text") from None
    yield from binary.to_pylist()


def dataset_texts(
    name: str, text_field: str, names: Sequence[str] | None = None
) -> Iterator[str | None]:
    """Yield the texts of a dataset of Hugging Face, one after the other as they arrive.

    Its name is datasets:NAME, datasets:NAME:CONFIGURATION or datasets:NAME:CONFIGURATION:SPLIT,
    where NAME is that of a hub, or a folder.
    """
    datasets = import_extra("datasets", "datasets", Path(name))
    title, _, rest = name.removeprefix(DATASET).partition(":")
    configuration, _, split = rest.partition(":")
    try:
        found = datasets.load_dataset(
            title, configuration or None, split=split or "train", streaming=True
        )
        for number, record in enumerate(found, start=1):
            yield _text_of(record, text_field, f"{name}, record {number}", names)
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, the format
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from None


# Tables of tasks


@dataclass(frozen=True)
class TableFile:
    """Rows of one file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    lines: Sequence[int]
    """Line of each row in the file, from 1; of a .parquet file, which has no lines, its number."""
    num_short: int = 0
    """Rows that were left out because they have fewer fields than there are columns."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of columns of numbers the name of each number, from 0: ClassLabel of `datasets`."""

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
        unit = "row" if format_of(self.path) == ".parquet" else "line"
        return f"{self.path} {unit} {self.lines[number]}"

    def _name(self, column: str, value: object) -> str:
        """Return a value as text; a number that has a name becomes it."""
        names = self.names.get(column, ())
        return names[value] if type(value) is int and 0 <= value < len(names) else str(value)

    def _values(self, name: str, fits: Callable[[object], bool], rule: str) -> list[Any]:
        """Return the values of a column, all of which fit."""
        _require_column(self.path, name, self.columns)
        for number, row in enumerate(self.rows):
            if not fits(row.get(name)):
                what = f"{name!r} is {reprlib.repr(row[name])}" if name in row else f"no {name!r}"
                raise UserError(f"{self.place(number)}: {what}; {rule}")
        return [row[name] for row in self.rows]


def read_table(
    path: Path, columns: tuple[str, ...] = (), separator: str = "", *, may_be_short: bool = False
) -> TableFile:
    """Return the rows of a table in any of TABLE_FORMATS, compressed or not; refuse an empty one.

    `columns` are a TSV's if its first line is a row already. Without a `separator`, that of a .tsv
    is the tab, and the first line of a .csv tells it. Rows with too few fields are refused, or left
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
    """Return rows without CSV's quotes, if a .tsv has them as pandas writes them, and no others."""
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
    with _explain_arrow(path):
        table = parquet.read_table(io.BytesIO(content))
        rows = table.to_pylist()
    columns, lines = tuple(table.column_names), range(1, len(rows) + 1)
    return TableFile(path, columns, rows, lines, names=_find_names(table.schema.metadata or {}))


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
