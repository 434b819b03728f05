"""Objects at URLs, of stores and web servers: read, listed, written. Shards and runs go this way.

obstore makes the requests. After a temporary refusal or a broken connection it repeats them, with
growing waits. A refusal, or a fault that lasts longer than PATIENCE, becomes a one-line error.
Nothing is deleted. The threads of a store do not survive a fork: a store belongs to the process
that has opened it.
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from electra.errors import UserError, import_extra, require
from electra.files import (
    HASHES,
    cache_folder,
    make_folder,
    parse_object,
    put,
    sha256_file,
    take_turns,
)

Result = TypeVar("Result")
URL = re.compile(r"(?!datasets:)([a-z][a-z0-9+.-]+):/{1,2}")
"""A scheme and slashes. `Path` makes one slash of two."""
STORES = {
    **dict.fromkeys(("http", "https"), "HTTPStore"),
    **dict.fromkeys(("az", "abfs", "abfss"), "AzureStore"),
    **{"s3": "S3Store", "gs": "GCSStore", "file": "LocalStore"},
}
"""obstore's class for each scheme."""
PATIENCE = timedelta(minutes=3)
"""Time after which a request is not made again. Above five, its keys could expire meanwhile."""
IDLE = timedelta(minutes=1)
"""Time without a byte after which a request has failed."""
NEVER = timedelta(days=1)
PART_BYTES = 1 << 23
"""A larger file is sent in parts of this size, PARTS at a time."""
PARTS = 4
MAX_DOWNLOADS = 3
"""Times that a file is copied whose sha256 is wrong: a byte may have changed on the way."""
TRUSTED_SECONDS = 24 * 3600
"""Time for which files are not compared with their sha256 again: bits flip without a change."""
MAX_REASON = 300
"""Characters of another program's error that are repeated."""


class ObjectPath(PurePosixPath):
    """A URL that is used as a path: names are joined to it by a slash."""

    def __str__(self) -> str:
        name = URL.sub(r"\1://", super().__str__(), count=1)
        return re.sub("^file:/+", "file:///", name)

    def is_file(self) -> bool:
        """Return whether there is such an object."""
        return read_bytes(cast(Path, self)) is not None

    def read_text(self, encoding: str) -> str:
        """Return the content of an object; a missing one is an OSError."""
        content = read_bytes(cast(Path, self))
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return content.decode(encoding)


def is_url(name: str | Path) -> bool:
    """Return whether a name is a URL, such as s3://bucket/folder/*.txt.xz."""
    return URL.match(str(name)) is not None


