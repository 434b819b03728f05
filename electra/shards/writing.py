"""Shards as they are written: three growing files each, hashed on the way."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra.shards.layout import COLUMNS, OFFSET_DTYPE, shard_name
from electra.tokenizing.tokenizer import tokens_dtype


def describe_part(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the entry of a part in the manifest: sums, and the entries of its shards."""
    totals = {f"num_{c}": sum(entry[f"num_{c}"] for entry in entries) for c in COLUMNS}
    return {**totals, "shards": list(entries)}


class ShardWriter:
    """Writer of the shards of one part, one batch of documents at a time; to be closed."""

    def __init__(self, folder: Path, part: str, *, vocab_size: int, shard_tokens: int) -> None:
        self.folder = folder
        self.part = part
        self.shard_tokens = shard_tokens
        self.dtype = tokens_dtype(vocab_size)
        self.shards: list[_OpenShard] = []

    def write(
        self, tokens: np.ndarray, line_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        """Append documents: their tokens, concatenated, and the lengths, all > 0."""
        line_ends = np.cumsum(line_lengths, dtype=np.int64)
        document_ends = np.cumsum(document_lengths, dtype=np.int64)
        start = 0
        while start < len(tokens):
            if not self.shards or self.shards[-1].num["tokens"] >= self.shard_tokens:
                self.close()
                name = shard_name(self.part, len(self.shards))
                self.shards.append(_OpenShard(self.folder, name))
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
        return describe_part([shard.entry() for shard in self.shards])

    def close(self) -> None:
        """Close the files."""
        for shard in self.shards:
            shard.close()


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
