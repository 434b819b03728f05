"""Records: rows of csv, tsv, jsonl, parquet and arrow files and of datasets of Hugging Face.

A corpus is read row by row, for the column that holds its text (`*_texts`). A table of a task is
read as a whole, and every row has its line number (`read_table`).
"""

import csv
import itertools
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from electra.errors import UserError, did_you_mean, import_extra, require
from electra.files import parse_json
from electra.text.streams import compression_of
from electra.text.urls import DATASET

TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
SEPARATED_FORMATS = (".csv", ".tsv")
JSONL_SPELLINGS = (".ndjson", ".json-lines", ".jsonlines")
"""Other names of .jsonl."""
PLAIN, PAGES, JSON_LINES, DATASETS = (
    *("plain text", "pages of WikiExtractor"),
    *("JSON lines", "a dataset"),
)
"""Forms of text that more than one place names; the first two hold no records."""
MAX_RECORD_CHARS = 1 << 28
"""Most characters of a record of text, and of a field of a .csv: both have to be in memory."""
PARQUET_FILE = b"PAR1"
"""How a Parquet file begins."""
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
"""Separators of the columns of a .csv, and their names."""


SEPARATOR_LINE = re.compile(r"""\ufeff?"?sep=([^\w\s"]|\t)"?\s*""", re.IGNORECASE)
"""First line by which a file names its separator to Excel."""


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
    # A first line such as "sep=;", which names the separator to Excel, is not a row.
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
    """Return what separates the columns of a .csv: the most frequent one in its first line."""
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


def require_column(place: object, name: str, columns: Iterable[str]) -> None:
    """Refuse a name that no column has."""
    if name not in columns:
        raise UserError(f"{place}: no column {name!r}{did_you_mean(name, columns)}")


# Texts of a corpus


class Content(NamedTuple):
    """The content of a file, or of a range of it, for the reader of its form."""

    path: Path
    source: IO[bytes]
    """The raw file."""
    stream: IO[bytes]
    """Without compression."""
    lines: Iterator[str]
    """Those of `stream`, if it is text; a giant one comes in pieces."""
    text_field: str
    """Field or column of the text."""
    names: Sequence[str] | None = None
    """Names of tokens, in id order. JSON may then hold lists of ids, whose names become words."""
    start: int = 0
    stop: int | None = None


def _separated_texts(content: Content, kind: str) -> Iterator[str]:
    """Yield the texts of a column of a .csv or .tsv (`kind`), whose first row names the columns."""
    rows = _split_rows(content.path, _join_lines(content), kind=kind)
    _, columns = next(rows, (1, []))
    require_column(content.path, content.text_field, columns)
    place = columns.index(content.text_field)
    yield from (fields[place] for _, fields in rows)


def _jsonl_texts(content: Content) -> Iterator[str | None]:
    """Yield the text of each line that is not blank: a string, or an object with the field."""
    path, _, _, _, text_field, names, start, _ = content
    origin = f" after byte {start:,}" if start else ""
    numbers = itertools.count(1)
    for line in _join_lines(content):
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


def _json_texts(content: Content) -> Iterator[str | None]:
    """Yield the texts of a JSON file that is one value: an array of records, or one record."""
    path, pieces, size = content.path, [], 0
    for line in content.lines:
        pieces.append(line)
        size += len(line)
        require(
            size <= MAX_RECORD_CHARS,
            f"{path} is one value of JSON of more than {MAX_RECORD_CHARS:,} characters; write its "
            "records as JSON lines",
        )
    value = parse_json("".join(pieces), path)
    del pieces
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        yield _text_of(record, content.text_field, f"{path}, record {number}", content.names)


def _join_lines(content: Content) -> Iterator[str]:
    """Yield whole lines, joined from their pieces."""
    pieces: list[str] = []
    size = 0
    for line in content.lines:
        pieces.append(line)
        size += len(line)
        if size > MAX_RECORD_CHARS:
            raise UserError(
                f"{content.path}: a record of more than {MAX_RECORD_CHARS:,} characters"
            )
        if line.endswith("\n"):
            pieces = ["".join(pieces)]
            yield pieces.pop()  # nothing here refers to a giant line any more
            size = 0
    pieces = ["".join(pieces)]
    yield pieces.pop()


