"""Pieces of a preparation: parts of the text, each of which gives shards by itself.

The list of pieces follows from the names and sizes of the files and from the settings. When files
are added at its end, all pieces but the last stay the same. The output of a piece is a function of
its text, so any process on any machine can prepare it, twice or at the same time as another one.
Both engines, processes of this machine and a Ray cluster, prepare the pieces that are missing, and
begin a piece again if its process is killed.

The folder of a finished piece holds the shards of its documents, as in a shards folder, and

    hashes       uint64 of each document, in the order of the text: equal documents, equal hashes
    signatures   uint32 (128) of each document, for near duplicates only
    dropped      JSON lines: the documents that a filter dropped, if they are to be written
    task.json    the piece's digest, counts, and the sha256 of each of these files

At a URL a piece is finished by its task.json, which is written last and never replaced.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import numpy as np

from electra.errors import UserError, require
from electra.files import make_folder, parse_object, put, sha256_file, write_facts
from electra.objects import is_url, read_bytes, send, send_new
from electra.processes import follow_parent, usable_cores
from electra.shapes import check_shape
from electra.shards.cleaning import Filters
from electra.shards.config import PrepareConfig
from electra.shards.layout import PARTS, Count, Parts
from electra.shards.writing import ShardWriter
from electra.text.characters import group_texts
from electra.text.documents import RangeBorder, Reader, TextCounts, close_last
from electra.text.streams import compression_of, stamp_of, unchanged
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import LineEncoder, TokenBatch, WordEncoder, make_encoder

EXPANSION = 4
"""Bytes of text in a byte of a compressed file, as assumed for the list of pieces."""
BATCH_CHARS = 1 << 20
SETTINGS_OF_PIECES = (
    *("border", "text_field", "encoding", "form", "heldout_prob", "shard_tokens", "seed"),
    *("duplicates", "min_chars", "max_chars", "max_repetition", "languages", "write_dropped"),
)
"""The settings that change the result of a piece."""
RECORD = "task.json"
MAX_SENT = 8
"""Files of a piece that are sent to a URL at the same time."""
MAX_ATTEMPTS = 3
"""Times that a piece is begun whose process is killed."""
STALE_SECONDS = 60 * 60
"""Time after which an unfinished piece that nobody writes to is that of a killed process."""


class Piecewise(TypedDict):
    """task.json of a finished piece."""

    task: str
    text: dict[str, int | dict[str, int]]
    unk_tokens: Count
    dropped: dict[str, Count]
    parts: Parts
    sha256: dict[str, str]


Record = dict[str, Any]
Encoder = WordEncoder | LineEncoder


@dataclass(frozen=True)
class FileRange:
    """A file, or a range of its content."""

    path: Path
    size: int
    """Bytes of the file on disk."""
    modified: int
    """Time of the last change of the file, nanoseconds."""
    start: int = 0
    stop: int | None = None
    border: RangeBorder | None = None
    """Where a range is cut."""

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole file."""
        return self.start == 0 and self.stop is None


