"""Files that do not lie on this machine's disk: URLs that fsspec opens, datasets of a hub.

Text is read as it arrives. Shards and their tokenizer are fetched: each file is copied to this
machine's disk once, when it is first needed, and compared with its sha256. Only files with known
names are asked for, so that a web server without lists of its folders will do.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from electra.config import UserError, require
from electra.files import HASHES, cache_folder, flush_file, sha256_file, take_turns

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
    """Return the path of a file or folder, which may be a URL.

    A URL gives a path of `universal_pathlib`, which is used as a path of this machine.

    Raises:
        UserError: The package for URLs, or for this scheme, is not installed.
    """
    if not is_url(name):
        return Path(name)
    try:
        upath = import_module("upath")
    except ImportError:
        raise UserError(
            f"reading {name} needs universal_pathlib: pip install 'electra[remote]'"
        ) from None
    try:
        path = upath.UPath(URL.sub(r"\1://", str(name), count=1))
        assert path.fs
    except (ImportError, ValueError) as error:
        raise UserError(f"{name} cannot be read: {error}") from None
    return cast(Path, path)


def find_urls(name: str) -> list[Path]:
    """Return the files that a URL names: a file, all below a folder, or those of a pattern.

    Raises:
        UserError: The place cannot be reached, or there is no file.
    """
    top = cast(Any, locate(name))
    with _explain(name, "cannot be read"):
        if "*" in name:
            found = sorted(top.fs.glob(top.path))
        elif top.fs.isdir(top.path) and not top.fs.isfile(top.path):
            found = sorted(top.fs.find(top.path))
        else:
            found = [top.path] if top.fs.exists(top.path) else []
        files = [locate(top.fs.unstrip_protocol(each)) for each in found if not top.fs.isdir(each)]
    if not files:
        raise UserError(f"there is no file {name}")
    return files


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a small file, on disk or at a URL; None: there is no such file.

    Raises:
        UserError: The place cannot be reached.
    """
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

    A copy has the name of its sha256. So it is made once, whatever the URL, and what is there is
    right. Of several processes one copies and the others wait.

    Raises:
        UserError: The file is missing, damaged or cannot be copied.
    """
    require(
        re.fullmatch("[0-9a-f]{64}", str(sha256)) is not None,
        f"{path} cannot be checked: {sha256!r} is no sha256",
    )
    copy = cache_folder("shards") / sha256
    if copy.exists():
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    incomplete = copy.with_name(f"{sha256}.incomplete")
    with take_turns(incomplete):
        if copy.exists():
            incomplete.unlink(missing_ok=True)
            return copy
        place = cast(Any, path)
        with _explain(path, f"cannot be copied to {copy.parent}"):
            place.fs.get_file(place.path, str(incomplete))
        require(
            sha256_file(incomplete) == sha256,
            f"{path} is damaged: its sha256 differs from the manifest's",
        )
        flush_file(incomplete)
        incomplete.replace(copy)
    return copy


@contextmanager
def fetched(folder: Path) -> Iterator[Path]:
    """Yield a folder on disk; of one at a URL, a copy of the files that its electra.json names.

    Raises:
        UserError: A file is missing, damaged or cannot be copied.
    """
    if not is_url(folder):
        yield folder
        return
    content = read_bytes(folder / HASHES)
    if content is None:
        raise UserError(f"{folder / HASHES} is missing")
    try:
        hashes = json.loads(content)["sha256"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / HASHES} is damaged: it holds no sha256") from None
    with TemporaryDirectory() as copy:
        for name, sha256 in hashes:
            # Only the last part: a name must not lead out of the copy.
            shutil.copyfile(fetch(folder / name, sha256), Path(copy) / Path(name).name)
        yield Path(copy)


def send(path: Path, target: Path) -> None:
    """Copy a file of this machine's disk to a URL.

    Raises:
        UserError: The place cannot be reached or written.
    """
    place = cast(Any, target)
    with _explain(target, "cannot be written"):
        place.fs.makedirs(place.fs._parent(place.path), exist_ok=True)
        place.fs.put_file(str(path), place.path)


@contextmanager
def _explain(path: Path | str, failure: str) -> Iterator[None]:
    """Turn any error into a UserError. Every file system has its own errors.

    Args:
        path: The URL.
        failure: What could not be done.
    """
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} {failure}: {said}") from None