def _text_of(record: Any, text_field: str, place: str, names: Sequence[str] | None) -> str | None:
    """Return the text of a record, which may be the text itself; None: it is null."""
    if isinstance(record, str | None):
        return record
    if names is None or not isinstance(record, list):
        if not isinstance(record, dict):
            raise UserError(f"{place}: must be a JSON object, not {reprlib.repr(record)}")
        require_column(place, text_field, record)
        record = record[text_field]
    if names is not None and isinstance(record, list):
        for token_id in record:
            if not (type(token_id) is int and 0 <= token_id < len(names)):
                raise UserError(
                    f"{place}: {token_id!r} is not an id of the vocabulary, whose ids are 0 to "
                    f"{len(names) - 1:,}"
                )
        return " ".join([names[token_id] for token_id in record])
    if not isinstance(record, str | None):
        raise UserError(f"{place}: {text_field!r} must hold text, not {type(record).__name__}")
    return record


def _dataset_texts(content: Content) -> Iterator[str | None]:
    """Yield the texts of a dataset of Hugging Face, one after the other as they arrive."""
    # datasets:NAME, :NAME:CONFIGURATION or :NAME:CONFIGURATION:SPLIT; NAME is a hub's, or a folder.
    name = str(content.path)
    datasets = import_extra("datasets", "datasets", Path(name))
    title, _, rest = name.removeprefix(DATASET).partition(":")
    configuration, _, split = rest.partition(":")
    try:
        found = datasets.load_dataset(
            title, configuration or None, split=split or "train", streaming=True
        )
        for number, record in enumerate(found, start=1):
            place = f"{name}, record {number}"
            yield _text_of(record, content.text_field, place, content.names)
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, the format
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from None


class Format(NamedTuple):
    """A form in which a file, or a dataset, holds records."""

    texts: Callable[[Content], Iterator[str | bytes | None]] | str
    """Yields the text of each record, None where it is null; or file and name of the function,
    below electra/text, of a form that most corpora do not have."""
    suffix: str = ""
    """Endings of its files' names; without one the first characters decide."""
    border: Literal["record", "group"] | None = None
    """Where a file can be cut into ranges; a binary one that is compressed cannot be."""
    is_binary: bool = False
    """Whether it is no text, and has an encoding of its own."""
    begins: bytes = b""
    """How its files begin, if under another name that is refused (`name_other`)."""

    def read(self, content: Content) -> Iterator[str | bytes | None]:
        """Yield the texts of a content."""
        if isinstance(self.texts, str):
            module, _, name = self.texts.partition(":")
            found: Iterator[str | bytes | None]
            found = getattr(import_module(f"electra.text.{module}"), name)(content)
            return found
        return self.texts(content)


FORMATS: Mapping[str, Format] = {
    JSON_LINES: Format(_jsonl_texts, ".jsonl", "record"),
    "JSON": Format(_json_texts),
    "CSV": Format(partial(_separated_texts, kind=".csv"), ".csv"),
    "TSV": Format(partial(_separated_texts, kind=".tsv"), ".tsv"),
    "Parquet": Format(
        "arrow:parquet_texts", ".parquet", "group", is_binary=True, begins=PARQUET_FILE
    ),
    "Arrow": Format("arrow:arrow_texts", ".arrow", is_binary=True),
    DATASETS: Format(_dataset_texts, is_binary=True),
}
"""By the name of the form. JSON: one value, an array of records or a record."""
NAMED_FORMS = {each.suffix: form for form, each in FORMATS.items() if each.suffix}


def is_binary(path: Path) -> bool:
    """Return whether a file's name shows a form that is no text."""
    form = NAMED_FORMS.get(format_of(path))
    return form is not None and FORMATS[form].is_binary


# Tables of tasks
