"""Token shards: the artefact between `prepare` and `pretrain`, independent of the sequence length.

layout.py says what a shards folder holds. The folder may be at a URL: each of its files is copied
to this machine's disk when it is first used (`fetch` in objects.py), and compared with its sha256.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from electra.errors import UserError, require
from electra.files import parse_object, read_object, sha256_file, write_json
from electra.objects import TRUSTED_SECONDS, fetch, fetched, is_url, place_of, read_bytes
from electra.shapes import check_shape
from electra.shards.layout import (
    COLUMNS,
    FORMAT,
    PARTS,
    VERSION,
    Manifest,
    column_dtype,
    read_moves,
    shard_name,
)
from electra.tokenizing.tokenizer import Tokenizer, tokens_dtype

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

VERIFIED = "verified.json"
"""Memory of `open_shards`: the manifest's sha256 and when each file was changed last."""
SPARE_FILES, SPARE_MAPS = 256, 4096
"""Files that a process may have open besides shards, and memory maps."""
MAX_FETCHES = 8
"""Files that `fetch_shards` copies at the same time."""
FAILED = "failed"
"""File of a cache with the reason why another file is missing, for all processes."""
WAIT_SECONDS = 0.01


@dataclass(eq=False)
class Shard:
    """The tokens of one shard, and the index of the first token of each line and document.

    A column is a memory map, which is opened when it is first used.
    """

    num_tokens: int
    path: Path
    """The files without their suffixes, which are the columns; on disk or at a URL."""
    sha256: dict[str, str]
    """By column."""
    dtype: str
    """The dtype of the tokens."""
    num_bytes: dict[str, int] = field(default_factory=dict)
    """By column."""
    cache: Path | None = None
    """Folder to which another thread or process copies the columns from their URL."""

    @cached_property
    def tokens(self) -> np.ndarray:
        """The ids of the tokens (num_tokens,)."""
        return self.read("tokens")

    @cached_property
    def lines(self) -> np.ndarray:
        """The index of the first token of each line."""
        return self.read("lines")

    @cached_property
    def documents(self) -> np.ndarray:
        """The index of the first token of each document."""
        return self.read("documents")

    def read(self, column: str) -> np.ndarray:
        """Return a column, whose file is fetched before if it is at a URL."""
        path = self.path.with_name(f"{self.path.name}.{column}")
        if self.cache:
            path = _wait_for(self.cache, self.sha256[column])
        elif is_url(path):
            path = fetch(path, self.sha256[column])
        return np.memmap(path, dtype=column_dtype(column, self.dtype), mode="r")


class Corpus(NamedTuple):
    """A part of a mixture."""

    name: str
    num_shards: int
    """Shards of the corpus in the train part of the mixture."""
    weight: float | None
    """Share of the rows, in relation to the other weights; None: `repeats` holds."""
    repeats: float
    """Passes over the corpus, in relation to the other corpora."""


@dataclass(frozen=True)
class Shards:
    """A verified shards folder, or a mixture of several: tokenizer, manifest, shards of both parts.

    The shards of a mixture are those of its corpora, one corpus after the other.
    """

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    digest: str
    """The sha256 of manifest.json without its own, as in release 0.1. The manifest holds every
    file's sha256, so it identifies the data."""
    train: tuple[Shard, ...]
    heldout: tuple[Shard, ...]
    mixture: tuple[Corpus, ...] = ()
    """The corpora of a mixture; empty for a single folder."""


