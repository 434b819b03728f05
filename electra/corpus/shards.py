"""Token shards: the artefact between `prepare` and `pretrain`, independent of the sequence length.

A shards folder holds

    manifest.json          counts, settings and the sha256 of every shard file
    tokenizer/             the tokenizer of the shards
    train-00000.tokens     token ids, uint16 (uint32 when the vocabulary has more than 65,535)
    train-00000.lines      uint32: the index of the token at which each line begins
    train-00000.documents  uint32: the index of the token at which each document begins
    train-00001.tokens ... and heldout-00000.tokens ...: the part for evaluation

All numbers are little-endian and are read through memory maps. Shards hold no special tokens, no
empty lines and no empty documents. The first line and the first document begin at 0. The folder
records neither time nor machine: the same input gives the same bytes.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from electra.config import UserError, require
from electra.corpus.tokenizer import Tokenizer
from electra.files import sha256_file

Part = Literal["train", "heldout"]

FORMAT = "electra-shards"
VERSION = 1
PARTS: tuple[Part, ...] = ("train", "heldout")
COLUMNS = ("tokens", "lines", "documents")
OFFSET_DTYPE = "<u4"
MAX_SHARD_TOKENS = 1 << 31
"""Largest `shard_tokens`. A shard ends with a whole document, whose offsets must be below 2**32."""


@dataclass(frozen=True)
class Shard:
    """The tokens of one shard, and the index of the first token of each line and document."""

    tokens: np.ndarray
    lines: np.ndarray
    documents: np.ndarray


@dataclass(frozen=True)
class Shards:
    """A verified shards folder: its tokenizer, its manifest and the shards of both parts."""

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    digest: str
    """The sha256 of manifest.json. The manifest holds every file's sha256, so it identifies the
    data."""
    train: tuple[Shard, ...]
    heldout: tuple[Shard, ...]


def open_shards(folder: str | Path, *, verify: bool = True) -> Shards:
    """Return the shards of a folder after checking the hash of every file.

    Args:
        folder: The shards folder.
        verify: Whether to read every shard and compare its sha256. Of several processes that open
            one folder, the first verifies for all.

    Raises:
        UserError: The folder holds no shards, or a file is missing, damaged or of another folder.
    """
    folder = Path(folder)
    path = folder / "manifest.json"
    require(
        path.is_file(), f"{folder} is not a shards folder (no manifest.json); see electra prepare"
    )
    content = path.read_bytes()
    try:
        manifest = json.loads(content)
        is_ours = manifest["format"] == FORMAT
        version, dtype = manifest["version"], manifest["dtype"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not the manifest of a shards folder") from None
    require(is_ours, f"{path} is not the manifest of a shards folder")
    require(
        version == VERSION, f"{path} has format version {version}; this electra reads {VERSION}"
    )
    tokenizer = Tokenizer.load(folder / "tokenizer")
    require(
        tokenizer.digest == manifest.get("tokenizer_digest"),
        f"{folder / 'tokenizer'} is not the tokenizer these shards were prepared with",
    )
    require(
        dtype == tokens_dtype(tokenizer.vocab_size), f"{path} is damaged: dtype {dtype!r} is wrong"
    )
    try:
        train, heldout = (
            tuple(
                _open_shard(folder, shard_name(part, index), entry, dtype, verify=verify)
                for index, entry in enumerate(manifest["parts"][part]["shards"])
            )
            for part in PARTS
        )
    except (KeyError, TypeError):
        raise UserError(f"{path} is damaged: a field is missing") from None
    for part, shards in zip(PARTS, (train, heldout), strict=True):
        require(bool(shards), f"{path} is damaged: no shard of part {part}")
    digest = hashlib.sha256(content).hexdigest()
    return Shards(folder, tokenizer, manifest, digest, train, heldout)


def tokens_dtype(vocab_size: int) -> str:
    """Return the numpy dtype that token ids are stored in."""
    return "<u2" if vocab_size <= 65_535 else "<u4"


def shard_name(part: str, index: int) -> str:
    """Return the name of a shard's files without the suffix."""
    return f"{part}-{index:05d}"


