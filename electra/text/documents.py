"""Where documents of plain text end: lines in, documents out."""

import codecs
import csv
import html
import io
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np

from electra.errors import UserError, import_extra, require
from electra.text.ranges import open_range
from electra.text.sources import RECORD_SUFFIXES, content_suffix, encoding_of
from electra.text.streams import (
    DATASET,
    UTF8,
    UTF16_BOMS,
    compression_of,
    is_dataset,
    is_utf8,
    open_source,
    replace_surrogates,
    transcode,
)

PlainBorder = Literal["blank", "line", "file"]
Border = PlainBorder | Literal["auto"]

MAX_LINE_CHARS = 100_000
MAX_DOCUMENT_CHARS = 1 << 24
WIKI_PAGE = re.compile(r'<doc id="[^"]*" url="[^"]*" title=".*">\s*')
"""First line of a page that WikiExtractor writes; the last is "</doc>"."""
LONG_DOCUMENT_CHARS = 1 << 20
"""Mean length from which on the documents between blank lines are rather lists of texts."""


def split_documents(
    lines: Iterable[str], border: PlainBorder | Literal["page"]
) -> Iterator[list[str]]:
    """Yield the documents of lines; of border "page", pages of WikiExtractor.

    In lines with unusual white space, each run of white space becomes one space.
    """
    document: list[str] = []
    num_chars = 0
    is_continued = False
    for line in lines:
        # Form feeds, no-break spaces and the like become spaces: BERT deletes some of them, which
        # joins the words on both sides.
        text = line.strip() if line[:-1].isprintable() else " ".join(line.split())
        is_mark = border == "page" and (text == "</doc>" or WIKI_PAGE.fullmatch(text) is not None)
        if border == "page":
            text = "" if is_mark else html.unescape(text)
        is_blank = not text and not is_continued
        is_continued = not line.endswith("\n")
        if text:
            document += [text] if len(text) <= MAX_LINE_CHARS else _cut_line(text)
            num_chars += len(text)
        is_end = (border == "line" and not is_continued) or (border == "blank" and is_blank)
        is_end = is_end or is_mark
        if document and (is_end or num_chars >= MAX_DOCUMENT_CHARS):
            yield document
            document, num_chars = [], 0
    if document:
        yield document


def _cut_line(text: str) -> list[str]:
    """Return a giant line in pieces, cut at spaces if possible."""
    pieces = []
    start = 0
    while len(text) - start > MAX_LINE_CHARS:
        space = text.rfind(" ", start, start + MAX_LINE_CHARS + 1)
        stop = space if space > start else start + MAX_LINE_CHARS
        pieces.append(text[start:stop].strip())
        start = stop
    return [*pieces, text[start:].strip()]


def detect_border(lines: Iterator[str], border: Border) -> tuple[PlainBorder, Iterator[str]]:
    """Return the border of a file's documents, and its lines again.

    Of border "auto", every line is a document if those between blank lines would have
    LONG_DOCUMENT_CHARS characters or more on average: books have fewer. The first
    MAX_DOCUMENT_CHARS characters tell.
    """
    if border != "auto":
        return border, lines
    begin: list[str] = []
    num_chars, num_documents = 0, 0
    is_inside, is_continued = False, False
    for line in lines:
        begin.append(line)
        num_chars += len(line)
        is_blank = not is_continued and not line.strip()
        num_documents += not is_blank and not is_inside
        is_inside = not is_blank
        is_continued = not line.endswith("\n")
        if (
            num_chars >= MAX_DOCUMENT_CHARS
            or num_documents > MAX_DOCUMENT_CHARS // LONG_DOCUMENT_CHARS
        ):
            break
    is_lined = num_chars >= LONG_DOCUMENT_CHARS * max(1, num_documents)
    return "line" if is_lined else "blank", itertools.chain(begin, lines)


DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_BATCH = 256
"""Rows of a Parquet file that are read at a time."""