def open_shards(folder: str | Path, *, verify: bool | Literal["anew"] = True) -> Shards:
    """Return the shards of a folder after checking the hash of every file.

    The files are opened when they are first used. That their hashes were right is remembered in
    the folder for a day, with the times of change, so that unchanged files are not read again.

    Args:
        folder: The shards folder, or the .toml file of a mixture. At a URL, files are fetched and
            compared when they are first used.
        verify: Whether to read every shard on disk and compare its sha256. Among several processes
            that open one folder, the first verifies for all. "anew": whatever is remembered.

    Raises:
        UserError: The folder holds no shards, or a file is missing, damaged or of another folder.
            At a URL, this can happen whenever a column of a shard is first used.
    """
    folder = place_of(folder)
    if folder.suffix == ".toml" and folder.is_file():
        return _open_mixture(folder, verify=verify)
    path = folder / "manifest.json"
    content = read_bytes(path)
    if content is None:
        raise UserError(f"{folder} is not a shards folder (no manifest.json); see electra prepare")
    manifest = parse_object(content, path)
    require(manifest.get("format") == FORMAT, f"{path} is not the manifest of a shards folder")
    version = manifest.get("version")
    require(
        version == VERSION,
        f"{path} has format {version}; this version of electra reads format {VERSION}: prepare the "
        "text again",
    )
    check_shape(manifest, Manifest, path)
    with fetched(folder / "tokenizer") as copy:
        tokenizer = Tokenizer.load(copy)
    require(
        tokenizer.digest == manifest.get("tokenizer_digest"),
        f"{folder / 'tokenizer'} is not the tokenizer these shards were prepared with",
    )
    dtype = manifest["dtype"]
    require(
        dtype == tokens_dtype(tokenizer.vocab_size), f"{path} is damaged: dtype {dtype!r} is wrong"
    )
    identity = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
    parts, files = _list_files(folder, manifest, read_moves(folder))
    for part, shards in parts.items():
        require(bool(shards), f"{path} is damaged: no shard of part {part}")
    if not is_url(folder):
        _check_files(folder, files, digest, verify=verify)
    elif verify == "anew":
        for name, (_, sha256) in files.items():
            _require_sha256(fetch(folder / name, sha256), sha256)
    if not is_url(folder):  # of others an order may read a few at a time
        allow_open_files(folder, len(files))
    return Shards(folder, tokenizer, manifest, digest, parts["train"], parts["heldout"])


def _list_files(
    folder: Path, manifest: dict[str, Any], moves: dict[str, str]
) -> tuple[dict[str, tuple[Shard, ...]], dict[str, tuple[int, str]]]:
    """Return the shards of both parts, and the size and sha256 of each of their files by name."""
    dtype = manifest["dtype"]
    files: dict[str, tuple[int, str]] = {}
    parts: dict[str, tuple[Shard, ...]] = {}
    for part in PARTS:
        shards = []
        for index, entry in enumerate(manifest["parts"][part]["shards"]):
            name, sha256 = shard_name(part, index), entry["sha256"]
            name = moves.get(name, name)
            sizes = {
                column: entry[f"num_{column}"] * column_dtype(column, dtype).itemsize
                for column in COLUMNS
            }
            shards.append(Shard(entry["num_tokens"], folder / name, sha256, dtype, sizes))
            for column, size in sizes.items():
                files[f"{name}.{column}"] = size, sha256[column]
        parts[part] = tuple(shards)
    return parts, files


def fetch_shards(several: Iterable[Shards], progress: Callable[[int, int], None]) -> None:
    """Copy all shard files that are at URLs to this machine's disk, several at a time.

    Without this each file is copied when it is first used, one after the other.
    """
    jobs = {
        shard.sha256[column]: (shard, column)  # files with the same content are one
        for shards in several
        for shard in (*shards.train, *shards.heldout)
        if is_url(shard.path) and not shard.cache
        for column in COLUMNS
    }
    pool = ThreadPoolExecutor(MAX_FETCHES)
    try:
        fetched = [pool.submit(shard.read, column) for shard, column in jobs.values()]
        for done, each in enumerate(as_completed(fetched), start=1):
            each.result()
            progress(done, len(jobs))
    finally:
        pool.shutdown(cancel_futures=True)


def _wait_for(folder: Path, name: str) -> Path:
    """Return a file when it is there, or raise why it does not come."""
    while not (folder / name).exists():
        if (folder / FAILED).exists():
            raise UserError((folder / FAILED).read_text(encoding="utf-8"))
        time.sleep(WAIT_SECONDS)
    return folder / name


