"""Files of embeddings: .npy and .parquet, written part by part, complete or absent.

A .npy file of texts is an array (texts, H). A file of words or tokens has an element for each of
them, with the fields row (number of the text, from 0), start, end (its place in the text,
characters) and embedding. A .parquet file has the same as columns, and the text of each element.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np

from electra.config import UserError, require
from electra.corpus.compression import import_extra
from electra.serving.embed import Pooling, embed, embed_units
from electra.serving.network import LoadedEncoder
from electra.tasks.table import TABLE_FORMATS, format_of, read_table, read_text_lines

FORMATS = (".npy", ".parquet")
CHUNK = 4096
"""Texts that are embedded, and written, at a time."""
Unit = Literal["text", "word", "token"]


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Return the texts of a file: the lines that are not blank, or a column of a table.

    Args:
        path: A text file, or a .tsv, .csv, .jsonl or .parquet table; compressed or not; - is
            standard input.
        column: The table's column; None: `text`.

    Raises:
        UserError: The file cannot be read, or holds no text, or is no table and has no column.
    """
    if format_of(path) in TABLE_FORMATS:
        return read_table(path).column(column or "text", fractions=True)
    require(
        column is None,
        f"{path} is plain text, a text a line; {column} must be a column of a "
        f"{', '.join(TABLE_FORMATS)} file",
    )
    texts = [line.strip() for line in read_text_lines(path) if line.strip()]
    require(bool(texts), f"{path} holds no line of text")
    return texts


def check_format(path: Path) -> None:
    """Refuse a file that embeddings cannot be written to.

    Raises:
        UserError: The file is neither .npy nor .parquet, exists, or pyarrow is not installed.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UserError(f"--out {path} must be a {' or '.join(FORMATS)} file, not {kind!r}")
    require(not path.exists(), f"{path} exists already; remove it or choose another --out")
    if kind == ".parquet":
        import_extra("pyarrow", "parquet", f"writing {path}")


def write_embeddings(
    path: Path,
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    unit: Unit = "text",
    layer: int | None = None,
    pooling: Pooling = "mean",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the embeddings of texts, their words or their tokens, and return their number.

    Args:
        path: A .npy or .parquet file; see above.
        network: An encoder.
        texts: The texts.
        unit: What is embedded.
        layer: As in `embed`.
        pooling: As in `embed`, for texts.
        progress: Called with the number of texts done and of all texts.

    Raises:
        UserError: There is no such layer.
    """
    open_writer = _open_npy if path.suffix.lower() == ".npy" else _open_parquet
    size, num_written = network.encoder.config.hidden_size, 0
    facts = {"unit": unit, "layer": layer or network.num_layers, "pooling": pooling}
    path.parent.mkdir(parents=True, exist_ok=True)
    incomplete = path.with_name(path.name + ".incomplete")
    try:
        with open_writer(incomplete, unit, size, facts) as write:
            for first in range(0, len(texts), CHUNK):
                chunk = texts[first : first + CHUNK]
                if unit == "text":
                    states = embed(network, chunk, layer=layer, pooling=pooling)
                    rows = np.arange(first, first + len(chunk))
                    starts, ends = np.zeros_like(rows), np.array([len(text) for text in chunk])
                else:
                    units = embed_units(network, chunk, unit=unit, layer=layer)
                    rows = np.repeat(
                        np.arange(first, first + len(chunk)), [len(each.starts) for each in units]
                    )
                    starts, ends, states = map(np.concatenate, zip(*units, strict=True))
                write(rows, starts, ends, states, texts)
                num_written += len(rows)
                progress(first + len(chunk), len(texts))
        incomplete.replace(path)
    finally:
        incomplete.unlink(missing_ok=True)
    return num_written


class _Write(Protocol):
    def __call__(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        states: np.ndarray,
        texts: Sequence[str],
    ) -> None:
        """Write elements: number of the text, place in it, embedding."""


@contextmanager
def _open_npy(path: Path, unit: Unit, size: int, facts: dict[str, Any]) -> Iterator[_Write]:
    fields = [("row", "<i8"), ("start", "<i4"), ("end", "<i4"), ("embedding", "<f4", (size,))]
    dtype = np.dtype("<f4") if unit == "text" else np.dtype(fields)
    count = 0

    def write_header(file: IO[bytes]) -> None:
        shape = (count, size) if unit == "text" else (count,)
        description = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": description, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)  # has room for any count

    def write(
        rows: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        states: np.ndarray,
        texts: Sequence[str],
    ) -> None:
        nonlocal count
        count += len(rows)
        if unit == "text":
            file.write(states.astype("<f4").tobytes())
            return
        elements: Any = np.empty(len(rows), dtype)
        for name, values in zip(dtype.names or (), (rows, starts, ends, states), strict=True):
            elements[name] = values
        file.write(elements.tobytes())

    with path.open("w+b") as file:
        write_header(file)
        yield write
        file.seek(0)
        write_header(file)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _open_parquet(path: Path, unit: Unit, size: int, facts: dict[str, Any]) -> Iterator[_Write]:
    arrow = import_extra("pyarrow", "parquet", f"writing {path}")
    parquet = import_extra("pyarrow.parquet", "parquet", f"writing {path}")
    places = [("start", arrow.int32()), ("end", arrow.int32())] if unit != "text" else []
    schema = arrow.schema(
        [
            ("row", arrow.int64()),
            *places,
            ("text", arrow.string()),
            ("embedding", arrow.list_(arrow.float32(), size)),
        ],
        metadata={"electra": json.dumps(facts)},
    )

    def write(
        rows: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        states: np.ndarray,
        texts: Sequence[str],
    ) -> None:
        values = {
            "row": rows,
            "start": starts,
            "end": ends,
            "text": [texts[n][a:b] for n, a, b in zip(rows, starts, ends, strict=True)],
            "embedding": arrow.FixedSizeListArray.from_arrays(states.ravel(), size),
        }
        writer.write_table(arrow.table({name: values[name] for name in schema.names}, schema))

    with parquet.ParquetWriter(path, schema) as writer:
        yield write
