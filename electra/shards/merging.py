"""The last step of a preparation: duplicates, the held-out part and the manifest.

The folders of the tasks are only read, so that the step can be done again after an interrupt. Most
shards of the tasks become shards of the train part as they are. Written anew are those of which
documents are dropped, and the held-out part.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra.config import PrepareConfig
from electra.errors import require
from electra.files import read_object, write_json
from electra.shards.cleaning import find_near_duplicates, find_repeats, write_dropped
from electra.shards.pieces import (
    Task,
    hash_documents,
    heldout_limit,
    read_pieces,
    select,
    sum_records,
    task_folder,
)
from electra.shards.store import (
    COLUMNS,
    FORMAT,
    OFFSET_DTYPE,
    PARTS,
    VERSION,
    ShardWriter,
    describe_part,
    shard_name,
)
from electra.text.documents import TextCounts
from electra.text.sources import Sources
from electra.text.streams import replace_surrogates
from electra.tokenizing.tokenizer import Tokenizer, tokens_dtype
from electra.tokenizing.words import TokenBatch

TASKS = "tasks"
"""The folder of the folders of all tasks."""
MOVES = "moves.json"
"""The files of the tasks that become shards, and their names as shards."""
DROPPED = "dropped.jsonl"
PART_TOKENS = 1 << 22
"""Tokens of a shard that are in memory at a time, or those of a larger document."""


def merge_tasks(
    folder: Path,
    tasks: Sequence[Task],
    tokenizer: Tokenizer,
    config: PrepareConfig,
    sources: Sources,
) -> None:
    """Write the manifest, the held-out part and what differs from the shards of the tasks.

    The shards of the tasks are not touched, so that this can be done again after an interrupt.
    """
    places = [task_folder(folder / TASKS, task) for task in tasks]
    records = [read_object(place / "task.json") for place in places]
    text, dropped, num_unknown = sum_records(records)
    is_dropped, num_repeats = _find_duplicates(places, config, dropped)
    split = _Split(places, is_dropped, config)
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    tokenizer.save(folder / "tokenizer")
    sizes = {"vocab_size": tokenizer.vocab_size, "shard_tokens": config.shard_tokens}
    moves: list[tuple[str, str]] = []
    entries: list[dict[str, Any]] = []
    with ShardWriter(folder, "heldout", **sizes) as heldout:
        for shard in _list_shards(places, records, is_dropped, config):
            is_heldout = split.choose(shard)
            is_train = shard.is_kept & ~is_heldout
            source, entry = shard.place / shard.entry["name"], shard.entry
            if not is_train.all():
                with ShardWriter(shard.place, f"rest-{entry['name']}", **sizes) as rest:
                    for inside, batch in _read_shard(source, tokens_dtype(tokenizer.vocab_size)):
                        is_kept, is_chosen = shard.is_kept[inside], is_heldout[inside]
                        is_lost = np.repeat(~is_kept, batch.document_lengths)
                        lost = batch.tokens[is_lost]
                        num_unknown -= int(np.count_nonzero(lost == tokenizer.unk_id))
                        if split.divides and is_kept.any():
                            batch = _split_document(select(batch, is_kept), config.heldout_prob)
                            is_kept, is_chosen = np.array([True, True]), np.array([False, True])
                        heldout.write(*select(batch, is_chosen))
                        rest.write(*select(batch, is_kept & ~is_chosen))
                    remaining = rest.finish()["shards"]
                if not remaining:
                    continue
                (entry,) = remaining
                source = shard.place / entry["name"]
            name = shard_name("train", len(entries))
            entries.append({**entry, "name": name})
            before = source.relative_to(folder).as_posix()
            moves += [(f"{before}.{column}", f"{name}.{column}") for column in COLUMNS]
        parts = {"train": describe_part(entries), "heldout": heldout.finish()}
    if config.write_dropped:
        _write_dropped(folder / DROPPED, tasks, places, is_dropped, config.seed, tokenizer.names)
    files = sources.files
    text |= {
        "files": len(files),
        "source_bytes": sum({p: p.size for task in tasks for p in task.pieces}.values()),
    }
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": tokens_dtype(tokenizer.vocab_size),
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_digest": tokenizer.digest,
        "source_files": [replace_surrogates(path.name) for path in files],
        "passed_over": len(sources.passed_over),
        "text": text,
        "unk_tokens": num_unknown,
        "duplicates": num_repeats,
        "dropped": dropped,
        "heldout": split.rule,
        # The number of workers does not change the shards, so the manifest leaves it out.
        "config": {k: v for k, v in asdict(config).items() if k != "workers"},
        "parts": parts,
    }
    write_json(folder / MOVES, moves)
    content = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    temporary = folder / "manifest.json.incomplete"
    temporary.write_text(content, encoding="utf-8", newline="\n")
    temporary.replace(folder / "manifest.json")


def move_shards(folder: Path) -> None:
    """Move the shards of the tasks to their places, and remove the rest of the tasks.

    This can be begun again after an interrupt, since every step may have been done before.
    """
    if (folder / MOVES).exists():
        for before, after in json.loads((folder / MOVES).read_text(encoding="utf-8")):
            if (folder / before).exists():
                (folder / before).replace(folder / after)
    shutil.rmtree(folder / TASKS, ignore_errors=True)
    (folder / MOVES).unlink(missing_ok=True)


def list_shards(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the shards folder where they are now, and their names in it.

    The manifest is the last one.
    """
    moves = {after: before for before, after in json.loads((folder / MOVES).read_text("utf-8"))}
    parts = read_object(folder / "manifest.json")["parts"]
    names = [f"{e['name']}.{c}" for part in PARTS for e in parts[part]["shards"] for c in COLUMNS]
    names += [f"tokenizer/{path.name}" for path in sorted((folder / "tokenizer").iterdir())]
    names += [DROPPED] if (folder / DROPPED).exists() else []
    for name in (*names, "manifest.json"):
        yield folder / moves.get(name, name), name


