"""The text files that the user's paths, folders and patterns name.

A named file is read, or refused if it is not text. In a folder or a pattern, everything that is not
text is skipped and reported: binary files, other encodings, and folders written by the commands,
which would otherwise become part of the next corpus. A folder that cannot be listed is an error.
"""

import codecs
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from electra.errors import UserError, require
from electra.text.streams import (
    DETECT,
    STDIN,
    UTF8,
    check_encoding,
    detect,
    find_mark,
    find_urls,
    guess,
    is_dataset,
    is_url,
    is_utf8,
    open_source,
)
from electra.text.tables import COLUMNAR_FORMATS, format_of

FIRST_BYTES = 1 << 16
"""Bytes of the decompressed content that decide whether a file is text."""
FEW_BYTES = 200
"""Of fewer bytes no encoding is guessed to advise it."""
MAX_INVALID_SHARE = 0.1
"""Largest share of invalid characters in a UTF-8 text file. Stray bytes and Latin-1 lie below,
encodings of other scripts far above."""

DATASET_MARKS = {"dataset_info.json", "state.json"}
"""Files of a folder that `datasets` saved. Its text is in its .arrow files."""
WRITTEN_FOLDERS = {
    "a shards folder": {"manifest.json", "tokenizer", "train-00000.tokens"},
    "a tokenizer folder": {"tokenizer.json", "tokenizer_config.json"},
    "a model folder": {"config.json", "model.safetensors"},
    "a run or fine-tuning folder": {"config.json", "manifest.json"},
    "a quickstart folder": {"tokenizer", "shards", "run", "exported", "report.html"},
}
"""Folders written by the commands, each recognised by names that no other folder holds together."""
INCOMPLETE = ".incomplete"
"""Suffix of files and folders that a command has not finished."""
UNREPORTED = ("empty", "a folder")
"""Kinds of paths in a folder or a pattern that are skipped without a report."""
MAX_NAMED = 8
"""Skipped files and folders that a message names. The rest is a number."""

Named = Sequence[tuple[Path, str]]


@dataclass(frozen=True)
class Sources:
    """The files to read, each once, and the skipped files and folders."""

    files: tuple[Path, ...]
    passed_over: tuple[tuple[Path, str], ...] = ()
    """Skipped files and folders, each with its kind, such as "binary"."""
    encodings: tuple[tuple[Path, str], ...] = ()
    """Files that are not UTF-8 and the encoding detected for each."""


def find_sources(paths: Sequence[str], encoding: str = UTF8) -> Sources:
    """Return the text files that paths, folders and patterns name; "-" is standard input.

    A folder names all files below it, sorted, without hidden and empty files. A pipe is read only
    if it is named itself. A name may be a URL, or datasets:NAME.

    Args:
        paths: The names.
        encoding: That of the text; "detect" tells it for each file.

    Raises:
        UserError: A path names no file, or a named file is not text.
        OSError: A folder cannot be listed.
    """
    require(bool(paths), "no text given; name files, folders or globs, or - for standard input")
    check_encoding(encoding)
    files: list[Path] = []
    passed_over: list[tuple[Path, str]] = []
    for name in paths:
        require(bool(name), "an empty name among the texts; . is this folder")
        path = Path(name)
        if path == STDIN or is_dataset(name):
            files.append(path)
            continue
        if is_url(name):
            found, rule = find_urls(name), f"{name} names no files with text"
        elif path.is_dir():
            kind = _kind_of(path)
            require(not kind, f"{name} is {kind}, not text")
            found = sorted(_walk(path, passed_over))
            rule = f"the folder {name} holds no files with text"
        elif path.exists():
            # A pipe is not looked into, because that would consume it.
            kind = "" if path.is_fifo() else _why_no_text(path, encoding)
            require(not kind, f"{path} is not text: {kind}")
            files.append(path)
            continue
        else:
            found = sorted(_match(name, passed_over))
            rule = f"{'no file matches' if glob.has_magic(name) else 'there is no file'} {name}"
        chosen = _choose_text(found, passed_over, encoding)
        require(bool(chosen), "; ".join(filter(None, (rule, name_passed_over(passed_over)))))
        files += chosen
    files = list(dict.fromkeys(files))
    told = [(path, encoding_of(path, encoding)) for path in files] if encoding == DETECT else []
    others = tuple((path, name) for path, name in told if not is_utf8(name))
    return Sources(tuple(files), tuple(dict.fromkeys(passed_over)), others)


def encoding_of(path: Path, encoding: str) -> str:
    """Return the encoding of a file: the one that is named, or the one detected."""
    if encoding != DETECT:
        return encoding
    if path == STDIN or is_dataset(path) or path.is_fifo():
        return UTF8  # reading it would consume it
    if format_of(path) in COLUMNAR_FORMATS:
        return UTF8
    return detect(_first_bytes(path)) or UTF8


