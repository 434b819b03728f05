"""The tasks of a preparation: parts of the text, each of which gives shards by itself.

The list of tasks follows from the names and sizes of the files and from the settings. When files
are added at its end, all tasks but the last stay the same. A task is a function of its text alone,
so any process on any machine can do it, twice or at the same time as another one.

The folder of a finished task holds the shards of its documents, as in a shards folder, and

    hashes       uint64 of each document, in the order of the text: equal documents, equal hashes
    signatures   uint32 (128) of each document, for near duplicates only
    dropped      JSON lines: the documents that a filter dropped, if they are to be written
    task.json    the task's digest, counts, and the sha256 of each of these files
"""

import hashlib
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.config import PrepareConfig
from electra.errors import UserError
from electra.files import read_object, sha256_file, write_json
from electra.shards.cleaning import SIGNATURE_SIZE, Filters, sign_documents
from electra.shards.store import PARTS, ShardWriter
from electra.text.documents import PlainBorder, TextCounts, range_border, read_range
from electra.text.streams import compression_of, is_dataset, is_url
from electra.tokenizing.vocabulary import group_texts
from electra.tokenizing.words import LineEncoder, TokenBatch, WordEncoder

EXPANSION = 4
"""Bytes of text in a byte of a compressed file, as assumed for the list of tasks."""
BATCH_CHARS = 1 << 20
SETTINGS_OF_TASKS = (
    "border",
    "text_field",
    "encoding",
    "heldout_prob",
    "shard_tokens",
    "seed",
    "duplicates",
    "min_chars",
    "max_chars",
    "max_repetition",
    "languages",
    "write_dropped",
)
"""The settings that change the result of a task."""


@dataclass(frozen=True)
class Piece:
    """A file, or a range of its content."""

    path: Path
    size: int
    """Bytes of the file on disk."""
    modified: int
    """Time of the last change of the file, nanoseconds."""
    start: int = 0
    stop: int | None = None
    border: PlainBorder | None = None
    """Of a range of plain text: where its documents end. None: as the settings say."""


