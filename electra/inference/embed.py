"""An encoder asked for embeddings: of texts, of their words, or of their tokens.

The last layer of a discriminator serves the discriminator's task and is the worst one for
similarity; similarity.py chooses a better one on a dev set. Source: Rep et al. 2024, "Are ELECTRA's
Sentence Embeddings Beyond Repair?".

Shape suffixes: L positions, H hidden size.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from electra.errors import UserError, import_extra, require
from electra.inference.network import LoadedEncoder
from electra.text.tables import TABLE_FORMATS, format_of, read_table, read_text_lines

Pooling = Literal["mean", "cls"]
BATCH_TOKENS = 4096
"""Positions of a batch, padding included."""


class Units(NamedTuple):
    """The words or tokens of a text."""

    starts: np.ndarray
    """Place of each unit's first character in the text (units,), int32."""
    ends: np.ndarray
    """Place behind its last character."""
    states: np.ndarray
    """Embeddings (units, H), float32."""


@torch.inference_mode()
def embed(
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    layer: int | None = None,
    pooling: Pooling = "mean",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """Return an embedding of each text (texts, H), float32, which does not depend on the others.

    A text that is longer than the encoder's rows is cut into pieces, of which the mean is taken
    over all positions, or over their [CLS].

    Args:
        network: An encoder, with or without a head.
        texts: Any texts.
        layer: Layer, from 1, whose states are pooled; None: the last.
        pooling: mean: over all positions, [CLS] and [SEP] included, as sentence-transformers does.
            cls: the state of [CLS].
        progress: Called with the number of pieces done and of all pieces.

    Raises:
        UserError: There is no such layer.
    """
    encoded = network.tokenizer.encode_batch(list(texts))
    sums = np.zeros((len(texts), network.encoder.config.hidden_size))
    counts = np.zeros((len(texts), 1))
    for number, _, states_LH in _compute_pieces(network, encoded, layer, progress):
        pooled_LH = states_LH[:1] if pooling == "cls" else states_LH
        sums[number] += pooled_LH.sum(axis=0, dtype=np.float64)
        counts[number] += len(pooled_LH)
    return (sums / counts).astype(np.float32)


@torch.inference_mode()
def embed_units(
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    unit: Literal["word", "token"] = "word",
    layer: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Units]:
    """Return the embeddings of each text's words or tokens, in order, with their places.

    The embedding of a word is the mean over its tokens. Punctuation marks are words.

    Args:
        network: An encoder, with or without a head.
        texts: Any texts; one without tokens has no units.
        unit: What is embedded.
        layer: Layer, from 1, whose states are taken; None: the last.
        progress: Called with the number of pieces done and of all pieces.

    Raises:
        UserError: There is no such layer.
    """
    encoded = [network.tokenizer.encode_with_offsets(text) for text in texts]
    rows = [ids for ids, _ in encoded]
    size = network.encoder.config.hidden_size
    states = [np.zeros((len(ids), size), np.float32) for ids in rows]
    for number, piece, states_LH in _compute_pieces(network, rows, layer, progress):
        states[number][piece] = states_LH[1:-1]
    found = []
    for (ids, offsets), own in zip(encoded, states, strict=True):
        places = np.array(offsets, np.int32).reshape(-1, 2)
        units = Units(places[:, 0], places[:, 1], own)
        found.append(_join(units, network.tokenizer.starts_word[ids]) if unit == "word" else units)
    return found


def _join(tokens: Units, starts_word: np.ndarray) -> Units:
    """Return the words of which tokens are the pieces; a text's first token begins a word."""
    if not len(starts_word):
        return tokens
    starts_word = starts_word.copy()
    starts_word[0] = True
    firsts = np.flatnonzero(starts_word)
    counts = np.diff([*firsts, len(starts_word)])
    sums = np.add.reduceat(tokens.states, firsts, axis=0)
    return Units(
        tokens.starts[firsts],
        tokens.ends[firsts + counts - 1],
        (sums / counts[:, None]).astype(np.float32),
    )


def _compute_pieces(
    network: LoadedEncoder,
    texts: Sequence[Sequence[int]],
    layer: int | None,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Yield the states (L, H), float32, of all pieces of the texts, in batches of like lengths.

    A piece has the number of its text, its place among the text's ids, and the states of [CLS], its
    ids and [SEP].
    """
    pieces = [
        (number, piece)
        for number, ids in enumerate(texts)
        for piece in (network.cut(ids) if ids else [slice(0, 0)])
    ]
    pieces.sort(key=lambda each: each[1].stop - each[1].start)
    done = 0
    while done < len(pieces):
        end = _end_of_batch(pieces, done)
        batch = pieces[done:end]
        rows = [texts[number][piece] for number, piece in batch]
        states_BLH = network.encode(rows, layer).float().cpu().numpy()
        for (number, piece), row, states_LH in zip(batch, rows, states_BLH, strict=True):
            yield number, piece, states_LH[: len(row) + 2]
        done = end
        progress(done, len(pieces))


def _end_of_batch(pieces: Sequence[tuple[int, slice]], first: int) -> int:
    """Return the end of the batch that begins at `first`; the pieces are sorted by length."""
    end = first + 1
    while end < len(pieces):
        piece = pieces[end][1]
        if (end + 1 - first) * (piece.stop - piece.start + 2) > BATCH_TOKENS:
            break
        end += 1
    return end


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
