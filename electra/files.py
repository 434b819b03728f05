"""Files and folders, complete or absent; hashes against damage, locks; JSON, protocol buffers.

`put` follows one rule for power failures: content is on the disk before it gets its name, and
the name is on the disk before anything that it replaces is removed.
"""

import errno
import hashlib
import json
import math
import os
import platform
import re
import reprlib
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from electra.errors import UserError, require
from electra.shapes import check_shape, check_unicode

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished"
"""Name of the lock file of `new_folder`. A folder with this file may be cleared."""
LOCK = "lock"
"""Name of the lock file of a run or an unfinished fine-tuning; see `hold`."""
HASHES = "electra.json"
"""Name of the file that `write_hashes` writes and `check_hashes` reads."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""How a file system says that it cannot sync a file, or a folder."""


def cache_folder(name: str) -> Path:
    """Return the folder of this user for files that may be removed at any time."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "electra" / name


def parse_size(words: str) -> int:
    """Return bytes from words such as 200GB."""
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]*)?) ?([KMGT]?)B?", words.strip().upper())
    size = round(float(found[1]) * UNITS[found[2]]) if found else 0
    require(size > 0, f"{words!r} is not a size: write it as 200GB, in KB, MB, GB or TB")
    return size


def format_size(size: float) -> str:
    """Return bytes in words of three digits, such as 1.25 GB."""
    unit = next(each for each in "TGMK" if size >= UNITS[each] or each == "K")
    return f"{size / UNITS[unit]:,.3g} {unit}B"


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_facts(path: Path, facts: Mapping[str, Any], hashes: Mapping[str, str] = {}) -> None:
    """Write an object of ours with the sha256 of other files and, by its name, of its facts."""
    write_json(path, {**facts, "sha256": {**hashes, path.name: sha256_facts(facts)}})


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically: a reader sees the old file or the new file."""
    with new_file(path) as incomplete:
        incomplete.write_text(text, encoding="utf-8", newline="")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield `<path>.incomplete` for writing; at the end it becomes `path` (`put`).

    A file that was there is replaced; a device or a FIFO is refused. After an error the incomplete
    file is removed, and a file that was there is as it was.
    """
    require_regular(path)
    incomplete = path.with_name(path.name + ".incomplete")
    with name_failures(path):
        try:
            yield incomplete
            put(incomplete, path)
        except BaseException:
            with suppress(OSError):
                incomplete.unlink()
            raise


def put(source: Path, target: Path) -> None:
    """Rename a file or folder so that after a power failure it is complete or absent.

    Its content is on the disk before it is renamed, and its name when this returns.
    """
    sync_all(source)
    source.replace(target)
    sync(target.parent)


def is_inside(name: str) -> bool:
    """Return whether a name that a file gives leads to a place in its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists; its name is on the disk then."""
    if not folder.is_dir():
        if not folder.parent.exists():
            make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync_all(path: Path) -> None:
    """Wait until a file, or all that is in a folder, is on the disk."""
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            sync_all(each)
    if not path.is_symlink():
        sync(path)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk.

    A file system without such a wait, or a folder that may not be listed, is no error.
    """
    with name_failures(path):
        try:
            number = os.open(path, os.O_RDONLY)
        except PermissionError:
            return  # on Windows, any folder
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in NO_SYNC:
                raise
        finally:
            os.close(number)


@contextmanager
def name_failures(path: Path) -> Iterator[None]:
    """Set the path in an OSError without a file name, such as one from an open file."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def copy_folder(source: Path, target: Path, **options: Any) -> None:
    """Copy a folder, which may be read-only; of the list of failures the first is an OSError."""
    try:
        shutil.copytree(source, target, copy_function=shutil.copyfile, **options)
        for folder in (target, *filter(Path.is_dir, target.rglob("*"))):
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
    except shutil.Error as error:
        _, path, reason = error.args[0][0]
        raise OSError(errno.EIO, reason, path) from None


def write_hashes(folder: Path, **facts: Any) -> None:
    """Write electra.json with the given facts and the sha256 of each file in the folder.

    Subfolders are left out. A subfolder can have its own electra.json.
    """
    locks = (UNFINISHED, LOCK)
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in locks)
    hashes = {path.name: sha256_file(path) for path in files}
    write_facts(folder / HASHES, facts, hashes)


def check_hashes(folder: Path) -> None:
    """Refuse a folder whose electra.json names a file that is missing or was changed."""
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
        if sha256_file(file) != digest:
            raise UserError(f"{file} is damaged: it does not match its sha256 in {path}; {advice}")


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_facts(facts: Mapping[str, Any]) -> str:
    """Return the sha256 of facts that JSON can hold, in any order."""
    plain = json.loads(json.dumps(facts))  # whose keys are text
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _check_facts(value: dict[str, Any], path: Any) -> None:
    """Refuse facts of `write_facts` that were changed later; remove their hash from the object."""
    hashes = value.pop("sha256", None)
    if isinstance(hashes, dict) and hashes.pop(path.name, None) not in (None, sha256_facts(value)):
        advice = "write it back or, if it was changed on purpose, remove its sha256"
        raise UserError(f"{path} is damaged: it does not match the sha256 in it; {advice}")
    if hashes:
        value["sha256"] = hashes


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file; any other is refused by its name."""
    require_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8") from None


def read_object(path: Path, shape: Any = dict) -> dict[str, Any]:
    """Return the object in a JSON file of the shape of a TypedDict; refuse any other by its name.

    Half of a surrogate pair is also refused: none of our texts could be written with it.
    """
    text = read_text(path)
    value: dict[str, Any] = parse_object(text, path)
    if SURROGATE.search(text):
        check_unicode(value, path)
    check_shape(value, shape, path)
    return value