def place_of(name: str | Path) -> Path:
    """Return the path of a file or folder, on this machine or at a URL where shards can be."""
    if not is_url(name):
        return Path(name)
    path = cast(Path, ObjectPath(name))
    _open(path)
    return path


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a small file, on disk or at a URL; None: there is no such file."""
    if not is_url(path):
        return path.read_bytes() if path.is_file() else None
    store, key = _open(path)
    with explain(path, "cannot be read"):
        try:
            return bytes(store.get(key).bytes())
        except FileNotFoundError:
            return None


def copy_object(url: Path, target: Path, sha256: str) -> None:
    """Write an object to a file. One with another sha256 is refused, and so is a missing one."""
    store, key = _open(url)
    for _ in range(MAX_DOWNLOADS):
        found = hashlib.sha256()
        with target.open("wb") as file, explain(url, f"cannot be copied to {target.parent}"):
            for block in store.get(key).stream():
                found.update(block)
                file.write(block)
        if found.hexdigest() == sha256:
            return
    raise UserError(f"{url} is damaged: its sha256 differs from the manifest's")


def list_sizes(url: Path) -> dict[str, int]:
    """Return the objects below a folder, by their names in it: their sizes, bytes."""
    store, key = _open(url)
    with explain(url, "cannot be listed"):
        found = [each for some in store.list(key) for each in some]
    return {each["path"].removeprefix(f"{key}/"): each["size"] for each in found}


def send(content: bytes | Path, url: Path) -> None:
    """Write an object, or a file to it; an object that is there is replaced as a whole."""
    store, key = _open(url)
    with explain(url, "cannot be written"):
        _insist(lambda: store.put(key, content, chunk_size=PART_BYTES, max_concurrency=PARTS))


def send_new(content: bytes, url: Path) -> bool:
    """Write an object unless there is one; return whether it has this content now.

    Among several writers of different contents, one gets True.
    """
    store, key = _open(url)
    errors = import_module("obstore.exceptions")

    def attempt() -> bool:
        try:
            store.put(key, content, mode="create", use_multipart=False)
        except (errors.AlreadyExistsError, errors.GenericError) as error:
            found = read_bytes(url)  # perhaps it is ours, and the answer was lost
            if found is None and not isinstance(error, errors.AlreadyExistsError):
                raise
            return found == content
        return True

    with explain(url, "cannot be written"):
        return _insist(attempt)


def _insist(attempt: Callable[[], Result]) -> Result:
    """Return what an attempt returns, made again where obstore may not know whether it was done."""
    last, wait = time.monotonic() + PATIENCE.total_seconds(), 0.1
    while True:
        try:
            return attempt()
        except import_module("obstore.exceptions").GenericError:
            if time.monotonic() + wait > last:
                raise
        time.sleep(wait)
        wait *= 2


def fetch(path: Path, sha256: str, folder: Path | None = None) -> Path:
    """Return the copy of a file at a URL in a folder of this machine, its own if not given.

    A copy has the name of its sha256, so it is made once, whatever the URL. Among several processes
    one copies and the others wait. A copy that was not compared for a day is compared again.
    """
    if not re.fullmatch("[0-9a-f]{64}", str(sha256)):
        raise UserError(f"{path} cannot be checked: {sha256!r} is not a sha256")
    copy = (folder or cache_folder("shards")) / sha256
    if copy.exists() and 0 <= time.time() - copy.stat().st_mtime < TRUSTED_SECONDS:
        return copy
    make_folder(copy.parent)
    incomplete = copy.with_name(f"{sha256}.incomplete")
    with take_turns(incomplete):
        if copy.exists() and sha256_file(copy) == sha256:
            copy.touch()
            incomplete.unlink(missing_ok=True)
            return copy
        try:
            copy_object(path, incomplete, sha256)
            put(incomplete, copy)
        except BaseException:
            with suppress(OSError):
                os.truncate(incomplete, 0)  # other processes wait for the lock on this file
            raise
    return copy


@contextmanager
def fetched(folder: Path) -> Iterator[Path]:
    """Yield a folder on disk; of one at a URL, a copy of the files that its electra.json names."""
    if not is_url(folder):
        yield folder
        return
    content = read_bytes(folder / HASHES)
    if content is None:
        raise UserError(f"{folder / HASHES} is missing")
    try:
        hashes = parse_object(content, folder / HASHES)["sha256"].items()
    except (KeyError, AttributeError):
        raise UserError(f"{folder / HASHES} is damaged: it holds no sha256") from None
    with TemporaryDirectory() as copy:
        (Path(copy) / HASHES).write_bytes(content)  # marks the copy as a folder of ours
        for name, sha256 in hashes:
            # Only the last part: a name must not lead out of the copy.
            shutil.copyfile(fetch(folder / name, sha256), Path(copy) / Path(name).name)
        yield Path(copy)


def _open(url: Path) -> tuple[Any, str]:
    """Return the store of a URL, and the name of the object in it."""
    scheme, _, rest = str(url).partition("://")
    top, _, key = rest.partition("/")
    known = ", ".join(f"{each}://" for each in STORES)
    require(scheme in STORES, f"{url} cannot be read: shards are at one of {known}")
    OPENED.add(os.getpid())
    is_alone = len(OPENED) == 1
    require(is_alone, f"{url} cannot be read in a forked process: start the process by spawn")
    return _open_store(f"{scheme}://{top}/"), key


OPENED: set[int] = set()
"""The process that has opened a store; a second one was forked from it, and would hang."""


@cache
def _open_store(top: str) -> Any:
    """Return the store at a URL; its keys are those of the environment."""
    kind = STORES[top.partition(":")[0]]
    make = getattr(import_extra("obstore.store", "remote", f"reading {top}"), kind).from_url
    waits = {"timeout": NEVER, "read_timeout": IDLE, "connect_timeout": IDLE}
    client = {"client_options": {"allow_http": True, **waits}}
    retry = {"retry_config": {"max_retries": 100, "retry_timeout": PATIENCE}}
    with explain(top, "cannot be read"):
        return make(top, **(client | retry if kind != "LocalStore" else {}))


@contextmanager
def explain(path: Path | str, failure: str) -> Iterator[None]:
    """Turn any error into a UserError, because every store and file system has its own errors."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except Exception as error:
        raise UserError(f"{path} {failure}: {name_error(error)}") from None


def name_error(error: Exception) -> str:
    """Return what an error says, in one line; of obstore's what the server said, without tags."""
    said = " ".join(str(error).partition("Debug source:")[0].split())
    said = re.sub(r"^(Generic|The op).*? - (Server returned non-2xx status code: )?", "", said)
    return " ".join(re.sub(r"<[^<>]*>", " ", said).split())[:MAX_REASON] or type(error).__name__