def _check_files(
    folder: Path, files: dict[str, tuple[int, str]], digest: str, *, verify: bool | Literal["anew"]
) -> None:
    """Check the size of each file, and with `verify` its sha256; `digest` is the manifest's."""
    times = {}
    for name, (size, _) in files.items():
        path = folder / name
        require(path.is_file(), f"{path} is missing")
        status = path.stat()
        actual = status.st_size
        require(actual == size, f"{path} is damaged: {actual:,} bytes, not {size:,}")
        times[name] = [status.st_mtime_ns, status.st_ctime_ns]
    verified = {"manifest": digest, "modified": times}
    memory = folder / VERIFIED
    if not verify:
        return
    with suppress(OSError, UserError):  # not verified before
        is_fresh = 0 <= time.time() - memory.stat().st_mtime < TRUSTED_SECONDS
        if verify != "anew" and is_fresh and read_object(memory) == verified:
            return
    for name, (_, sha256) in files.items():
        _require_sha256(folder / name, sha256)
    with suppress(OSError):  # a folder that cannot be written is verified every time
        write_json(memory, verified)


def _require_sha256(path: Path, sha256: str) -> None:
    if sha256_file(path) != sha256:
        raise UserError(f"{path} is damaged: its sha256 differs from the manifest's")


def allow_open_files(folder: Path, number: int) -> None:
    """Raise this process's limit of open files, of which a memory map needs one."""

    def check(needed: int, most: float, may: str, limit: str) -> None:
        require(
            needed <= most,
            f"{folder} has {number:,} shard files, but a process may {may} {most:,} ({limit}); "
            "prepare it with a larger task_bytes, or raise the limit",
        )

    with suppress(OSError):  # of Linux alone
        maps = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="utf-8"))
        check(number + SPARE_MAPS, maps, "map into memory", "sysctl vm.max_map_count")
    if not resource:
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number + SPARE_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        check(needed, math.inf if most == resource.RLIM_INFINITY else most, "open", "ulimit -Hn")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def _open_mixture(path: Path, *, verify: bool | Literal["anew"]) -> Shards:
    """Return the shards of a mixture, a TOML file of [[corpus]] tables."""
    tables = _read_tables(path)
    opened = [
        open_shards(name if is_url(name) else path.parent / name, verify=verify)
        for name in (table["shards"] for table in tables)
    ]
    for table, shards in zip(tables, opened, strict=True):
        require(
            not shards.mixture,
            f"{path}: {table['shards']} is a mixture itself; name its corpora here",
        )
        require(
            shards.tokenizer.digest == opened[0].tokenizer.digest,
            f"{path}: {table['shards']} has another tokenizer than {tables[0]['shards']}; prepare "
            "them with the same one",
        )
    mixture = tuple(
        Corpus(table["shards"], len(each.train), table.get("weight"), table.get("repeats", 1))
        for table, each in zip(tables, opened, strict=True)
    )
    here = [each for each in opened if not is_url(each.folder)]
    allow_open_files(path, len(COLUMNS) * sum(len(s.train + s.heldout) for s in here))
    facts = [[shards.digest for shards in opened], [corpus[2:] for corpus in mixture]]
    return Shards(
        path,
        opened[0].tokenizer,
        {"corpora": [shards.manifest for shards in opened]},
        hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        tuple(shard for shards in opened for shard in shards.train),
        tuple(shard for shards in opened for shard in shards.heldout),
        mixture,
    )


def _read_tables(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a mixture after checking what they hold."""
    from electra.assignments import parse_toml

    tables: Any = parse_toml(path).get("corpus")
    is_list = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if not (is_list and tables):
        raise UserError(f"{path} is not a mixture: it has no table [[corpus]]")
    value = "weight" if any("weight" in table for table in tables) else "repeats"
    for table in tables:
        require(
            table.keys() <= {"shards", value} and isinstance(table.get("shards"), str),
            f"{path}: a corpus has shards, and weight or repeats (the same in all), not "
            f"{', '.join(table)}",
        )
        number = table.get(value, 1 if value == "repeats" else None)
        require(
            type(number) in (int, float) and 0 < number < math.inf,
            f"{path}: {value} of {table['shards']} must be a number above 0, not {number!r}",
        )
    names = {table["shards"] for table in tables}
    require(len(names) == len(tables), f"{path}: a corpus is named twice; use weight or repeats")
    return tables