@dataclass(frozen=True)
class Piece:
    """The documents of some small files or of a range of a large one."""

    number: int
    ranges: tuple[FileRange, ...]
    source_bytes: int
    """Share of the files on disk; of a range by its length."""
    config: PrepareConfig
    tokenizer_digest: str

    @property
    def digest(self) -> str:
        """The sha256 of all that the result depends on; for files, size and time of change."""
        ranges = [[str(r.path), r.size, r.modified, r.start, r.stop] for r in self.ranges]
        settings = asdict(self.config)
        facts = [self.tokenizer_digest, ranges, [settings[name] for name in SETTINGS_OF_PIECES]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def compressed(self) -> Path | None:
        """The compressed file that the piece is a range of. Such pieces are best done in turn."""
        first = self.ranges[0]
        return first.path if not first.is_whole and compression_of(first.path) else None

    def place(self, folder: Path) -> Path:
        """Return the folder of this piece in the folder of all pieces.

        At a URL the name also identifies the text and the settings; nothing is removed there.
        """
        name = f"{self.number:06d}"
        return folder / (f"{name}-{self.digest[:16]}" if is_url(folder) else name)

    def __str__(self) -> str:
        first = self.ranges[0]
        what = str(first.path)
        if len(self.ranges) > 1:
            what = f"{len(self.ranges)} files from {what}"
        elif not first.is_whole:
            end = "the end" if first.stop is None else f"{first.stop:,}"
            what += f", bytes {first.start:,} to {end}"
        return f"piece {self.number} ({what})"


def list_pieces(files: Iterable[Path], config: PrepareConfig, tokenizer_digest: str) -> list[Piece]:
    """Return the pieces of a corpus: ranges of large files, and groups of small ones."""
    groups: list[tuple[int, tuple[FileRange, ...]]] = []
    small: list[FileRange] = []
    room = config.task_bytes
    reader = Reader(settings=config, border=config.border)

    def end_group() -> None:
        if small:
            groups.append((sum(each.size for each in small), tuple(small)))
            small.clear()

    for path in files:
        size, modified = stamp_of(path)
        text_bytes = size * (EXPANSION if compression_of(path) else 1)
        is_large = text_bytes > config.task_bytes
        if is_large or text_bytes > room:
            end_group()
            room = config.task_bytes
        if not is_large:
            small.append(FileRange(path, size, modified))
            room -= text_bytes
        elif (unit := reader.range_border(path)) is None:
            groups.append((size, (FileRange(path, size, modified),)))
        else:
            number = -(-text_bytes // config.task_bytes)
            borders = [index * config.task_bytes for index in range(number)]
            shares = np.diff(np.linspace(0, size, number + 1).astype(np.int64)).tolist()
            for share, start, stop in zip(shares, borders, [*borders[1:], None], strict=True):
                groups.append((share, (FileRange(path, size, modified, start, stop, unit),)))
    end_group()
    return [
        Piece(number, ranges, share, config, tokenizer_digest)
        for number, (share, ranges) in enumerate(groups)
    ]


# One piece


def read_piece(folder: Path, piece: Piece, *, verify: bool = True) -> Record | None:
    """Return the record of a piece if it is finished, and of this text and these settings.

    With `verify` the sha256 of each file is compared; not at a URL, where they were written before.
    """
    place = piece.place(folder)
    content = read_bytes(place / RECORD)
    try:
        record: Record = parse_object(content or b"", place / RECORD)
        check_shape(record, Piecewise, place / RECORD)
    except UserError:
        return None
    is_done = record["task"] == piece.digest
    if is_url(folder):
        return record if is_done else None
    files = {place / name: digest for name, digest in record["sha256"].items()}
    is_whole = all(path.is_file() for path in files) and (
        not verify or all(sha256_file(path) == digest for path, digest in files.items())
    )
    return record if is_done and is_whole else None


def prepare_piece(
    piece: Piece, encoder: Encoder, folder: Path, scratch: Path | None = None
) -> Record:
    """Write the folder of a piece, unless it is finished already, and return its record.

    Before a piece goes to a URL, it is in a folder in `scratch`; None: where TMPDIR says.
    """
    if record := read_piece(folder, piece):
        return record
    place = piece.place(folder)
    if is_url(folder):
        with TemporaryDirectory(dir=scratch) as own:
            record = _write_piece(piece, encoder, Path(own))
            _send_piece(Path(own), place, record)
        return record
    incomplete = folder / f"{place.name}.{uuid.uuid4().hex}.incomplete"
    make_folder(incomplete)
    try:
        record = _write_piece(piece, encoder, incomplete)
        if read_piece(folder, piece) is None:  # else another process has also just done it
            shutil.rmtree(place, ignore_errors=True)  # of another text or settings, or damaged
        try:
            put(incomplete, place)
        except OSError:
            # Another process has finished the same piece in the meantime.
            if read_piece(folder, piece, verify=False) is None:
                raise
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)
    return record


def _send_piece(folder: Path, url: Path, record: Record) -> None:
    """Write the files of a piece to a URL, and at last its record, by which it is finished."""
    # Another process may do the same: its files are the same bytes, and the first record stays.
    with ThreadPoolExecutor(MAX_SENT) as pool:
        list(pool.map(lambda name: send(folder / name, url / name), record["sha256"]))
    is_same = send_new((folder / RECORD).read_bytes(), url / RECORD)
    require(is_same, f"{url / RECORD} holds another result for the same text; choose another --out")


def clear_unfinished(folder: Path) -> None:
    """Remove what killed processes have left of pieces: what nobody has written to for a time."""
    for left in folder.glob("*.incomplete"):
        with suppress(FileNotFoundError):  # finished meanwhile
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if time.time() - newest > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _write_piece(piece: Piece, encoder: Encoder, folder: Path) -> Record:
    config, counts, filters = piece.config, TextCounts(), Filters(piece.config)
    num_unknown = 0
    sizes = {"vocab_size": encoder.tokenizer.vocab_size, "shard_tokens": config.shard_tokens}
    with ExitStack() as stack:
        open_file = stack.enter_context
        writers = [open_file(closing(ShardWriter(folder, part, **sizes))) for part in PARTS]
        hashes = open_file((folder / "hashes").open("wb"))
        if config.write_dropped:
            dropped = (folder / "dropped").open("w", encoding="utf-8", newline="\n")
            filters.aside = open_file(dropped)
        if config.duplicates == "near":
            signatures = open_file((folder / "signatures").open("wb"))
        for texts in group_texts(read_texts(piece, counts, encoder.tokenizer.names), BATCH_CHARS):
            kept = [text for text in texts if not filters.judge_text(text)]
            if not kept:
                continue
            batch = encoder.encode_documents(kept)
            is_kept = (batch.document_lengths > 0) & ~filters.judge_tokens(batch, kept)
            written = batch.tokens[np.repeat(is_kept, batch.document_lengths)]
            num_unknown += int(np.count_nonzero(written == encoder.tokenizer.unk_id))
            hashes_D = hash_documents(kept, config.seed)
            is_heldout = hashes_D < heldout_limit(config.heldout_prob)
            for writer, is_part in zip(writers, (~is_heldout, is_heldout), strict=True):
                writer.write(*select(batch, is_part & is_kept))
            hashes.write(hashes_D[is_kept].astype("<u8").tobytes())
            if config.duplicates == "near":
                from electra.shards.near_duplicates import sign_documents

                signatures.write(sign_documents(batch)[is_kept].astype("<u4").tobytes())
        parts = dict(zip(PARTS, [writer.finish() for writer in writers], strict=True))
    record = {
        "task": piece.digest,
        "text": asdict(counts),
        "unk_tokens": num_unknown,
        "dropped": dict(sorted(filters.dropped.items())),
        "parts": parts,
    }
    digests = {path.name: sha256_file(path) for path in sorted(folder.iterdir())}
    write_facts(folder / RECORD, record, digests)
    return {**record, "sha256": digests}


def read_texts(
    piece: Piece, counts: TextCounts, names: Sequence[str] | None = None
) -> Iterator[str]:
    """Yield the documents of a piece, each with its lines joined by line feeds."""
    config = piece.config
    reader = Reader(settings=config, border=config.border, names=names, counts=counts)
    for part in piece.ranges:
        with unchanged(part.path, (part.size, part.modified)):
            for lines in reader.read_range(part.path, part.start, part.stop, part.border):
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


def sum_records(records: Sequence[Record]) -> tuple[dict[str, Any], dict[str, int], int]:
    """Return the sums over pieces: counts of the text, dropped documents by reason, [UNK]."""
    text: Counter[str] = Counter()
    forms: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for record in records:
        text.update({name: n for name, n in record["text"].items() if name != "forms"})
        forms.update(record["text"]["forms"])
        dropped.update(record["dropped"])
    num_unknown = sum(record["unk_tokens"] for record in records)
    return {**text, "forms": dict(forms)}, dict(dropped), num_unknown


# Engines


def group_pieces(pieces: Iterable[Piece], most: float) -> Iterator[list[Piece]]:
    """Yield single pieces, and ranges of one compressed file together."""
    group: list[Piece] = []
    for piece in pieces:
        follows = group and piece.compressed and piece.compressed == group[-1].compressed
        if group and not (follows and len(group) < most):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def run_here(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    folder: Path,
    workers: int,
    tell: Callable[[Piece, Record], None],
    scratch: Path | None = None,
) -> None:
    """Prepare the pieces with so many processes of this machine; 0: one per available core.

    A single one is this process. `tell` gets each piece that is done, and its record.
    """
    workers = min(workers or usable_cores(), len(pieces))
    if workers <= 1:
        encoder = make_encoder(tokenizer)
        try:
            for piece in pieces:
                tell(piece, prepare_piece(piece, encoder, folder, scratch))
        finally:
            close_last()
        return
    queue = _Queue(pieces)
    pools = [_start_pool(tokenizer, folder, scratch) for _ in range(workers)]
    kills: Counter[int] = Counter()
    pending: dict[Future[Record], tuple[int, Piece]] = {}

    def begin(worker: int, piece: Piece | None) -> None:
        if piece is None:
            return
        try:
            future = pools[worker].submit(_prepare_in_worker, piece)
        except BrokenProcessPool:  # killed while it was idle
            pools[worker] = _start_pool(tokenizer, folder, scratch)
            future = pools[worker].submit(_prepare_in_worker, piece)
        pending[future] = worker, piece

    try:
        for worker in range(workers):
            begin(worker, queue.take(worker))
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                worker, piece = pending.pop(future)
                try:
                    record = future.result()
                except BrokenProcessPool:
                    kills[piece.number] += 1
                    if kills[piece.number] == MAX_ATTEMPTS:
                        cause = f"possibly for lack of memory; try fewer workers than {workers}"
                        raise explain_killed(piece, cause) from None
                    pools[worker].shutdown()
                    pools[worker] = _start_pool(tokenizer, folder, scratch)
                    begin(worker, piece)
                else:
                    begin(worker, queue.take(worker))
                    tell(piece, record)
    finally:
        for pool in pools:
            for process in (pool._processes or {}).values():
                process.terminate()  # after an interrupt, a piece under way may take hours
            pool.shutdown(cancel_futures=True)


def explain_killed(piece: Piece, cause: str) -> UserError:
    """Return the error of a piece whose process was killed too often."""
    return UserError(
        f"the process of {piece} was killed {MAX_ATTEMPTS} times, {cause}; finished pieces are kept"
    )


def _start_pool(tokenizer: Tokenizer, folder: Path, scratch: Path | None) -> ProcessPoolExecutor:
    """Return a pool of one process. The death of a process breaks its pool and no other."""
    return ProcessPoolExecutor(
        1,
        # A forked process can hang if its parent had threads, as torch and tokenizers have.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer, folder, scratch),
    )


class _Queue:
    """Pieces for workers: a compressed file's go to one, until an idle one takes half of them."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.free = deque(map(deque, group_pieces(pieces, float("inf"))))
        self.taken: dict[int, deque[Piece]] = {}

    def take(self, worker: int) -> Piece | None:
        mine = self.taken.get(worker)
        if not mine and self.free:
            mine = self.taken[worker] = self.free.popleft()
        if not mine and self.taken:
            longest = max(self.taken.values(), key=len)
            half = [longest.pop() for _ in range(-(-len(longest) // 2))]
            mine = self.taken[worker] = deque(reversed(half))
        return mine.popleft() if mine else None


_worker: tuple[Encoder, Path, Path | None]


def _start_worker(tokenizer: Tokenizer, folder: Path, scratch: Path | None) -> None:
    global _worker
    follow_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = make_encoder(tokenizer), folder, scratch


def _prepare_in_worker(piece: Piece) -> Record:
    return prepare_piece(piece, *_worker)
