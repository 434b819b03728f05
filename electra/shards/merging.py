"""The last step of a preparation: duplicates, the held-out part and the manifest.

The folders of the pieces are only read, so that the step can be done again after an interrupt. Most
shards of the pieces become shards of the train part as they are. Only the held-out part and shards
from which documents are dropped are written anew.

For pieces at a URL, hashes and signatures of documents are copied here; a shard that is written
anew is copied while it is read. The held-out part is on this disk until it is whole.
"""

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra.errors import UserError, require
from electra.files import (
    check_hashes,
    make_folder,
    read_object,
    sha256_file,
    sync,
    sync_all,
    write_facts,
)
from electra.objects import copy_object, is_url, list_sizes, read_bytes, send
from electra.shards.cleaning import find_repeats, write_dropped
from electra.shards.config import PrepareConfig
from electra.shards.layout import (
    COLUMNS,
    FORMAT,
    MOVES,
    OFFSET_DTYPE,
    PARTS,
    VERSION,
    Manifest,
    read_moves,
    shard_name,
)
from electra.shards.pieces import (
    RECORD,
    Piece,
    Piecewise,
    hash_documents,
    heldout_limit,
    read_texts,
    select,
    sum_records,
)
from electra.shards.writing import ShardWriter, describe_part
from electra.text.characters import replace_surrogates
from electra.text.documents import TextCounts
from electra.text.sources import Sources
from electra.tokenizing.tokenizer import Tokenizer, tokens_dtype
from electra.tokenizing.words import TokenBatch

PIECES = "tasks"
"""The folder of the folders of all pieces."""
DROPPED = "dropped.jsonl"
DUPLICATES = ("", "duplicate", "near duplicate")
"""Why a document is dropped as another's duplicate; the first: it is not."""
OF_DOCUMENTS = ("hashes", "signatures", "dropped")
"""Files of a piece that the last step reads as a whole."""
MAX_GATHERED = 16
"""Pieces at a URL that are asked for at the same time."""
PART_TOKENS = 1 << 22
"""Tokens of a shard that are in memory at a time, or those of a larger document."""


class TooLittleText(UserError):
    """Nothing to train on, or nothing to hold out: the same pieces would be refused again."""


def merge_pieces(
    folder: Path,
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    config: PrepareConfig,
    sources: Sources,
    top: Path,
) -> None:
    """Write the manifest, the held-out part and what differs from the shards of the pieces.

    The shards of the pieces are not touched, so that this can be done again after an interrupt.
    The manifest is written when all that it names is on the disk, or at the URL. The pieces are in
    `top`, which is the folder itself, or a URL.
    """
    if is_url(top):
        _gather(top / PIECES, folder / PIECES, pieces)
    places = [folder / PIECES / piece.place(top / PIECES).name for piece in pieces]
    records = [read_object(place / RECORD, Piecewise) for place in places]
    text, dropped, num_unknown = sum_records(records)
    duplicates, num_repeats = _find_duplicates(places, config, dropped)
    is_dropped = duplicates > 0
    is_heldout, rule = _hold_out(places, is_dropped, config)
    divided = config.heldout_prob if np.count_nonzero(~is_dropped) == 1 else None
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    tokenizer.save(folder / "tokenizer")
    sizes = {"vocab_size": tokenizer.vocab_size, "shard_tokens": config.shard_tokens}
    shards = _list_shards(places, records, is_dropped, is_heldout, config)
    parts, moves, num_lost = _divide(shards, folder, top, divided, tokenizer, sizes)
    if config.write_dropped:
        _write_dropped(folder / DROPPED, pieces, places, duplicates, config.seed, tokenizer.names)
    # The settings that the shards depend on. Their order and what is left out stay: the sha256 of
    # the manifest is the identity of the shards, which results/ records.
    left_out = {"workers", *(["form"] if config.form == "auto" else [])}
    settings = {"border": config.border} | asdict(config)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": tokens_dtype(tokenizer.vocab_size),
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_digest": tokenizer.digest,
        "source_files": [replace_surrogates(path.name) for path in sources.files],
        "passed_over": len(sources.passed_over),
        "text": _describe_text(text, pieces, sources),
        "unk_tokens": num_unknown - num_lost,
        "duplicates": num_repeats,
        "dropped": dropped,
        "heldout": rule,
        "config": {name: each for name, each in settings.items() if name not in left_out},
        "parts": parts,
    }
    sync_all(folder)
    write_facts(folder / MOVES, moves)
    write_facts(folder / "manifest.json", manifest)


