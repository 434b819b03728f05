"""URLs of text and shards: told from paths, listed, copied, written."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

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

TRUSTED_SECONDS = 24 * 3600
"""Time for which files are not compared with their sha256 again: bits flip without a change."""

URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}")
"""A scheme and slashes. `Path` makes one slash of two."""

DATASET = "datasets:"
"""What a dataset's name begins with: datasets:NAME, datasets:NAME:CONFIGURATION[:SPLIT]."""


def is_url(name: str | Path) -> bool:
    """Return whether a name is a URL, such as s3://bucket/folder/*.txt.xz."""
    return URL.match(str(name)) is not None and not is_dataset(name)


def is_dataset(name: str | Path) -> bool:
    """Return whether a name is that of a dataset of Hugging Face."""
    return str(name).startswith(DATASET)


def locate(name: str | Path) -> Path:
    """Return the path of a file or folder; that of a URL is used as one of this machine.

    A URL is refused if the package for URLs, or for its scheme, is not installed.
    """
    if not is_url(name):
        return Path(name)
    upath = import_extra("upath", "remote", f"reading {name}")
    try:
        url = URL.sub(r"\1://", str(name), count=1)
        path = upath.UPath(re.sub("^file:/+", "file:///", url))  # its paths begin with a slash
        assert path.fs
    except Exception as error:  # each file system has its own, also of what the URL lacks
        raise UserError(f"{name} cannot be read: {_name_error(error)}") from None
    return cast(Path, path)


def find_urls(name: str) -> list[Path]:
    """Return the files that a URL names: a file, all below a folder, or those of a pattern."""
    top = cast(Any, locate(name))
    with _explain(name, "cannot be read"):
        if "*" in name:
            found = sorted(top.fs.glob(top.path))
        elif top.fs.isdir(top.path) and not top.fs.isfile(top.path):
            found = sorted(top.fs.find(top.path))
        else:
            found = [top.path] if top.fs.exists(top.path) else []
        files = [locate(top.fs.unstrip_protocol(each)) for each in found if not top.fs.isdir(each)]
    require(bool(files), f"there is no file {name}")
    return files


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a small file, on disk or at a URL; None: there is no such file."""
    if not is_url(path):
        return path.read_bytes() if path.is_file() else None
    place = cast(Any, path)
    with _explain(path, "cannot be read"):
        try:
            return place.fs.cat_file(place.path)
        except FileNotFoundError:
            return None


def fetch(path: Path, sha256: str) -> Path:
    """Return the copy of a file at a URL on this machine's disk.

    A copy has the name of its sha256, so it is made once, whatever the URL. Of several processes
    one copies and the others wait. A copy that was not compared for a day is compared again.
    """
    if not re.fullmatch("[0-9a-f]{64}", str(sha256)):
        raise UserError(f"{path} cannot be checked: {sha256!r} is no sha256")
    copy = cache_folder("shards") / sha256
    if copy.exists() and 0 <= time.time() - copy.stat().st_mtime < TRUSTED_SECONDS:
        return copy
    make_folder(copy.parent)
    incomplete = copy.with_name(f"{sha256}.incomplete")
    with take_turns(incomplete):
        if copy.exists() and sha256_file(copy) == sha256:
            copy.touch()
            incomplete.unlink(missing_ok=True)
            return copy
        place = cast(Any, path)
        try:
            with _explain(path, f"cannot be copied to {copy.parent}"):
                place.fs.get_file(place.path, str(incomplete))
            if sha256_file(incomplete) != sha256:
                raise UserError(f"{path} is damaged: its sha256 differs from the manifest's")
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
        for name, sha256 in hashes:
            # Only the last part: a name must not lead out of the copy.
            shutil.copyfile(fetch(folder / name, sha256), Path(copy) / Path(name).name)
        yield Path(copy)


def send(path: Path, target: Path) -> None:
    """Copy a file of this machine's disk to a URL; refuse a place that cannot be written."""
    place = cast(Any, target)
    with _explain(target, "cannot be written"):
        place.fs.makedirs(place.fs._parent(place.path), exist_ok=True)
        place.fs.put_file(str(path), place.path)


def _explain_url(path: Path) -> AbstractContextManager[None]:
    return _explain(path, "cannot be read") if is_url(path) else nullcontext()


@contextmanager
def _explain(path: Path | str, failure: str) -> Iterator[None]:
    """Turn any error into a UserError, because every file system has its own errors."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except Exception as error:
        raise UserError(f"{path} {failure}: {_name_error(error)}") from None


def _name_error(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
