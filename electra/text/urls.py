"""URLs of text, distinguished from paths and listed."""

import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

from electra.errors import UserError, import_extra, require
from electra.objects import URL, explain, is_url, name_error

DATASET = "datasets:"
"""Beginning of a dataset's name: datasets:NAME, datasets:NAME:CONFIGURATION[:SPLIT]."""


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
        raise UserError(f"{name} cannot be read: {name_error(error)}") from None
    return cast(Path, path)


def find_urls(name: str) -> list[Path]:
    """Return the files that a URL names: a file, all below a folder, or those of a pattern."""
    top = cast(Any, locate(name))
    with explain(name, "cannot be read"):
        if "*" in name:
            found = sorted(top.fs.glob(top.path))
        elif top.fs.isdir(top.path) and not top.fs.isfile(top.path):
            found = sorted(top.fs.find(top.path))
        else:
            found = [top.path] if top.fs.exists(top.path) else []
        files = [locate(top.fs.unstrip_protocol(each)) for each in found if not top.fs.isdir(each)]
    require(bool(files), f"there is no file {name}")
    return files


def _explain_url(path: Path) -> AbstractContextManager[None]:
    return explain(path, "cannot be read") if is_url(path) else nullcontext()