def _divide(
    shards: Iterator["_PieceShard"],
    folder: Path,
    top: Path,
    divided: float | None,
    tokenizer: Tokenizer,
    sizes: dict[str, int],
) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return the parts, where the train part's shards are, by name, and the [UNK] dropped."""
    moves: dict[str, str] = {}
    entries: list[dict[str, Any]] = []
    num_unknown = 0
    with closing(ShardWriter(folder, "heldout", **sizes)) as heldout:
        for shard in shards:
            entry: dict[str, Any] | None = shard.entry
            if not shard.is_kept.all() or shard.is_heldout.any():
                with _at_hand(shard, top / shard.place.relative_to(folder)):
                    entry, num_lost = _take_out(shard, divided, heldout, tokenizer, sizes)
                num_unknown += num_lost
            if entry is not None:
                name = shard_name("train", len(entries))
                entries.append({**entry, "name": name})
                moves[name] = (shard.place / entry["name"]).relative_to(folder).as_posix()
        parts = {"train": describe_part(entries), "heldout": heldout.finish()}
    return parts, moves, num_unknown


def _describe_text(
    counts: dict[str, Any], pieces: Sequence[Piece], sources: Sources
) -> dict[str, Any]:
    """Return the counts of the text for the manifest."""
    # A file counts its bytes once a range. Which counts may be left out stays, for the digest.
    num_bytes = sum({each: each.size for piece in pieces for each in piece.ranges}.values())
    forms = {} if counts["forms"].keys() == {"plain text"} else counts["forms"]
    text = {"files": len(sources.files), **counts, "source_bytes": num_bytes, "forms": forms}
    later = ("files_of_one_document", "empty", "forms")
    return {name: count for name, count in text.items() if count or name not in later}


def move_shards(folder: Path) -> None:
    """Move the shards of the pieces to their places, and remove the rest of the pieces.

    This can be begun again after an interrupt, since every step may have been done before.
    """
    for after, before in read_moves(folder).items():
        for column in COLUMNS:
            if (source := folder / f"{before}.{column}").exists():
                source.replace(folder / f"{after}.{column}")
    sync(folder)
    shutil.rmtree(folder / PIECES, ignore_errors=True)
    (folder / MOVES).unlink(missing_ok=True)


def send_merged(folder: Path, url: Path) -> None:
    """Send to a URL what the last step has written to a folder, but for the manifest."""
    moves = read_moves(folder)
    names = [name for name in list_hashes(folder) if moved(name, moves) == name]
    names += [f"tokenizer/{path.name}" for path in sorted((folder / "tokenizer").iterdir())]
    names += [name for name in (DROPPED, MOVES) if (folder / name).exists()]
    for name in names:
        send(folder / name, url / name)


def is_merged(folder: Path) -> bool:
    """Return whether the manifest is written, and each shard that it names is whole, moved or not.

    Pieces may be gone then; otherwise the last step begins again, and pieces that are gone too.
    """
    try:
        moves = read_moves(folder)
        check_hashes(folder / "tokenizer")
        for name, sha256 in list_hashes(folder).items():
            places = (folder / name, folder / moved(name, moves))
            if not any(path.is_file() and sha256_file(path) == sha256 for path in places):
                return False
    except (UserError, KeyError, TypeError, ValueError):
        return False
    return True


def moved(name: str, moves: dict[str, str]) -> str:
    """Return where the file of a shard is in its folder, by `read_moves`."""
    shard, _, column = name.rpartition(".")
    return f"{moves.get(shard, shard)}.{column}"


