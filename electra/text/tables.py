"""Records: rows of csv, tsv, jsonl, parquet and arrow files and of datasets of Hugging Face.

A corpus is read row by row, for the column that holds its text (`*_texts`). A table of a task is
read as a whole, and every row has its line number (`read_table`).
"""

import csv
import itertools
import re
import reprlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from electra.errors import UserError, did_you_mean, import_extra, require
from electra.files import parse_json
from electra.text.streams import BLOCK_BYTES, compression_of, stream_blocks
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
    """Yield a table's columns and its rows that are not blank, with the line where each begins."""
    # A first line such as "sep=;", by which Excel is told the separator, is none of the rows.
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