@dataclass(frozen=True)
class Task:
    """The documents of some small files or of a range of a large one."""

    number: int
    pieces: tuple[Piece, ...]
    source_bytes: int
    """Share of the files on disk; of a range by its length."""
    config: PrepareConfig
    tokenizer_digest: str

    @property
    def digest(self) -> str:
        """The sha256 of all that the result depends on; for files, size and time of change."""
        pieces = [[str(p.path), p.size, p.modified, p.start, p.stop] for p in self.pieces]
        settings = asdict(self.config)
        facts = [self.tokenizer_digest, pieces, [settings[name] for name in SETTINGS_OF_TASKS]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def compressed(self) -> Path | None:
        """The compressed file that the task is a range of. Such tasks are best done in turn."""
        piece = self.pieces[0]
        is_range = piece.start > 0 or piece.stop is not None
        return piece.path if is_range and compression_of(piece.path) else None

    def __str__(self) -> str:
        piece = self.pieces[0]
        if len(self.pieces) > 1:
            return f"task {self.number} ({len(self.pieces)} files from {piece.path})"
        if piece.start == 0 and piece.stop is None:
            return f"task {self.number} ({piece.path})"
        end = "the end" if piece.stop is None else f"{piece.stop:,}"
        return f"task {self.number} ({piece.path}, bytes {piece.start:,} to {end})"


def list_tasks(files: Iterable[Path], config: PrepareConfig, tokenizer_digest: str) -> list[Task]:
    """Return the tasks of a corpus: ranges of large files, and groups of small ones."""
    groups: list[tuple[int, tuple[Piece, ...]]] = []
    small: list[Piece] = []
    room = config.task_bytes
    for path in files:
        size, modified = _look_at(path)
        whole = Piece(path, size, modified)
        text_bytes = size * (EXPANSION if compression_of(path) else 1)
        is_large = text_bytes > config.task_bytes
        if small and (is_large or text_bytes > room):
            groups.append((sum(piece.size for piece in small), tuple(small)))
            small, room = [], config.task_bytes
        if not is_large:
            small.append(whole)
            room -= text_bytes
        elif (unit := range_border(path, config.border, config.encoding)) is None:
            groups.append((size, (whole,)))
        else:
            number = -(-text_bytes // config.task_bytes)
            borders = [index * config.task_bytes for index in range(number)]
            shares = np.diff(np.linspace(0, size, number + 1).astype(np.int64)).tolist()
            for share, start, stop in zip(shares, borders, [*borders[1:], None], strict=True):
                border = None if unit == "record" or unit == "group" else unit
                piece = Piece(path, size, modified, start, stop, border)
                groups.append((share, (piece,)))
    if small:
        groups.append((sum(piece.size for piece in small), tuple(small)))
    return [
        Task(number, pieces, share, config, tokenizer_digest)
        for number, (share, pieces) in enumerate(groups)
    ]


def _look_at(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time of its last change; of a dataset of a hub, zeros."""
    if is_dataset(path):
        return 0, 0
    status = path.stat()
    return status.st_size, int(status.st_mtime * 1e9) if is_url(path) else status.st_mtime_ns


def task_folder(folder: Path, task: Task) -> Path:
    """Return the folder of a finished task."""
    return folder / f"{task.number:06d}"


def read_task(folder: Path, task: Task, *, verify: bool = True) -> dict[str, Any] | None:
    """Return the record of a task if it is finished, and of this text and these settings.

    Args:
        folder: The folder of all tasks.
        task: The task.
        verify: Whether to compare the sha256 of each file.
    """
    place = task_folder(folder, task)
    try:
        record = read_object(place / "task.json")
        is_done = record["task"] == task.digest
        files = {place / name: digest for name, digest in record["sha256"].items()}
        is_whole = all(path.is_file() for path in files) and (
            not verify or all(sha256_file(path) == digest for path, digest in files.items())
        )
    except (UserError, KeyError, TypeError, AttributeError):
        return None
    return record if is_done and is_whole else None


def prepare_task(task: Task, encoder: WordEncoder | LineEncoder, folder: Path) -> dict[str, Any]:
    """Write the folder of a task, unless it is finished already, and return its record.

    Args:
        task: The task.
        encoder: Encodes documents with the tokenizer of the task.
        folder: The folder of all tasks.

    Raises:
        UserError: A file is damaged, or a record lacks the field.
    """
    if record := read_task(folder, task):
        return record
    place = task_folder(folder, task)
    incomplete = folder / f"{place.name}.{uuid.uuid4().hex}.incomplete"
    incomplete.mkdir(parents=True)
    try:
        record = _write_task(task, encoder, incomplete)
        shutil.rmtree(place, ignore_errors=True)  # of another text, of other settings, or damaged
        try:
            incomplete.rename(place)
        except OSError:
            # Another process has finished the same task in the meantime.
            if read_task(folder, task, verify=False) is None:
                raise
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)
    return record


def _write_task(task: Task, encoder: WordEncoder | LineEncoder, folder: Path) -> dict[str, Any]:
    config, counts = task.config, TextCounts()
    num_unknown = 0
    filters = Filters(config)
    with ExitStack() as stack:
        vocab_size, shard_tokens = encoder.tokenizer.vocab_size, config.shard_tokens
        writers = [
            stack.enter_context(
                ShardWriter(folder, part, vocab_size=vocab_size, shard_tokens=shard_tokens)
            )
            for part in PARTS
        ]
        hashes = stack.enter_context((folder / "hashes").open("wb"))
        aside = None
        if config.write_dropped:
            aside = stack.enter_context(
                (folder / "dropped").open("w", encoding="utf-8", newline="\n")
            )
        signatures = None
        if config.duplicates == "near":
            signatures = stack.enter_context((folder / "signatures").open("wb"))
        for texts in group_texts(read_pieces(task, counts, encoder.tokenizer.names), BATCH_CHARS):
            kept = [text for text in texts if not filters.judge_text(text, aside)]
            if not kept:
                continue
            batch = encoder.encode_documents(kept)
            num_unknown += batch.num_unknown
            is_kept = batch.document_lengths > 0
            is_kept &= ~filters.judge_tokens(batch, kept, aside)
            hashes_D = hash_documents(kept, config.seed)
            is_heldout = hashes_D < heldout_limit(config.heldout_prob)
            for writer, is_part in zip(writers, (~is_heldout, is_heldout), strict=True):
                writer.write(*select(batch, is_part & is_kept))
            hashes.write(hashes_D[is_kept].astype("<u8").tobytes())
            if signatures:
                signed = sign_documents(batch)[is_kept]
                assert signed.shape[1:] == (SIGNATURE_SIZE,)
                signatures.write(signed.astype("<u4").tobytes())
        parts = dict(zip(PARTS, [writer.finish() for writer in writers], strict=True))
    record = {
        "task": task.digest,
        "text": asdict(counts),
        "unk_tokens": num_unknown,
        "dropped": dict(sorted(filters.dropped.items())),
        "parts": parts,
        "sha256": {path.name: sha256_file(path) for path in sorted(folder.iterdir())},
    }
    write_json(folder / "task.json", record)
    return record


def read_pieces(
    task: Task, counts: TextCounts, names: Sequence[str] | None = None
) -> Iterator[str]:
    """Yield the documents of a task, each with its lines joined by line feeds.

    Args:
        task: The task.
        counts: Updated while reading.
        names: As for `read_documents`.
    """
    for piece in task.pieces:
        is_auto = task.config.border == "auto"
        counts.files_of_lines += is_auto and piece.border == "line" and piece.start == 0
        for lines in read_range(
            piece.path,
            piece.start,
            piece.stop,
            border=piece.border or task.config.border,
            text_field=task.config.text_field,
            counts=counts,
            encoding=task.config.encoding,
            names=names,
        ):
            yield "\n".join(lines)


def hash_documents(texts: Sequence[str], seed: int) -> np.ndarray:
    """Return a 64-bit hash of the content of each document (D,), with this seed.

    It depends on the text only, so it is the same for every tokenizer and place in the corpus.
    """
    key = (seed % 2**64).to_bytes(8, "little")
    digests = [hashlib.blake2b(text.encode(), digest_size=8, key=key).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8")


def heldout_limit(prob: float) -> np.uint64:
    """Return the hash below which a document is held out."""
    return np.uint64(int(prob * 2.0**64))


def select(batch: TokenBatch, is_chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens, line lengths and document lengths of the chosen documents."""
    if is_chosen.all():
        return batch.tokens, batch.line_lengths, batch.document_lengths
    document_ends = np.cumsum(batch.document_lengths)
    document_of_line = np.searchsorted(document_ends, np.cumsum(batch.line_lengths))
    return (
        batch.tokens[np.repeat(is_chosen, batch.document_lengths)],
        batch.line_lengths[is_chosen[document_of_line]],
        batch.document_lengths[is_chosen],
    )


def sum_records(records: Sequence[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int], int]:
    """Return the sums over tasks: counts of the text, dropped documents by reason, [UNK]."""
    text: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for record in records:
        text.update(record["text"])
        dropped.update(record["dropped"])
    return dict(text), dict(dropped), sum(record["unk_tokens"] for record in records)