def list_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of each shard file that the manifest names."""
    parts = read_object(folder / "manifest.json", Manifest)["parts"]
    shards = [entry for part in PARTS for entry in parts[part]["shards"]]
    return {f"{each['name']}.{c}": each["sha256"][c] for each in shards for c in COLUMNS}


def _gather(url: Path, folder: Path, pieces: Sequence[Piece]) -> None:
    """Copy to a folder what the last step reads of all pieces at a URL, but for their shards."""
    sizes = list_sizes(url)
    # The held-out shards of pieces become one part, which is here, and one of them at a time.
    parts = (*OF_DOCUMENTS, "heldout-")
    names = {piece.place(url).name for piece in pieces}
    read = [name.split("/") for name in sizes if name.partition("/")[0] in names]
    needed = sum(sizes["/".join(each)] for each in read if each[-1].startswith(parts))
    make_folder(folder)
    free = shutil.disk_usage(folder).free
    require(
        needed <= free,
        f"the last step needs {needed / 1e9:,.1f} GB in {folder.parents[1]}, where "
        f"{free / 1e9:,.1f} GB are free; let TMPDIR name a folder with more",
    )

    def gather(piece: Piece) -> None:
        place, own = piece.place(url), folder / piece.place(url).name
        own.mkdir()
        content = read_bytes(place / RECORD)
        require(content is not None, f"{place / RECORD} is missing")
        (own / RECORD).write_bytes(content or b"")
        for name, sha256 in read_object(own / RECORD, Piecewise)["sha256"].items():
            if name in OF_DOCUMENTS:
                copy_object(place / name, own / name, sha256)
            # A list may be old: what is not in it is asked for itself.
            elif f"{place.name}/{name}" not in sizes and not list_sizes(place).get(name):
                raise UserError(f"{place / name} is missing; remove {place / RECORD}, and repeat")

    with ThreadPoolExecutor(MAX_GATHERED) as pool:
        list(pool.map(gather, pieces))


@contextmanager
def _at_hand(shard: "_PieceShard", place: Path) -> Iterator[None]:
    """Hold a shard's files in its folder, as copies if it is at a URL; send the results back."""
    if not is_url(place):
        yield
        return
    name = shard.entry["name"]
    for column in COLUMNS:
        file = f"{name}.{column}"
        copy_object(place / file, shard.place / file, shard.entry["sha256"][column])
    yield
    for path in shard.place.glob(f"rest-{name}-*"):
        send(path, place / path.name)
    for path in (*shard.place.glob(f"rest-{name}-*"), *shard.place.glob(f"{name}.*")):
        path.unlink()


def _find_duplicates(
    places: Sequence[Path], config: PrepareConfig, dropped: dict[str, int]
) -> tuple[np.ndarray, int]:
    """Return numbers in DUPLICATES (N,), noted in `dropped`, and how many repeat earlier ones."""
    found = find_repeats([place / "hashes" for place in places]).astype(np.uint8)
    num_repeats = int(np.count_nonzero(found))
    if config.duplicates == "keep":
        return np.zeros_like(found), num_repeats
    dropped["duplicate"] = num_repeats
    if config.duplicates == "near":
        from electra.shards.near_duplicates import find_near_duplicates

        is_near = find_near_duplicates([place / "signatures" for place in places])
        found[is_near & (found == 0)] = 2
        dropped["near duplicate"] = int(np.count_nonzero(found == 2))
    return found, num_repeats


