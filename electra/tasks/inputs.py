"""The files of a task, found in a folder, and what files to predict have in common."""

import re
from collections.abc import Sequence
from pathlib import Path

from electra.errors import require
from electra.text.streams import STDIN
from electra.text.tables import TableFile, format_of, read_text_lines, stem_of

TEXT = ".txt"


def find_files(
    data: Path,
    split: str,
    names: str,
    formats: Sequence[str],
    *,
    chosen: Sequence[str] = (),
    setting: str = "",
) -> list[Path]:
    """Return the chosen files of a folder, by default the one that is named as a split is.

    Args:
        data: The folder.
        split: train, dev or test; a test file may be missing.
        names: Regular expression of the file's name without format and compression.
        formats: The formats that it may have.
        chosen: Names of the files to take instead.
        setting: The section of the settings that chooses; empty if none does.

    Raises:
        UserError: A chosen file is missing; or no file is chosen and there are several, or none for
            train or dev.
    """
    for name in chosen:
        require((data / name).is_file(), f"{setting}.{split}: no file {data / name}")
    if chosen:
        return [data / name for name in chosen]
    require(data.is_dir(), f"{data} is not a folder; give the one with train and dev files")
    found = sorted(
        path
        for path in data.iterdir()
        if re.fullmatch(names, stem_of(path, formats)) and path.is_file()
    )
    listed = ", ".join(path.name for path in found)
    advice = f"choose with {setting}.{split}" if setting else "keep one of them there"
    require(len(found) <= 1, f"{data} has several {split} files: {listed}; {advice}")
    advice = f", or name it with {setting}.{split}" if setting else ""
    require(
        bool(found) or split == "test",
        f"{data} has no {split} file; add {split} with {', '.join(formats)}{advice}",
    )
    return found


def is_plain(path: Path) -> bool:
    """Return whether a file to predict is plain text: standard input or .txt."""
    return path == STDIN or format_of(path) == TEXT


def read_plain(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank; refuse a file without any."""
    lines = [line for line in read_text_lines(path) if line.strip()]
    require(bool(lines), f"{path} is empty: it must have at least one line of text")
    return lines


def require_format(path: Path, formats: Sequence[str]) -> None:
    """Refuse a file of another format."""
    require(
        format_of(path) in formats,
        f"{path} must be {', '.join(formats)}, compressed or not, not {format_of(path)!r}",
    )


def choose_columns(table: TableFile, columns: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the columns that the user named, or else those expected; all of them are there."""
    require(
        len(columns) in (0, len(expected)),
        f"--columns must name {len(expected)}, as {', '.join(expected)}, not {', '.join(columns)}",
    )
    missing = [name for name in columns or expected if name not in table.columns]
    require(
        not missing,
        f"{table.path}: no column {', '.join(map(repr, missing))}; its columns are "
        f"{', '.join(table.columns)}; say with --columns which to read in place of "
        f"{', '.join(expected)}",
    )
    return list(columns or expected)
