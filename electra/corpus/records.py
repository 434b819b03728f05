"""Texts of records: tables with a header, Arrow and Parquet files, datasets of Hugging Face."""

import csv
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from electra.config import UserError, require
from electra.corpus.compression import compression_of, import_extra
from electra.corpus.remote import DATASET

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