def name_encodings(encodings: Named) -> str:
    """Return a sentence on the encodings that were detected, or "" if all files are UTF-8."""
    return _name_first("encodings detected", encodings)


def name_passed_over(passed_over: Named) -> str:
    """Return a sentence on the skipped files and folders, or "" if there are none."""
    return _name_first("skipped, because not text", passed_over)


def _name_first(what: str, found: Named) -> str:
    named = [f"{path} ({kind})" for path, kind in found[:MAX_NAMED]]
    if len(found) > MAX_NAMED:
        named.append(f"and {len(found) - MAX_NAMED:,} more")
    return f"{what}: {', '.join(named)}" if named else ""


def _walk(top: Path, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the files below a folder, except hidden files and folders written by the commands."""
    for name, subfolders, names in os.walk(top, onerror=_raise):
        folder = Path(name)
        entered = []
        for path in (folder / each for each in sorted(subfolders) if not each.startswith(".")):
            kind = "a link to a folder" if path.is_symlink() else _kind_of(path)
            if kind:
                passed_over.append((path, kind))
            else:
                entered.append(path.name)
        subfolders[:] = entered
        is_dataset_folder = DATASET_MARKS.issubset(names)
        for each in names:
            is_hidden = each.startswith(".") or each == "dataset_dict.json"
            if not is_hidden and (each.endswith(".arrow") or not is_dataset_folder):
                yield folder / each


def _raise(error: OSError) -> None:
    raise error


def _kind_of(folder: Path) -> str:
    """Return the kind of a folder written by a command, or "" for any other folder."""
    names = {path.name for path in folder.iterdir()}
    if folder.name.endswith(INCOMPLETE):
        return "an unfinished folder"
    return next((kind for kind, marks in WRITTEN_FOLDERS.items() if marks <= names), "")


def _match(pattern: str, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the paths that match a pattern, except those in folders written by the commands.

    A folder of the search that cannot be listed is an OSError; the glob module ignores it.
    """
    parts = Path(pattern).parts
    magic = [number for number, part in enumerate(parts) if glob.has_magic(part)]
    for number in magic:
        looked_through = Path(*parts[:number], "**" if parts[number] == "**" else "")
        # Path.glob refuses absolute patterns. The final slash selects folders only.
        for name in glob.iglob(f"{looked_through}/", recursive=True):  # noqa: PTH207
            list(Path(name).iterdir())
    kind_of = cache(_kind_of)
    for path in map(Path, glob.iglob(pattern, recursive=True)):  # noqa: PTH207
        lengths = range(min(magic, default=len(parts)), len(path.parts))
        folders = (Path(*path.parts[:length]) for length in lengths)
        written = next((folder for folder in folders if kind_of(folder)), None)
        if written is None:
            yield path
        else:
            passed_over.append((written, kind_of(written)))


def _choose_text(
    paths: Iterable[Path], passed_over: list[tuple[Path, str]], encoding: str
) -> list[Path]:
    """Return the text files, and report what else is there."""
    chosen = []
    for path in paths:
        kind = _why_no_text(path, encoding)
        if kind not in UNREPORTED and path.name.endswith(INCOMPLETE):
            kind = "an unfinished file"
        if not kind:
            chosen.append(path)
        elif kind not in UNREPORTED:
            passed_over.append((path, kind))
    return chosen


def _why_no_text(path: Path, encoding: str) -> str:
    """Return the kind of a path that is no file of text, by its first bytes, or "" for a text."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return "a link to nothing"
    if not stat.S_ISREG(status.st_mode):
        return "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
    if not status.st_size:
        return "empty"
    if format_of(path) in COLUMNAR_FORMATS:
        return ""
    first = _first_bytes(path)
    if encoding == DETECT:
        return "" if detect(first) else "binary"
    if not is_utf8(encoding):
        return "" if _is_mostly_valid(first, encoding) else f"not {encoding}"
    if mark := find_mark(first):
        return f"{mark.upper()}; read it with --set encoding={mark}"
    if b"\0" in first:
        return "binary"
    if _is_mostly_valid(first, UTF8):
        return ""
    try:
        likely = guess(first) if len(first) >= FEW_BYTES else ""
    except UserError:
        likely = ""
    advice = f"; if it is {likely}, read it with --set encoding={likely}" if likely else ""
    return f"binary, or text that is not UTF-8{advice}"


def _first_bytes(path: Path) -> bytes:
    with open_source(path) as (_, stream):
        return stream.read(FIRST_BYTES)


def _is_mostly_valid(first: bytes, encoding: str) -> bool:
    # The last character may be incomplete, so `final` stays False.
    try:
        text = codecs.getincrementaldecoder(encoding)("replace").decode(first)
    except UnicodeError:
        return False
    num_invalid = text.count("\ufffd") - first.count("\ufffd".encode())
    return num_invalid <= MAX_INVALID_SHARE * len(text)