def _find_duplicates(
    places: Sequence[Path], config: PrepareConfig, dropped: dict[str, int]
) -> tuple[np.ndarray, int]:
    """Return which documents are dropped as duplicates (N,), and how many repeat an earlier one.

    Args:
        places: The folders of the tasks.
        config: The settings.
        dropped: Gets the numbers of dropped documents.
    """
    is_repeat = find_repeats([place / "hashes" for place in places])
    num_repeats = int(np.count_nonzero(is_repeat))
    is_dropped = is_repeat if config.duplicates != "keep" else np.zeros_like(is_repeat)
    if config.duplicates != "keep":
        dropped["duplicate"] = num_repeats
    if config.duplicates == "near":
        is_near = find_near_duplicates([place / "signatures" for place in places])
        dropped["near duplicate"] = int(np.count_nonzero(is_near & ~is_repeat))
        is_dropped = is_repeat | is_near
    return is_dropped, num_repeats


class _TaskShard(NamedTuple):
    """A shard of a task, and its documents."""

    place: Path
    """The folder of the task."""
    entry: dict[str, Any]
    hashes: np.ndarray
    is_kept: np.ndarray


def _list_shards(
    places: Sequence[Path],
    records: Sequence[dict[str, Any]],
    is_dropped: np.ndarray,
    config: PrepareConfig,
) -> Iterator[_TaskShard]:
    """Yield the shards of all tasks in the order of the text, those of both parts."""
    first = 0
    for place, record in zip(places, records, strict=True):
        hashes = np.fromfile(place / "hashes", "<u8")
        is_kept = ~is_dropped[first : first + len(hashes)]
        first += len(hashes)
        is_heldout = hashes < heldout_limit(config.heldout_prob)
        for part, is_part in zip(PARTS, (~is_heldout, is_heldout), strict=True):
            documents = np.flatnonzero(is_part)
            for entry in record["parts"][part]["shards"]:
                inside, documents = np.split(documents, [entry["num_documents"]])
                yield _TaskShard(place, entry, hashes[inside], is_kept[inside])


