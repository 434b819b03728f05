"""An encoder asked for embeddings of texts, of their words or of their tokens; and their files.

The last layer of a discriminator serves the discriminator's task and is the worst one for
similarity; similarity.py chooses a better one on a dev set. Source: Rep et al. 2024, "Are ELECTRA's
Sentence Embeddings Beyond Repair?".

Shape suffixes: L positions, H hidden size.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch

from electra.errors import import_extra, require
from electra.files import make_folder, new_file
from electra.inference.network import LoadedEncoder
from electra.processes import Tell, silent
from electra.text.characters import replace_surrogates

Pooling = Literal["mean", "cls"]
FORMATS = (".npy", ".parquet")
CHUNK = 4096
"""Texts that are embedded, and written, at a time."""


class Units(NamedTuple):
    """The words or tokens of a text: places of first and behind last characters, embeddings."""

    starts: np.ndarray
    """(units,), int32."""
    ends: np.ndarray
    states: np.ndarray
    """(units, H), float32."""


@torch.inference_mode()
def embed(
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    layer: int | None = None,
    pooling: Pooling = "mean",
    progress: Tell = silent,
) -> np.ndarray:
    """Return an embedding of each text (texts, H), float32, which does not depend on the others.

    A text that is longer than the encoder's rows is cut into pieces, of which the mean is taken
    over all positions, or over their [CLS].

    A blank text has no embedding: NaN. The states are those of a layer (`LoadedEncoder.encode`);
    None: the last. The mean includes [CLS] and [SEP], as that of sentence-transformers does.
    `progress` is called with the number of pieces done and of all pieces.
    """
    is_seen = pooling == "mean" or not network.encoder.config.causal
    require(is_seen, "pooling cls: [CLS] of a causal encoder sees no text; use mean")

    def pool(rows: Sequence[Sequence[int]]) -> list[tuple[np.ndarray, int]]:
        states = _compute_states(network, rows, layer)
        pooled = [each_LH[:1] if pooling == "cls" else each_LH for each_LH in states]
        return [(each_LH.sum(axis=0, dtype=np.float64), len(each_LH)) for each_LH in pooled]

    means = np.full((len(texts), network.encoder.config.hidden_size), np.nan, np.float32)
    asked = [number for number, text in enumerate(texts) if text.strip()]
    ids = network.tokenizer.encode_batch([texts[number] for number in asked])
    for number, pieces in zip(asked, network.run_pieces(ids, pool, progress), strict=True):
        sums, counts = zip(*pieces, strict=True)
        means[number] = sum(sums) / sum(counts)
    return means


@torch.inference_mode()
def embed_units(
    network: LoadedEncoder,
    texts: Sequence[str],
    *,
    unit: Literal["word", "token"] = "word",
    layer: int | None = None,
) -> list[Units]:
    """Return the embeddings of each text's words or tokens, in order, with their places.

    The embedding of a word is the mean over its tokens. Words are those of `Tokenizer.find_words`:
    punctuation marks are words, but with BPE and Unigram, marks before a word are part of it. The
    other arguments are those of `embed`.
    """
    encoded = [network.tokenizer.encode_with_offsets(text) for text in texts]
    states = network.run_pieces(
        [ids for ids, _ in encoded],
        lambda rows: [each_LH[1:-1] for each_LH in _compute_states(network, rows, layer)],
    )
    answers = []
    for text, (ids, offsets), own in zip(texts, encoded, states, strict=True):
        places = np.array(offsets, np.int32).reshape(-1, 2)
        units = Units(places[:, 0], places[:, 1], np.concatenate(own))
        starts_word = network.tokenizer.find_words(text, ids, offsets)
        answers.append(_join(units, starts_word) if unit == "word" else units)
    return answers


def _join(tokens: Units, starts_word: np.ndarray) -> Units:
    """Return the words of which tokens are the pieces."""
    if not len(starts_word):
        return tokens
    firsts = np.flatnonzero(starts_word)
    counts = np.diff([*firsts, len(starts_word)])
    sums = np.add.reduceat(tokens.states, firsts, axis=0)
    states = (sums / counts[:, None]).astype(np.float32)
    starts, ends = tokens.starts[firsts], tokens.ends[firsts + counts - 1]
    is_word = starts < ends  # white space alone is none
    return Units(starts[is_word], ends[is_word], states[is_word])


def _compute_states(
    network: LoadedEncoder, rows: Sequence[Sequence[int]], layer: int | None
) -> list[np.ndarray]:
    """Return the states (L, H) of each row, float32, those of [CLS] and [SEP] included."""
    states_BLH = network.encode(rows, layer).float().cpu().numpy()
    return [each_LH[: len(row) + 2] for row, each_LH in zip(rows, states_BLH, strict=True)]


def write_embeddings(
    path: Path,
    encode: Callable[[Sequence[str]], np.ndarray | list[Units]],
    texts: Sequence[str],
    *,
    size: int,
    facts: dict[str, Any],
    progress: Tell = silent,
) -> int:
    """Write the embeddings of texts, their words or their tokens, and return their number.

    A .npy file has an array of embeddings for texts; for words and tokens an array of elements with
    row (number of the text), start, end and embedding. A .parquet file has these as columns, and
    the text; its schema has `facts` about how the embeddings were computed, with "unit": text, word
    or token. `encode` returns embeddings of `size` numbers, as `embed`, or units, as `embed_units`.
    """
    num_written = 0
    places = [("row", "<i8"), ("start", "<i4"), ("end", "<i4")]
    dtype = np.dtype([*places, ("embedding", "<f4", (size,))])
    make_folder(path.parent)
    with new_file(path) as incomplete:
        opener = _open_npy if path.suffix.lower() == ".npy" else _open_parquet
        with opener(incomplete, dtype, facts, texts) as write:
            for first in range(0, len(texts), CHUNK):
                chunk = texts[first : first + CHUNK]
                found = encode(chunk)
                if isinstance(found, np.ndarray):
                    counts = [1] * len(chunk)
                    columns: Any = 0, list(map(len, chunk)), found
                else:
                    counts = [len(each.starts) for each in found]
                    columns = map(np.concatenate, zip(*found, strict=True))
                elements = np.empty(sum(counts), dtype)
                elements["row"] = np.repeat(range(first, first + len(chunk)), counts)
                elements["start"], elements["end"], elements["embedding"] = columns
                write(elements)
                num_written += len(elements)
                progress(first + len(chunk), len(texts))
    return num_written


@contextmanager
def _open_npy(
    path: Path, dtype: np.dtype, facts: dict[str, Any], texts: Sequence[str]
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield what writes elements, of texts their embeddings alone; the header is written last."""
    is_text, count = facts["unit"] == "text", 0

    def write_header(file: IO[bytes]) -> None:
        kind, shape = (
            (dtype["embedding"].base, dtype["embedding"].shape) if is_text else (dtype, ())
        )
        description = np.lib.format.dtype_to_descr(kind)
        header = {"descr": description, "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, header)  # has room for any count

    def write(elements: np.ndarray) -> None:
        nonlocal count
        count += len(elements)
        file.write((elements["embedding"] if is_text else elements).tobytes())

    with path.open("w+b") as file:
        write_header(file)
        yield write
        file.seek(0)
        write_header(file)


@contextmanager
def _open_parquet(
    path: Path, dtype: np.dtype, facts: dict[str, Any], texts: Sequence[str]
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield what writes elements and their texts; texts have no places."""
    arrow = import_extra("pyarrow", "parquet", f"writing {path}")
    parquet = import_extra("pyarrow.parquet", "parquet", f"writing {path}")
    (size,) = dtype["embedding"].shape
    places = [("start", arrow.int32()), ("end", arrow.int32())] if facts["unit"] != "text" else []
    embedding = arrow.list_(arrow.float32(), size)
    schema = arrow.schema(
        [("row", arrow.int64()), *places, ("text", arrow.string()), ("embedding", embedding)],
        metadata={"electra": json.dumps(facts)},
    )

    def write(elements: np.ndarray) -> None:
        values: dict[str, Any] = {name: elements[name] for name in ("row", "start", "end")}
        ranges = zip(*values.values(), strict=True)
        values["text"] = [replace_surrogates(texts[row][start:end]) for row, start, end in ranges]
        states = np.ascontiguousarray(elements["embedding"]).ravel()
        values["embedding"] = arrow.FixedSizeListArray.from_arrays(states, size)
        writer.write_table(arrow.table({name: values[name] for name in schema.names}, schema))

    with parquet.ParquetWriter(path, schema) as writer:
        yield write