def parse_object(text: str | bytes, place: object) -> dict[str, Any]:
    """Return the object of a JSON text: of a file whose facts are as written, or of a line."""
    value: dict[str, Any] = parse_json(text, place)
    check_shape(value, dict, place)
    if not isinstance(place, str):  # a path, if only of a URL
        _check_facts(value, place)
    return value


def parse_json(text: str | bytes, place: object) -> Any:
    """Return the value of a JSON text. All JSON that the package reads is read here.

    Text is refused that is not JSON (NaN and Infinity are not), is nested too deeply, or has a
    number that is too large or a key with two values.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return JSON.decode(text.removeprefix("\ufeff"))
    except RecursionError:
        reason, line = "JSON that is nested too deeply", 0
    except json.JSONDecodeError as error:
        reason, line = f"not valid JSON: {error.msg}", error.lineno
    except UnicodeDecodeError as error:
        reason, line = "not UTF-8", error.object.count(b"\n", 0, error.start) + 1
    except UserError as error:
        reason, line = f"not valid JSON: {error}", 0
    except ValueError:
        reason, line = "JSON with a number of too many digits", 0
    is_file = isinstance(place, Path)  # a line has its number already
    raise UserError(f"{place}{f', line {line}' if line and is_file else ''}: {reason}")


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            require(seen.setdefault(key, value) == value, f"{reprlib.repr(key)} has two values")
    return found


def _to_float(number: str) -> float:
    if not math.isfinite(value := float(number)):  # called often: no message unless needed
        raise UserError(f"{reprlib.repr(number)} is not a finite number")
    return value


SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a pair, as JSON writes it."""
JSON = json.JSONDecoder(object_pairs_hook=_to_dict, parse_float=_to_float, parse_constant=_to_float)


def named(folder: Path) -> Path:
    """Return a path of the folder that ends in its name, as `.` and `..` do not."""
    return folder if folder.name not in ("", "..") else folder.resolve()


def require_regular(path: Path) -> None:
    """Refuse a path that exists and is no regular file: a FIFO could block forever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # opening it says why
    require(stat.S_ISREG(mode), f"{path} is not a regular file; give one that is")


def refuse_existing(path: Path) -> None:
    """Raise UserError if there is something at the path to be written, if only a broken link."""
    is_there = path.exists() or path.is_symlink()
    require(not is_there, f"{path} exists already; remove it or choose another name")


def require_same(folder: Path, begun: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a folder that was begun with other settings."""
    different = ", ".join(name for name in settings if settings[name] != begun.get(name))
    advice = "remove it or choose another --out"
    require(not different, f"{folder} was started with different {different}; {advice}")


@contextmanager
def hold(lock: Path) -> Iterator[None]:
    """Lock a folder for this process, through a lock file in it, which is removed at the end.

    The operating system releases the lock when the process ends, also by a crash. A leftover lock
    file locks nothing. Without support by the system or the file system, there is no lock, and a
    warning says so. A folder that another process holds is refused.
    """
    with lock.open("a+", encoding="utf-8") as file:
        is_free = _lock(file, wait=False)
        # The previous holder may have removed the file between `open` and the lock.
        if not is_free or not _is_open_as(file, lock):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(f"{lock.parent} is in use by {holder}; wait until it ends, or stop it")
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n")
            file.flush()
            sync(lock.parent)  # without its lock file, the folder would be refused later
            yield
        finally:
            if _is_open_as(file, lock):
                with suppress(OSError):
                    lock.unlink()


@contextmanager
def take_turns(lock: Path) -> Iterator[None]:
    """Hold a lock file, as soon as no other process and no other thread does.

    Without support by the system or the file system, there is no lock, and a warning says so.
    """
    with lock.open("a+", encoding="utf-8") as file:
        _lock(file, wait=True)
        yield


def _lock(file: IO[str], *, wait: bool) -> bool:
    """Lock an open file; return False if another process holds it. Warn where nothing is locked."""
    try:
        if not fcntl:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warnings.warn(
            f"this file system has no locks ({error.strerror}): do not start a second command "
            "that writes the same folder before this one ends",
            stacklevel=2,
        )
    return True


def _is_open_as(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def clear_folder(folder: Path) -> None:
    """Remove all that a folder holds but its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != UNFINISHED:
            path.unlink()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield `<folder>.incomplete` for writing; at the end it becomes `folder` (`put`).

    After an error the incomplete folder is removed. An incomplete folder that a killed process left
    is cleared. Any other folder of this name, such as an unfinished fine-tuning, is in the way
    and refused, as is one that another process writes, or a `folder` that exists.
    """
    refuse_existing(folder)
    incomplete = folder.with_name(f"{folder.name}.incomplete")
    lock = incomplete / UNFINISHED
    is_empty = incomplete.is_dir() and not any(incomplete.iterdir())
    is_free = not incomplete.exists() or is_empty or lock.exists()
    require(
        is_free,
        f"{incomplete} already exists and was not written by this command; remove or rename it, "
        "or choose another output name",
    )
    make_folder(incomplete)
    try:
        with name_failures(folder), hold(lock):
            try:
                refuse_existing(folder)  # another process may have written it in the meantime
                clear_folder(incomplete)
                yield incomplete
                put(incomplete, folder)
            except BaseException as error:
                if not (isinstance(error, OSError) and folder.exists()):  # its name was taken
                    shutil.rmtree(incomplete, ignore_errors=True)
                raise
            (folder / UNFINISHED).unlink()
    finally:
        with suppress(OSError):  # another process's is not empty
            incomplete.rmdir()
