"""The files of a shards folder: names, dtypes and the manifest. Writers and readers share them.

A shards folder holds

    manifest.json          counts, settings and the sha256 of every shard file, and of these facts
    tokenizer/             the tokenizer of the shards
    train-00000.tokens     token ids, uint16 (uint32 when the vocabulary has more than 65,535)
    train-00000.lines      uint32: the index of the token at which each line begins
    train-00000.documents  uint32: the index of the token at which each document begins
    train-00001.tokens ... and heldout-00000.tokens ...: the part for evaluation
    dropped.jsonl          with prepare's write_dropped: the documents that were left out
    verified.json          written by readers when the hashes were right
    moves.json             in a folder that was written to a URL: where the files of some shards are

All numbers are little-endian and are read through memory maps. Shards hold no special tokens, no
empty lines and no empty documents. The first line and the first document begin at 0. `prepare`
records neither time nor machine: the same input gives the same bytes.
"""

from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

import numpy as np

from electra.errors import require
from electra.files import is_inside, parse_object
from electra.objects import read_bytes
from electra.settings import AtLeast
from electra.shapes import check_shape

Part = Literal["train", "heldout"]
FORMAT = "electra-shards"
VERSION = 1
PARTS: tuple[Part, ...] = ("train", "heldout")
COLUMNS = ("tokens", "lines", "documents")
OFFSET_DTYPE = "<u4"
MOVES = "moves.json"
"""Where the files of shards are that are still those of pieces, by the names of the shards."""
MAX_SHARD_TOKENS = 1 << 31
"""Largest `shard_tokens`. A shard ends with a whole document, whose offsets must be below 2**32."""

Count = Annotated[int, AtLeast(0)]
Some = Annotated[int, AtLeast(1)]


class Digests(TypedDict):
    """The sha256 of a shard's columns."""

    tokens: str
    lines: str
    documents: str


class ShardEntry(TypedDict):
    """A shard in the manifest; none is empty."""

    name: str
    num_tokens: Some
    num_lines: Some
    num_documents: Some
    sha256: Digests


class PartEntry(TypedDict):
    """A part in the manifest: sums, and its shards."""

    num_tokens: Count
    num_lines: Count
    num_documents: Count
    shards: list[ShardEntry]


class Parts(TypedDict):
    """The parts in the manifest."""

    train: PartEntry
    heldout: PartEntry


class TextEntry(TypedDict):
    """Counts of what was read, which are shown."""

    files: Count
    files_of_lines: Count
    files_of_one_document: NotRequired[Count]
    invalid_sequences: Count
    empty: NotRequired[Count]
    forms: NotRequired[dict[str, Count]]


class Manifest(TypedDict):
    """manifest.json of a shards folder; the fields that are read."""

    format: str
    version: int
    dtype: str
    tokenizer_digest: str
    text: TextEntry
    unk_tokens: Count
    duplicates: Count
    dropped: dict[str, Count]
    parts: Parts


def shard_name(part: str, index: int) -> str:
    """Return the name of a shard's files without the suffix."""
    return f"{part}-{index:05d}"


def column_dtype(column: str, dtype: str) -> np.dtype:
    """Return the dtype of a column, given that of the tokens."""
    return np.dtype(dtype if column == "tokens" else OFFSET_DTYPE)


def read_moves(folder: Path) -> dict[str, str]:
    """Return the places of shard files that are still in the folders of pieces, by shard name.

    Places, like shard names, are names in the folder, without the suffixes of the columns.
    """
    content = read_bytes(folder / MOVES)
    moves = parse_object(content, folder / MOVES) if content is not None else {}
    check_shape(moves, dict[str, str], folder / MOVES)
    for place in moves.values():
        told = f"{folder / MOVES} is damaged: {place} is not a place in the folder"
        require(is_inside(place), told)
    return moves
