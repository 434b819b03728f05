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

from electra.config import require
from electra.corpus.compression import STDIN, compression_of, open_source

FIRST_BYTES = 1 << 16
"""Bytes of the decompressed content that decide whether a file is text."""
MAX_INVALID_SHARE = 0.1
"""Largest share of invalid characters in a UTF-8 text file. Stray bytes and Latin-1 lie below,
encodings of other scripts far above."""

UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
UTF16 = "UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"

WRITTEN_FOLDERS = {
    "a shards folder": {"manifest.json", "tokenizer", "train-00000.tokens"},
    "a tokenizer folder": {"tokenizer.json", "tokenizer_config.json", "vocab.txt"},
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


def find_sources(paths: Sequence[str]) -> Sources:
    """Return the text files that paths, folders and patterns name; "-" is standard input.

    A folder names all files below it, sorted, without hidden and empty files. A pipe is read only
    if it is named itself.

    Raises:
        UserError: A path names no file, or a named file is not text.
        OSError: A folder cannot be listed.
    """
    require(bool(paths), "no text given; name files, folders or globs, or - for standard input")
    files: list[Path] = []
    passed_over: list[tuple[Path, str]] = []
    for name in paths:
        path = Path(name)
        if path == STDIN:
            files.append(STDIN)
        elif path.is_dir():
            kind = _find_kind(path)
            require(not kind, f"{name} is {kind}, not text")
            found = _choose_text(sorted(_walk(path, passed_over)), passed_over)
            _require_any(found, f"the folder {name} holds no files with text", passed_over)
            files += found
        elif path.exists():
            _require_text(path)
            files.append(path)
        else:
            rule = "no file matches" if glob.has_magic(name) else "there is no file"
            found = _choose_text(sorted(_match(name, passed_over)), passed_over)
            _require_any(found, f"{rule} {name}", passed_over)
            files += found
    return Sources(tuple(dict.fromkeys(files)), tuple(dict.fromkeys(passed_over)))


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
        yield from (folder / each for each in names if not each.startswith("."))


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


def _choose_text(paths: Sequence[Path], passed_over: list[tuple[Path, str]]) -> list[Path]:
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
        kind = _why_no_text(path) if stat.S_ISREG(status.st_mode) else "not a regular file"
        if path.name.endswith(INCOMPLETE):
            kind = "an unfinished file"
        if kind:
            passed_over.append((path, kind))
        else:
            chosen.append(path)
    return chosen


def _require_text(path: Path) -> None:
    """Raise an error for a named file that is not text. A pipe is not checked: reading consumes it.

    Raises:
        UserError: The file is empty, not a regular file, or not text.
    """
    if path.is_fifo():
        return
    require(path.is_file(), f"{path} is neither a file, nor a folder, nor a pipe")
    require(path.stat().st_size > 0, f"the file {path} is empty")
    kind = _why_no_text(path)
    require(not kind, f"{path} is not text: {kind}")


def _why_no_text(path: Path) -> str:
    """Return the kind of a file that is not UTF-8 text, by its first bytes, or "" for a text."""
    if content_suffix(path) == ".parquet":
        return ""
    with open_source(path) as (_, stream):
        first = stream.read(FIRST_BYTES)
    if first.startswith(UTF16_BOMS):
        return UTF16
    if b"\0" in first:
        return "binary"
    # The last character may be incomplete, so `final` stays False.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(first)
    num_invalid = text.count("\ufffd") - first.count("\ufffd".encode())
    is_text = num_invalid <= MAX_INVALID_SHARE * len(text)
    return "" if is_text else "binary, or text that is not UTF-8"


def content_suffix(path: Path) -> str:
    """Return the suffix of a file's content: that of "a.jsonl.gz" is ".jsonl"."""
    return (path.with_suffix("") if compression_of(path) else path).suffix.lower()
