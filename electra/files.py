"""Files and folders that are whole or not there, and hashes to tell damage."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from electra.config import require


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
    except BaseException as error:
        shutil.rmtree(incomplete, ignore_errors=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(folder)  # writing to an open file does not say where
        raise
