"""English that every machine has: the documentation inside the installed Python packages.

Source files are parsed, never imported or run. What comes out is the docstrings, and the long
strings that are documentation though no docstrings (numpy's add_newdoc, torch's add_docstr, the
topics of help()), without their examples of code, wrapped lines joined into paragraphs.
"""

import ast
import hashlib
import inspect
import json
import multiprocessing
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

STANDARD_LIBRARY = "python"
"""The package name under which the standard library's docstrings are given."""
SKIPPED_FOLDERS = {
    "test", "tests", "testing", "__pycache__", "site-packages", "idlelib", "lib2to3", "node_modules",
    # Copies of other packages, which would be counted twice.
    "_vendor", "vendor", "vendored", "vendored_packages", "externals", "_external", "extern",
    "third_party", "array_api_compat", "array_api_extra",
}  # fmt: skip
MIN_DOCSTRING_WORDS = 5
MIN_STRING_CHARS = 200
"""Characters from which a string that is no docstring may be documentation."""
MIN_COMMON_SHARE = 0.12
"""Share of COMMON_WORDS among the words of English prose; code and tables lie far below."""
COMMON_WORDS = frozenset(
    "a an and are as at be by can for from has if in into is it its not of on only or "
    "returns that the then this to used was when which will with you".split()
)
WORD = re.compile(r"[A-Za-z]+")
FILES_PER_TASK = 64


class Docstring(NamedTuple):
    """One piece of documentation and where it stands."""

    package: str
    module: str
    name: str
    """Of the function or class, dotted within the module; empty for a module or a loose string."""
    text: str


def harvest(workers: int = 2) -> Iterator[Docstring]:
    """Yield the documentation in the standard library and in all installed packages.

    Each text comes once, in an order that depends on nothing but the installed files.
    """
    seen: set[bytes] = set()
    tasks = list(_list_modules())
    # Spawned, since a fork of a process with threads (torch's, tokenizers') may hang.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        for found in pool.map(_read_module, *zip(*tasks, strict=True), chunksize=FILES_PER_TASK):
            for docstring in found:
                digest = hashlib.blake2b(docstring.text.encode(), digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield docstring


def _list_modules() -> Iterator[tuple[Path, str, str]]:
    """Yield (file, package, module), sorted by package and module."""
    standard = Path(sysconfig.get_path("stdlib"))
    roots = [Path(entry) for entry in dict.fromkeys(sys.path) if _is_package_folder(Path(entry))]
    found = {}
    for root in (standard, *roots):
        for folder, subfolders, names in _walk(root):
            subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
            for name in names:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    parts = path.relative_to(root).with_suffix("").parts
                    module = ".".join(parts).removesuffix(".__init__")
                    package = STANDARD_LIBRARY if root == standard else parts[0]
                    # The entry that comes first in sys.path is the one that would be imported.
                    found.setdefault((package, module), path)
    for (package, module), path in sorted(found.items()):
        yield path, package, module
