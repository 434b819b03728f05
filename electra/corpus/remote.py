"""Files that do not lie on this machine's disk: URLs that fsspec opens, datasets of a hub."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from electra.config import UserError

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
    try:
        if "*" in name:
            found = sorted(top.fs.glob(top.path))
        elif top.fs.isdir(top.path) and not top.fs.isfile(top.path):
            found = sorted(top.fs.find(top.path))
        else:
            found = [top.path] if top.fs.exists(top.path) else []
        files = [locate(top.fs.unstrip_protocol(each)) for each in found if not top.fs.isdir(each)]
    except Exception as error:  # every file system has its own
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    if not files:
        raise UserError(f"there is no file {name}")
    return files
