"""Texts of Parquet and Arrow files, by pyarrow."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from electra.errors import UserError, import_extra, require
from electra.text.streams import BLOCK_BYTES, stream_blocks
from electra.text.tables import Content, require_column

ARROW_FILE = b"ARROW1"
"""How an Arrow file that has an index begins."""
PARQUET_BATCH = 256
"""Rows of a Parquet file that are read at a time."""


@contextmanager
def explain_arrow(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into ours."""
    try:
        yield
    except UserError:
        raise
    except (import_module("pyarrow").ArrowException, OSError, ValueError, OverflowError) as error:
        # The last two: text that is no UTF-8, dates that Python has not.
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged or cut off: {reason}") from None


def arrow_texts(content: Content) -> Iterator[bytes | None]:
    """Yield the texts of a column of an Arrow file, as `datasets` saves them, as bytes."""
    path, stream, text_field = content.path, content.stream, content.text_field
    ipc = import_extra("pyarrow.ipc", "parquet", path)
    with explain_arrow(path):
        first = stream.read(len(ARROW_FILE))
        require(
            first != ARROW_FILE,
            f"{path} is an Arrow file with an index (Feather), and not a stream, as `datasets` "
            "saves; save it as .parquet",
        )
        rest = iter(lambda: stream.read(BLOCK_BYTES), b"")
        reader = ipc.open_stream(stream_blocks(itertools.chain([first], rest)))
        require_column(path, text_field, reader.schema.names)
        for batch in reader:
            place = reader.schema.names.index(text_field)
            yield from _to_bytes(path, batch.column(place), text_field)


def parquet_texts(content: Content) -> Iterator[bytes | None]:
    """Yield the texts of a column of a Parquet file as bytes; of a range, of its row groups."""
    path, source, stream, _, text_field, _, start, stop = content
    parquet = import_extra("pyarrow.parquet", "parquet", path)
    with tempfile.TemporaryFile() as unpacked:
        if source is not stream:
            # The index is at the end of the file, so a compressed file is first expanded on disk.
            shutil.copyfileobj(stream, unpacked)
            stream = unpacked
        with explain_arrow(path):
            file = parquet.ParquetFile(stream)
            require_column(path, text_field, file.schema_arrow.names)
            # Treat all row groups as equally long: asking pyarrow for their offsets crashes the
            # process if their statistics are damaged.
            count, size = file.num_row_groups, stream.seek(0, os.SEEK_END)
            ends = [start, size if stop is None else min(stop, size)]
            groups = range(*(-(-end * count // size) for end in ends))
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
