"""The text files that the user's paths, folders and patterns name.

A named file is read, or refused if it is not text. In a folder or a pattern, everything that is not
text is skipped and reported: binary files, other encodings, and folders written by the commands,
which would otherwise become part of the next corpus. A folder that cannot be listed is an error.
"""

import codecs
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.errors import UserError, require
from electra.text.streams import (
    BOMS,
    DETECT,
    STDIN,
    UTF8,
    check_encoding,
    compression_of,
    detect,
    find_urls,
    guess,
    is_dataset,
    is_url,
    is_utf8,
    open_source,
)

FIRST_BYTES = 1 << 16
"""Bytes of the decompressed content that decide whether a file is text."""
FEW_BYTES = 200
"""Of fewer bytes no encoding is guessed to advise it."""
MAX_INVALID_SHARE = 0.1
"""Largest share of invalid characters in a UTF-8 text file. Stray bytes and Latin-1 lie below,
encodings of other scripts far above."""

RECORD_SUFFIXES = (".parquet", ".arrow")
"""Formats that are not text, and have an encoding of their own."""
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
MAX_NAMED = 8
"""Skipped files and folders that a message names. The rest is a number."""
INCOMPLETE = ".incomplete"
"""Suffix of files and folders that a command has not finished."""


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
    if it is named itself. A name may be a URL, or datasets:NAME (remote.py).

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
        elif is_url(name):
            found = _choose_text(find_urls(name), passed_over, encoding)
            _require_any(found, f"{name} names no files with text", passed_over)
            files += found
        elif path.is_dir():
            kind = _find_kind(path)
            require(not kind, f"{name} is {kind}, not text")
            found = _choose_text(sorted(_walk(path, passed_over)), passed_over, encoding)
            _require_any(found, f"the folder {name} holds no files with text", passed_over)
            files += found
        elif path.exists():
            _require_text(path, encoding)
            files.append(path)
        else:
            rule = "no file matches" if glob.has_magic(name) else "there is no file"
            found = _choose_text(sorted(_match(name, passed_over)), passed_over, encoding)
            _require_any(found, f"{rule} {name}", passed_over)
            files += found
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
    if content_suffix(path) in RECORD_SUFFIXES:
        return UTF8
    with open_source(path) as (_, stream):
        return detect(stream.read(FIRST_BYTES)) or UTF8


def name_encodings(encodings: Sequence[tuple[Path, str]]) -> str:
    """Return a sentence on the encodings that were detected, or "" if all files are UTF-8."""
    named = [f"{path} ({name})" for path, name in encodings[:MAX_NAMED]]
    if len(encodings) > MAX_NAMED:
        named.append(f"and {len(encodings) - MAX_NAMED:,} more")
    return f"encodings detected: {', '.join(named)}" if named else ""


def name_passed_over(passed_over: Sequence[tuple[Path, str]]) -> str:
    """Return a sentence on the skipped files and folders, or "" if there are none."""
    named = [f"{path} ({kind})" for path, kind in passed_over[:MAX_NAMED]]
    if len(passed_over) > MAX_NAMED:
        named.append(f"and {len(passed_over) - MAX_NAMED:,} more")
    return f"skipped, because not text: {', '.join(named)}" if named else ""


def _require_any(found: Sequence[Path], rule: str, passed_over: Sequence[tuple[Path, str]]) -> None:
    require(bool(found), "; ".join(filter(None, (rule, name_passed_over(passed_over)))))


