"""Files and folders that are whole or not there, hashes to tell damage, and locks."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from electra.config import UserError, require

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished"
"""The lock of a folder that `new_folder` writes; where it stands, the folder may be cleared."""
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


def write_hashes(folder: Path, **facts: Any) -> None:
    """Write electra.json: the facts given, and the sha256 of each file in the folder.

    Subfolders are left out; a subfolder may have an electra.json of its own.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != UNFINISHED)
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


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file.

    Raises:
        UserError: It cannot be read; the message names the file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UserError: It cannot be read or holds something else; the message names the file.
    """
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    require(isinstance(value, dict), f"{path} must hold an object, not {type(value).__name__}")
    return value


@contextmanager
def hold(lock: Path) -> Iterator[None]:
    """Hold the folder that a lock file stands in, for this process alone.

    The lock ends with the process, whatever ends it; a file that was left behind locks nothing.
    Where the system or the file system knows no locks, nothing is refused.

    Args:
        lock: The lock file; its folder must exist. It is removed at the end.

    Raises:
        UserError: Another process holds it.
    """
    with lock.open("a+", encoding="utf-8") as file:
        is_taken = False
        if fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_taken = not _is_open_as(file, lock)  # removed by who held it until now
            except BlockingIOError:
                is_taken = True
            except OSError:
                pass  # a file system without locks
        if is_taken:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(f"{lock.parent} is in use by {holder}; wait until it ends, or stop it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            if _is_open_as(file, lock):
                with suppress(OSError):
                    lock.unlink()


def _is_open_as(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give `<folder>.incomplete` to write into, and rename it at the end; on an error, remove it.

    What a process that was killed left there is cleared. A folder of this name that something else
    wrote, such as an unfinished fine-tuning, is not.

    Raises:
        UserError: The folder exists already, another process is writing it, or the other name is
            taken.
    """
    require(not folder.exists(), f"{folder} exists already; remove it or choose another name")
    incomplete = folder.with_name(f"{folder.name}.incomplete")
    lock = incomplete / UNFINISHED
    is_empty = incomplete.is_dir() and not any(incomplete.iterdir())
    is_free = not incomplete.exists() or is_empty or lock.exists()
    require(is_free, f"{incomplete} is in the way; finish or move it, or choose another name")
    incomplete.mkdir(parents=True, exist_ok=True)
    with hold(lock):
        try:
            for path in incomplete.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path != lock:
                    path.unlink()
            yield incomplete
            incomplete.rename(folder)
        except BaseException as error:
            shutil.rmtree(incomplete, ignore_errors=True)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(folder)  # writing to an open file does not say where
            raise
        (folder / UNFINISHED).unlink()