class _Split:
    """The choice of the documents that are held out. Neither part may be empty.

    Attributes:
        rule: The description of the choice for the manifest.
        divides: Whether the only document is divided.
    """

    def __init__(
        self, places: Sequence[Path], is_dropped: np.ndarray, config: PrepareConfig
    ) -> None:
        self.limit = heldout_limit(config.heldout_prob)
        self.rule = "documents chosen by a hash of (seed, text)"
        self.divides = self.takes_first = False
        num_documents = num_heldout = first = 0
        least, most = np.uint64(2**64 - 1), np.uint64(0)
        for place in places:
            hashes = np.fromfile(place / "hashes", "<u8")
            kept = hashes[~is_dropped[first : first + len(hashes)]]
            first += len(hashes)
            if len(kept):
                least, most = min(least, kept.min()), max(most, kept.max())
            num_documents += len(kept)
            num_heldout += int(np.count_nonzero(kept < self.limit))
        require(num_documents > 0, "the files hold no text, only white space or what is dropped")
        # With few documents the hash can leave a part empty.
        if num_heldout in (0, num_documents):
            self.limit = np.uint64(0)
            if num_documents == 1:
                self.divides = True
            elif least == most:
                self.takes_first, self.rule = True, "the first of equal documents"
            else:
                self.limit = least + np.uint64(1)
                self.rule = "the document with the smallest hash of (seed, text)"

    def choose(self, shard: _TaskShard) -> np.ndarray:
        """Return which documents of a shard are held out (D,); called for all shards in turn."""
        if self.divides:
            self.rule = "the end of the only document"
            return shard.is_kept
        is_heldout = shard.is_kept & (shard.hashes < self.limit)
        if self.takes_first and shard.is_kept.any():
            is_heldout[np.argmax(shard.is_kept)] = True
            self.takes_first = False
        return is_heldout


def _read_shard(source: Path, dtype: str) -> Iterator[tuple[slice, TokenBatch]]:
    """Yield the content of a shard of a task, about PART_TOKENS at a time.

    Yields:
        The numbers of some documents, and these documents.
    """
    documents = np.fromfile(f"{source}.documents", OFFSET_DTYPE).astype(np.int64)
    first = 0
    while first < len(documents):
        # Maps of their own for each part: what was read of a map counts as memory until its end.
        tokens = np.memmap(f"{source}.tokens", dtype, mode="r")
        lines = np.memmap(f"{source}.lines", OFFSET_DTYPE, mode="r")
        begin = documents[first]
        last = max(int(np.searchsorted(documents, begin + PART_TOKENS)), first + 1)
        starts = documents[first:last]
        end = documents[last] if last < len(documents) else len(tokens)
        inside = slice(*np.searchsorted(lines, np.array([begin, end], OFFSET_DTYPE)))
        line_lengths, document_lengths = (
            np.diff(each, append=end) for each in (lines[inside].astype(np.int64), starts)
        )
        batch = TokenBatch(np.array(tokens[begin:end]), line_lengths, document_lengths, 0)
        yield slice(first, last), batch
        first = last


def _split_document(
    document: tuple[np.ndarray, np.ndarray, np.ndarray], heldout_prob: float
) -> TokenBatch:
    """Return the only document split in two. The second part is held out: its last lines."""
    tokens, line_lengths, _ = document
    num_tokens, num_lines = len(tokens), len(line_lengths)
    require(num_tokens > 1, "the text is a single token; there is nothing to hold out")
    if num_lines > 1:
        num_last = min(max(1, round(heldout_prob * num_lines)), num_lines - 1)
        last_tokens = int(line_lengths[-num_last:].sum())
    else:
        last_tokens = min(max(1, round(heldout_prob * num_tokens)), num_tokens - 1)
        line_lengths = np.array([num_tokens - last_tokens, last_tokens])
    document_lengths = np.array([num_tokens - last_tokens, last_tokens])
    return TokenBatch(tokens, line_lengths, document_lengths, 0)


def _write_dropped(
    path: Path,
    tasks: Sequence[Task],
    places: Sequence[Path],
    is_dropped: np.ndarray,
    seed: int,
    names: Sequence[str] | None,
) -> None:
    """Write the documents that filters dropped, and the duplicates, which are read again."""
    first = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for task, place in zip(tasks, places, strict=True):
            with (place / "dropped").open(encoding="utf-8") as filtered:
                shutil.copyfileobj(filtered, file)
            hashes = np.fromfile(place / "hashes", "<u8")
            is_gone = is_dropped[first : first + len(hashes)]
            first += len(hashes)
            # Of the texts that are read again, those without a hash here were dropped by a filter.
            texts = read_pieces(task, TextCounts(), names) if is_gone.any() else iter(())
            number = 0
            for text in texts:
                if number < len(hashes) and hash_documents([text], seed)[0] == hashes[number]:
                    if is_gone[number]:
                        write_dropped(file, text, "duplicate")
                    number += 1