def csv_texts(
    path: Path, lines: Iterable[str], text_field: str, delimiter: str, max_chars: int
) -> Iterator[str]:
    r"""Yield the texts of a column of a table whose first row names the columns.

    Fields of a .csv may be quoted and then hold delimiters and line ends; those of a .tsv may not.

    Args:
        path: For messages.
        lines: Whole lines with their "\n".
        text_field: The column.
        delimiter: Between two fields.
        max_chars: Most characters of a field.

    Raises:
        UserError: A row is damaged or lacks the column.
    """
    csv.field_size_limit(max_chars)
    is_quoted = delimiter == ","
    quoting: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    rows = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=is_quoted)
    begun = 0
    try:
        names = next(rows, [])
        _require_column(path, text_field, names)
        place = names.index(text_field)
        begun = rows.line_num
        for row in rows:
            require(
                len(row) in (0, len(names)),
                f"{path}, line {begun + 1}: {len(row)} fields, not {len(names)} as in the first "
                "line",
            )
            begun = rows.line_num
            if row:
                yield row[place]
    except csv.Error as error:
        raise UserError(f"{path}, line {begun + 1}: {error}") from None


def arrow_texts(path: Path, stream: IO[bytes], text_field: str) -> Iterator[bytes]:
    """Yield the texts of a column of an Arrow file, as `datasets` saves them, as bytes.

    Raises:
        UserError: The file is damaged or lacks the column.
    """
    ipc = import_extra("pyarrow.ipc", "parquet", path)
    with _explain_arrow(path, text_field):
        reader = ipc.open_stream(stream)
        _require_column(path, text_field, reader.schema.names)
        for batch in reader:
            yield from _to_bytes(batch.column(reader.schema.names.index(text_field)))


