"""Files and folders that are whole or not there, and hashes to tell damage."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from electra.config import UserError, require

HASHES = "electra.json"
"""The file of a folder that `write_hashes` writes and `check_hashes` reads."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary name, so that a reader sees the old file or the new one."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 likewise."""
    temporary = path.with_name(path.name + ".incomplete")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        UserError: The file cannot be read, is not valid JSON, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    require(isinstance(value, dict), f"{path} must hold a JSON object")
    return value


def write_hashes(folder: Path, **facts: Any) -> None:
    """Write electra.json: the facts given, and the sha256 of each file in the folder.

    Subfolders are left out; a subfolder may have an electra.json of its own.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    hashes = {path.name: sha256_file(path) for path in files}
    write_json(folder / HASHES, {**facts, "sha256": hashes})


def check_hashes(folder: Path) -> None:
    """Compare the files of a folder with its electra.json; do nothing if it has none.

    Raises:
        UserError: A file is missing or was changed.
    """
    path = folder / HASHES
    if not path.is_file():
        return
    advice = f"write the folder anew or, if it was changed on purpose, remove {path}"
    hashes = read_object(path).get("sha256")
    if not isinstance(hashes, dict):
        raise UserError(f"{path} is damaged: it holds no sha256; {advice}")
    for name, digest in hashes.items():
        file = folder / name
        require(file.is_file(), f"{file} is missing, but {path} names it; {advice}")
        require(
            sha256_file(file) == digest,
            f"{file} is damaged: it does not match its sha256 in {path}; {advice}",
        )


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give `<folder>.incomplete` to write into, and rename it at the end; on an error, remove it.

    Raises:
        UserError: the folder exists already.
    """
    require(not folder.exists(), f"{folder} exists already; remove it or choose another name")
    incomplete = folder.with_name(f"{folder.name}.incomplete")
    shutil.rmtree(incomplete, ignore_errors=True)  # of a run that was killed
    incomplete.mkdir(parents=True)
    try:
        yield incomplete
        incomplete.rename(folder)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