def _open_shard(
    folder: Path, name: str, entry: dict[str, Any], dtype: str, *, verify: bool
) -> Shard:
    columns = {}
    for column in COLUMNS:
        path = folder / f"{name}.{column}"
        column_dtype = np.dtype(dtype if column == "tokens" else OFFSET_DTYPE)
        size = entry[f"num_{column}"] * column_dtype.itemsize
        require(path.is_file(), f"{path} is missing")
        actual = path.stat().st_size
        require(actual == size, f"{path} is damaged: {actual:,} bytes, not {size:,}")
        require(size > 0, f"{path} is damaged: a shard is never empty")
        require(
            not verify or sha256_file(path) == entry["sha256"][column],
            f"{path} is damaged: its sha256 differs from the manifest's",
        )
        columns[column] = np.memmap(path, dtype=column_dtype, mode="r")
    return Shard(**columns)


class ShardWriter:
    """Writer of the shards of one part, one batch of documents at a time."""

    def __init__(self, folder: Path, part: Part, *, vocab_size: int, shard_tokens: int) -> None:
        """Open no file yet. The first document opens the first shard."""
        require(
            shard_tokens <= MAX_SHARD_TOKENS,
            f"shard_tokens must be at most {MAX_SHARD_TOKENS:,}, not {shard_tokens:,}",
        )
        self.folder = folder
        self.part = part
        self.shard_tokens = shard_tokens
        self.dtype = tokens_dtype(vocab_size)
        self.shards: list[_OpenShard] = []

    def write(
        self, tokens: np.ndarray, line_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        """Append documents.

        Args:
            tokens: Ids of all documents, concatenated.
            line_lengths: Tokens of each line, all > 0.
            document_lengths: Tokens of each document, all > 0.
        """
        line_ends = np.cumsum(line_lengths, dtype=np.int64)
        document_ends = np.cumsum(document_lengths, dtype=np.int64)
        start = 0
        while start < len(tokens):
            if not self.shards or self.shards[-1].num["tokens"] >= self.shard_tokens:
                self._next_shard()
            shard = self.shards[-1]
            # The last document of a shard is the one that reaches the shard's size.
            goal = start + self.shard_tokens - shard.num["tokens"]
            last = min(int(np.searchsorted(document_ends, goal)), len(document_ends) - 1)
            stop = int(document_ends[last])
            shift = shard.num["tokens"] - start
            for column, ends in (("lines", line_ends), ("documents", document_ends)):
                starts = np.concatenate([[0], ends[:-1]])
                inside = starts[(starts >= start) & (starts < stop)]
                shard.append(column, (inside + shift).astype(OFFSET_DTYPE))
            shard.append("tokens", tokens[start:stop].astype(self.dtype, copy=False))
            start = stop

    def finish(self) -> dict[str, Any]:
        """Close the files and return this part's entry of the manifest."""
        self.close()
        entries = [shard.entry() for shard in self.shards]
        totals = {f"num_{c}": sum(entry[f"num_{c}"] for entry in entries) for c in COLUMNS}
        return {**totals, "shards": entries}

    def close(self) -> None:
        """Close the files."""
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _next_shard(self) -> None:
        self.close()
        self.shards.append(_OpenShard(self.folder, shard_name(self.part, len(self.shards))))


class _OpenShard:
    """The three growing files of one shard, hashed as they are written."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.files = {column: (folder / f"{name}.{column}").open("wb") for column in COLUMNS}
        self.hashes = {column: hashlib.sha256() for column in COLUMNS}
        self.num = dict.fromkeys(COLUMNS, 0)

    def append(self, column: str, values: np.ndarray) -> None:
        content = values.tobytes()
        self.files[column].write(content)
        self.hashes[column].update(content)
        self.num[column] += len(values)

    def entry(self) -> dict[str, Any]:
        counts = {f"num_{column}": self.num[column] for column in COLUMNS}
        digests = {column: self.hashes[column].hexdigest() for column in COLUMNS}
        return {"name": self.name, **counts, "sha256": digests}

    def close(self) -> None:
        for file in self.files.values():
            file.close()