def parquet_texts(
    path: Path, stream: IO[bytes], text_field: str, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """Yield the texts of a column of a Parquet file, or of a range of the file, as bytes.

    A row group belongs to the range in which it begins.

    Args:
        path: For messages.
        stream: The content of the file.
        text_field: The column.
        start: First byte of the range.
        stop: The byte after the range; None: the end of the file.

    Raises:
        UserError: The file is damaged or lacks the column.
    """
    parquet = import_extra("pyarrow.parquet", "parquet", path)
    with tempfile.TemporaryFile() as unpacked:
        if compression_of(path) or not stream.seekable():
            # The index is at the end of the file, so a compressed file is first expanded on disk.
            shutil.copyfileobj(stream, unpacked)
            stream = unpacked
        with _explain_arrow(path, text_field):
            file = parquet.ParquetFile(stream)
            _require_column(path, text_field, file.schema_arrow.names)
            begins = _begin_of_groups(file.metadata)
            groups = range(*np.searchsorted(begins, [start, sys.maxsize if stop is None else stop]))
            for batch in file.iter_batches(PARQUET_BATCH, groups, columns=[text_field]):
                yield from _to_bytes(batch.column(0))


def _begin_of_groups(metadata: Any) -> np.ndarray:
    """Return the first byte of each row group, in an order that never falls."""
    columns = (metadata.row_group(number).column(0) for number in range(metadata.num_row_groups))
    # A file may name no dictionary, and may hold its row groups in any order.
    begins = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return np.maximum.accumulate(begins)


@contextmanager
def _explain_arrow(path: Path, text_field: str) -> Iterator[None]:
    """Turn pyarrow's errors into ours."""
    pyarrow = import_module("pyarrow")
    try:
        yield
    except pyarrow.ArrowNotImplementedError:
        raise UserError(f"{path}: column {text_field!r} does not hold text") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged or cut off: {error}") from None


def _require_column(path: Path, text_field: str, names: list[str]) -> None:
    known = ", ".join(map(repr, names))
    require(text_field in names, f"{path}: no column {text_field!r}; its columns: {known}")


def _to_bytes(column: Any) -> Iterator[bytes]:
    """Yield the texts of an Arrow array: bytes, because it may hold invalid UTF-8."""
    binary = column.cast(import_module("pyarrow").large_binary())
    yield from (data or b"" for data in binary.to_pylist())


def dataset_texts(name: str, text_field: str) -> Iterator[str]:
    """Yield the texts of a dataset of Hugging Face, one after the other as they arrive.

    Args:
        name: datasets:NAME, datasets:NAME:CONFIGURATION or datasets:NAME:CONFIGURATION:SPLIT. NAME
            is that of a hub, or a folder.
        text_field: The field that holds the text.

    Raises:
        UserError: There is no such dataset, or it lacks the field.
    """
    datasets = import_extra("datasets", "datasets", Path(name))
    title, _, rest = name.removeprefix(DATASET).partition(":")
    configuration, _, split = rest.partition(":")
    try:
        found = datasets.load_dataset(
            title, configuration or None, split=split or "train", streaming=True
        )
        for number, record in enumerate(found, start=1):
            place = f"{name}, record {number}"
            require(
                text_field in record,
                f"{place}: no field {text_field!r}; its fields: {', '.join(map(repr, record))}",
            )
            text = record[text_field]
            require(
                isinstance(text, str | None),
                f"{place}: field {text_field!r} must hold text, not {type(text).__name__}",
            )
            yield text or ""
    except UserError:
        raise
    except Exception as error:  # of the hub, the network, the format
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from None


BLOCK_BYTES = 1 << 20
BLOCK_CHARS = 1 << 20
MAX_RECORD_CHARS = 1 << 28
"""Most characters of one .jsonl record. Parsing needs the whole record in memory."""

WIKI_BEGIN = '<doc id="'
WIKI_FILE = re.compile(r"wiki_\d+")

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json-lines", ".jsonlines")


@dataclass
class TextCounts:
    """Counts of what has been read so far."""

    files: int = 0
    source_bytes: int = 0
    """Bytes of the files on disk."""
    text_bytes: int = 0
    """Bytes after decompression; of a .parquet file, bytes of the text column only."""
    characters: int = 0
    """Characters of the lines, without leading and trailing white space."""
    lines: int = 0
    """Non-empty lines."""
    documents: int = 0
    files_of_lines: int = 0
    """Files with no or too few blank lines, whose lines are documents for border=auto."""
    invalid_sequences: int = 0
    """Invalid UTF-8 sequences and unpaired surrogates, replaced by U+FFFD."""


def read_documents(
    paths: Iterable[Path],
    *,
    border: Border,
    text_field: str,
    counts: TextCounts,
    encoding: str = UTF8,
    names: Sequence[str] | None = None,
) -> Generator[list[str]]:
    """Yield each document as a list of non-empty lines.

    In lines with unusual white space, each run of white space becomes one space.

    Args:
        paths: Files of `find_sources`.
        border: Where a document of plain text ends. A record is always one document.
        text_field: The field or column of a record that holds the text.
        counts: Updated while reading; complete after the last document.
        encoding: Encoding of the text; "detect" tells it for each file.
        names: Names of tokens in id order. Records may then hold lists of integers, of which the
            names become the words of a line.

    Raises:
        UserError: A file is damaged, or a record lacks the field.
    """
    for path in paths:
        yield from read_range(
            path,
            border=border,
            text_field=text_field,
            counts=counts,
            encoding=encoding,
            names=names,
        )


def read_range(
    path: Path,
    start: int = 0,
    stop: int | None = None,
    *,
    border: Border,
    text_field: str,
    counts: TextCounts,
    encoding: str = UTF8,
    names: Sequence[str] | None = None,
) -> Generator[list[str]]:
    """Yield the documents of `read_documents` that begin in a range of one file.

    Args:
        path: A file of `find_sources`.
        start: First byte of the range, after decompression. Without a range, the whole file. Of a
            .parquet file, a row group belongs to the range in which it begins.
        stop: The byte after the range; None: the end of the file.
        border: As for `read_documents`.
        text_field: As for `read_documents`.
        counts: Updated while reading. `source_bytes` is that of whole files only.
        encoding: As for `read_documents`.
        names: As for `read_documents`.

    Raises:
        UserError: As for `read_documents`.
    """
    counts.files += start == 0
    if is_dataset(path):
        for text in dataset_texts(str(path), text_field):
            counts.text_bytes += len(text.encode("utf-8", "replace"))
            yield from _split_record(text, counts)
        return
    kind = content_suffix(path)
    encoding = encoding_of(path, encoding)

    def count_invalid(number: int) -> None:
        counts.invalid_sequences += number

    is_range = start > 0 or stop is not None
    unit = range_border(path, border, encoding) if is_range else "group"
    assert unit is not None, f"{path} cannot be read in ranges"
    opened = open_source(path) if unit == "group" else open_range(path, start, stop, unit)
    with opened as (source, stream):
        before = counts.source_bytes
        is_columnar = kind in RECORD_SUFFIXES
        if is_columnar:
            if kind == ".parquet":
                texts = parquet_texts(path, stream, text_field, start, stop)
            else:
                texts = arrow_texts(path, stream, text_field)
            counted = _count_bytes(texts, counts)
            records: Iterator[str] = (_decode_utf8(text, counts) for text in counted)
        else:
            stream = transcode(stream, encoding, count_invalid, path)
            lines = _read_lines(path, source, stream, counts, is_first=start == 0)
            first = next(lines, "")
            lines = itertools.chain([first], lines)
            origin = f" after byte {start:,}" if start else ""
            if kind in DELIMITERS:
                whole = _join_lines(path, lines)
                records = csv_texts(path, whole, text_field, DELIMITERS[kind], MAX_RECORD_CHARS)
            elif kind in JSONL_SUFFIXES or (WIKI_FILE.match(path.name) and first[:1] == "{"):
                records = _jsonl_texts(path, lines, text_field, origin, names)
            else:
                found: PlainBorder | Literal["page"] = "page"
                if is_range:
                    found = cast(PlainBorder, unit)
                elif not WIKI_PAGE.fullmatch(first):
                    found, lines = detect_border(lines, border)
                counts.files_of_lines += border == "auto" and found == "line" and start == 0
                yield from _count_documents(split_documents(lines, found), counts)
                return
        for record in records:
            yield from _split_record(record, counts)
        if is_columnar:
            counts.source_bytes = before + path.stat().st_size


def range_border(
    path: Path, border: Border, encoding: str
) -> PlainBorder | Literal["record", "group"] | None:
    """Return where a file can be cut into ranges; None: it has to be read as a whole.

    "record": between lines, which are records. "group": between the row groups of a .parquet file.
    Border "auto" becomes what the beginning of the file tells.
    """
    kind = content_suffix(path)
    if kind == ".parquet" and not compression_of(path):
        return "group"
    if is_dataset(path) or kind in RECORD_SUFFIXES or kind in DELIMITERS:
        return None
    if not is_utf8(encoding_of(path, encoding)):
        return None
    if kind in JSONL_SUFFIXES:
        return "record"
    with open_source(path) as (source, stream):
        lines = _read_lines(path, source, stream, TextCounts(), is_first=True)
        first = next(lines, "")
        if first.startswith(WIKI_BEGIN) or WIKI_FILE.match(path.name):
            return None
        return detect_border(itertools.chain([first], lines), border)[0]


def _split_record(text: str, counts: TextCounts) -> Iterator[list[str]]:
    return _count_documents(split_documents(_split_lines(text, counts), "file"), counts)


def _count_documents(documents: Iterable[list[str]], counts: TextCounts) -> Iterator[list[str]]:
    for document in documents:
        counts.documents += 1
        counts.lines += len(document)
        counts.characters += sum(map(len, document))
        yield document


def _split_lines(text: str, counts: TextCounts) -> Iterator[str]:
    r"""Yield the lines of a record's text, as `_read_lines` does.

    A giant text is copied a block at a time. Each step from here on would need as much memory as
    the whole.
    """
    start = 0
    while start < len(text):
        stop = start + BLOCK_CHARS
        if stop < len(text):
            # Not between "\r" and "\n", so the last character is left out.
            cuts = (text.rfind(end, start, stop - 1) + 1 for end in "\n\r ")
            stop = next(filter(None, cuts), stop)
        part = text[start:stop]
        whole = replace_surrogates(part)
        counts.invalid_sequences += whole.count("\ufffd") - part.count("\ufffd")
        yield from io.StringIO(whole, newline=None)
        start = stop


def _count_bytes(texts: Iterable[bytes], counts: TextCounts) -> Iterator[bytes]:
    for text in texts:
        counts.text_bytes += len(text)
        yield text


def _read_lines(
    path: Path, source: IO[bytes], stream: IO[bytes], counts: TextCounts, *, is_first: bool
) -> Iterator[str]:
    r"""Yield lines with their "\n"; a line without "\n" continues in the next, or ends the file.

    The cuts between blocks depend on the bytes only, not on the number of bytes a read returns.
    """
    before = counts.source_bytes
    is_seekable = source.seekable()
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        counts.text_bytes += len(data)
        counts.source_bytes = before + source.tell() if is_seekable else counts.text_bytes
        if is_first:
            require(
                not data.startswith(UTF16_BOMS),
                f"{path} is UTF-16; read it with --set encoding=utf-16",
            )
            data = data.removeprefix(codecs.BOM_UTF8)
            is_first = False
        data = rest + data
        cut = _find_cut(data)
        yield from io.StringIO(_decode_utf8(data[:cut], counts), newline=None)
        rest = data[cut:]
    yield from io.StringIO(_decode_utf8(rest, counts), newline=None)


def _find_cut(data: bytes) -> int:
    """Return where to cut a block: after the last line, else after a space, else a character."""
    if (newline := data.rfind(b"\n")) >= 0:
        return newline + 1
    # The last byte may be the first half of "\r\n".
    if (carriage_return := data.rfind(b"\r", 0, len(data) - 1)) >= 0:
        return carriage_return + 1
    if len(data) < BLOCK_BYTES:
        return 0
    if (space := data.rfind(b" ")) > 0:
        return space + 1
    cut = len(data) - 1
    while cut > len(data) - 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def _decode_utf8(data: bytes, counts: TextCounts) -> str:
    text = data.decode("utf-8", "replace")
    if "\ufffd" in text:
        counts.invalid_sequences += text.count("\ufffd") - data.count("\ufffd".encode())
    return text


def _jsonl_texts(
    path: Path,
    lines: Iterable[str],
    text_field: str,
    origin: str,
    names: Sequence[str] | None,
) -> Iterator[str]:
    numbers = itertools.count(1)
    for line in _join_lines(path, lines):
        place = f"{path}, line {next(numbers)}{origin}"
        text = _parse_record(line, text_field, place, names) if line.strip() else ""
        del line  # which may be as large as the text
        yield text


def _parse_record(line: str, text_field: str, place: str, names: Sequence[str] | None) -> str:
    """Return the text of a .jsonl record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{place}: not a JSON record") from None
    if names is not None and isinstance(record, list):
        return _name_ids(record, names, place)
    require(isinstance(record, dict), f"{place}: not a JSON object, but {type(record).__name__}")
    fields = ", ".join(map(repr, record)) or "none"
    require(text_field in record, f"{place}: no field {text_field!r}; its fields: {fields}")
    text = record[text_field]
    if names is not None and isinstance(text, list):
        return _name_ids(text, names, place)
    require(
        isinstance(text, str),
        f"{place}: field {text_field!r} must hold text, not {type(text).__name__}",
    )
    return text


def _name_ids(ids: list[Any], names: Sequence[str], place: str) -> str:
    for token_id in ids:
        require(
            type(token_id) is int and 0 <= token_id < len(names),
            f"{place}: {token_id!r} is no id of the vocabulary, whose ids are 0 to "
            f"{len(names) - 1:,}",
        )
    return " ".join([names[token_id] for token_id in ids])


def _join_lines(path: Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield whole lines, joined from the pieces of `_read_lines`."""
    pieces: list[str] = []
    size = 0
    for line in lines:
        pieces.append(line)
        size += len(line)
        require(
            size <= MAX_RECORD_CHARS,
            f"{path}: a record of more than {MAX_RECORD_CHARS:,} characters",
        )
        if line.endswith("\n"):
            pieces = ["".join(pieces)]
            yield pieces.pop()  # nothing here refers to a giant line any more
            size = 0
    pieces = ["".join(pieces)]
    yield pieces.pop()