def _walk(top: Path, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the files below a folder, except hidden files and folders written by the commands."""
    for name, subfolders, names in os.walk(top, onerror=_raise):
        folder = Path(name)
        entered = []
        for subfolder in sorted(subfolders):
            path = folder / subfolder
            if subfolder.startswith("."):
                continue
            kind = "a link to a folder" if path.is_symlink() else _find_kind(path)
            if kind:
                passed_over.append((path, kind))
            else:
                entered.append(subfolder)
        subfolders[:] = entered
        if DATASET_MARKS.issubset(names):
            names = [each for each in names if each.endswith(".arrow")]
        yield from (
            folder / each
            for each in names
            if not each.startswith(".") and each != "dataset_dict.json"
        )


def _raise(error: OSError) -> None:
    raise error


def _find_kind(folder: Path) -> str:
    """Return the kind of a folder written by a command, or "" for any other folder."""
    names = {path.name for path in folder.iterdir()}
    if folder.name.endswith(INCOMPLETE):
        return "an unfinished folder"
    return next((kind for kind, marks in WRITTEN_FOLDERS.items() if marks <= names), "")


def _match(pattern: str, passed_over: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the paths that match a pattern, except those in folders written by the commands.

    Raises:
        OSError: A folder of the search cannot be listed. The glob module ignores such folders.
    """
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            looked_through = Path(*parts[:number], "**" if part == "**" else "")
            # Path.glob refuses absolute patterns. The final slash selects folders only.
            for name in glob.iglob(f"{looked_through}/", recursive=True):  # noqa: PTH207
                list(Path(name).iterdir())
    num_plain = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    kinds: dict[Path, str] = {}
    for path in map(Path, glob.iglob(pattern, recursive=True)):  # noqa: PTH207
        for length in range(num_plain, len(path.parts)):
            folder = Path(*path.parts[:length])
            if folder not in kinds:
                kinds[folder] = _find_kind(folder)
            if kinds[folder]:
                passed_over.append((folder, kinds[folder]))
                break
        else:
            yield path


def _choose_text(
    paths: Sequence[Path], passed_over: list[tuple[Path, str]], encoding: str
) -> list[Path]:
    """Return the text files. Empty files and folders are left out without a report."""
    chosen = []
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            passed_over.append((path, "a link to nothing"))
            continue
        if stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and not status.st_size):
            continue
        kind = (
            _why_no_text(path, encoding) if stat.S_ISREG(status.st_mode) else "not a regular file"
        )
        if path.name.endswith(INCOMPLETE):
            kind = "an unfinished file"
        if kind:
            passed_over.append((path, kind))
        else:
            chosen.append(path)
    return chosen


def _require_text(path: Path, encoding: str) -> None:
    """Raise an error for a named file that is not text. A pipe is not checked: reading consumes it.

    Raises:
        UserError: The file is empty, not a regular file, or not text.
    """
    if path.is_fifo():
        return
    require(path.is_file(), f"{path} is neither a file, nor a folder, nor a pipe")
    require(path.stat().st_size > 0, f"the file {path} is empty")
    kind = _why_no_text(path, encoding)
    require(not kind, f"{path} is not text: {kind}")


def _why_no_text(path: Path, encoding: str) -> str:
    """Return the kind of a file that is no text, by its first bytes, or "" for a text."""
    if content_suffix(path) in RECORD_SUFFIXES:
        return ""
    with open_source(path) as (_, stream):
        first = stream.read(FIRST_BYTES)
    if encoding == DETECT:
        return "" if detect(first) else "binary"
    if not is_utf8(encoding):
        return "" if _is_mostly_valid(first, encoding) else f"not {encoding}"
    mark = next((name for bom, name in BOMS.items() if first.startswith(bom)), "")
    if mark:
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


def _is_mostly_valid(first: bytes, encoding: str) -> bool:
    # The last character may be incomplete, so `final` stays False.
    try:
        text = codecs.getincrementaldecoder(encoding)("replace").decode(first)
    except UnicodeError:
        return False
    num_invalid = text.count("\ufffd") - first.count("\ufffd".encode())
    return num_invalid <= MAX_INVALID_SHARE * len(text)


def content_suffix(path: Path) -> str:
    """Return the suffix of a file's content: that of "a.jsonl.gz" is ".jsonl"."""
    return (path.with_suffix("") if compression_of(path) else path).suffix.lower()