def _read_hashes(places: Sequence[Path], *of_all: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the hashes of each piece's documents (D,), and their part of arrays of all (N,)."""
    first = 0
    for place in places:
        hashes = np.fromfile(place / "hashes", "<u8")
        yield hashes, *(each[first : first + len(hashes)] for each in of_all)
        first += len(hashes)


class _PieceShard(NamedTuple):
    """A shard of a piece, and its documents (D,)."""

    place: Path
    """The folder of the piece."""
    entry: dict[str, Any]
    is_kept: np.ndarray
    is_heldout: np.ndarray


def _list_shards(
    places: Sequence[Path],
    records: Sequence[dict[str, Any]],
    is_dropped: np.ndarray,
    is_heldout: np.ndarray,
    config: PrepareConfig,
) -> Iterator[_PieceShard]:
    """Yield the shards of all pieces in the order of the text, those of both parts."""
    found = _read_hashes(places, is_dropped, is_heldout)
    for place, record, (hashes, is_gone, is_chosen) in zip(places, records, found, strict=True):
        was_heldout = hashes < heldout_limit(config.heldout_prob)
        for part, is_part in zip(PARTS, (~was_heldout, was_heldout), strict=True):
            documents = np.flatnonzero(is_part)
            for entry in record["parts"][part]["shards"]:
                inside, documents = np.split(documents, [entry["num_documents"]])
                yield _PieceShard(place, entry, ~is_gone[inside], is_chosen[inside])


def _hold_out(
    places: Sequence[Path], is_dropped: np.ndarray, config: PrepareConfig
) -> tuple[np.ndarray, str]:
    """Return which documents are held out (N,), and the rule; neither part may be empty."""
    is_kept, limit = ~is_dropped, heldout_limit(config.heldout_prob)
    count = int(np.count_nonzero(is_kept))
    if not count:
        raise TooLittleText("the files hold no text, only white space or what is dropped")
    is_below = np.concatenate([hashes < limit for (hashes,) in _read_hashes(places)]) & is_kept
    if np.count_nonzero(is_below) not in (0, count):
        return is_below, "documents chosen by a hash of (seed, text)"
    if count == 1:
        return is_kept, "the end of the only document"
    kept = (hashes[~is_gone] for hashes, is_gone in _read_hashes(places, is_dropped))
    least = min(hashes.min() for hashes in kept if len(hashes))
    is_least = np.concatenate([hashes == least for (hashes,) in _read_hashes(places)]) & is_kept
    if np.count_nonzero(is_least) < count:
        return is_least, "the document with the smallest hash of (seed, text)"
    return np.arange(len(is_kept)) == np.argmax(is_kept), "the first of equal documents"


def _take_out(
    shard: _PieceShard,
    divided: float | None,
    heldout: ShardWriter,
    tokenizer: Tokenizer,
    sizes: dict[str, int],
) -> tuple[dict[str, Any] | None, int]:
    """Hold out documents; return the entry of what stays, if anything, and the [UNK] dropped."""
    name, num_lost = shard.entry["name"], 0
    with closing(ShardWriter(shard.place, f"rest-{name}", **sizes)) as rest:
        for inside, batch in _read_shard(shard.place / name, tokens_dtype(tokenizer.vocab_size)):
            is_kept, is_chosen = shard.is_kept[inside], shard.is_heldout[inside]
            lost = batch.tokens[np.repeat(~is_kept, batch.document_lengths)]
            num_lost += int(np.count_nonzero(lost == tokenizer.unk_id))
            if divided is not None and is_kept.any():  # a share of the only document is held out
                batch = _split_document(select(batch, is_kept), divided)
                is_kept, is_chosen = np.array([True, True]), np.array([False, True])
            heldout.write(*select(batch, is_chosen))
            rest.write(*select(batch, is_kept & ~is_chosen))
        remaining = rest.finish()["shards"]
    return remaining[0] if remaining else None, num_lost


def _read_shard(source: Path, dtype: str) -> Iterator[tuple[slice, TokenBatch]]:
    """Yield the numbers of some documents of a shard, and these documents of about PART_TOKENS."""
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
        batch = TokenBatch(np.array(tokens[begin:end]), line_lengths, document_lengths)
        yield slice(first, last), batch
        first = last


def _split_document(
    document: tuple[np.ndarray, np.ndarray, np.ndarray], heldout_prob: float
) -> TokenBatch:
    """Return the only document split in two. The second part is held out: its last lines."""
    tokens, line_lengths, _ = document
    num_tokens, num_lines = len(tokens), len(line_lengths)
    if num_tokens == 1:
        raise TooLittleText("the text is a single token; there is nothing to hold out")
    if num_lines > 1:
        num_last = min(max(1, round(heldout_prob * num_lines)), num_lines - 1)
        last_tokens = int(line_lengths[-num_last:].sum())
    else:
        last_tokens = min(max(1, round(heldout_prob * num_tokens)), num_tokens - 1)
        line_lengths = np.array([num_tokens - last_tokens, last_tokens])
    document_lengths = np.array([num_tokens - last_tokens, last_tokens])
    return TokenBatch(tokens, line_lengths, document_lengths)


def _write_dropped(
    path: Path,
    pieces: Sequence[Piece],
    places: Sequence[Path],
    duplicates: np.ndarray,
    seed: int,
    names: Sequence[str] | None,
) -> None:
    """Write the documents that filters dropped, and the duplicates, which are read again."""
    found = _read_hashes(places, duplicates)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for piece, place, (hashes, kinds) in zip(pieces, places, found, strict=True):
            with (place / "dropped").open(encoding="utf-8") as filtered:
                shutil.copyfileobj(filtered, file)
            # Texts that are read again and have no hash here were dropped by a filter.
            texts = read_texts(piece, TextCounts(), names) if kinds.any() else iter(())
            number = 0
            for text in texts:
                if number < len(hashes) and hash_documents([text], seed)[0] == hashes[number]:
                    if kinds[number]:
                        write_dropped(file, text, DUPLICATES[kinds[number]])
                    number += 1
