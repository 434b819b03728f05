"""An English corpus without a download: the documentation in the installed Python packages.

Source files are parsed, never imported or run. The corpus consists of docstrings and of other long
strings of documentation (numpy's add_newdoc, torch's add_docstr, the topics of help()). Code
examples are removed, and wrapped lines are joined into paragraphs.
"""

import ast
import hashlib
import inspect
import json
import math
import multiprocessing
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from electra.files import new_file
from electra.processes import follow_parent, usable_cores
from electra.text.characters import replace_surrogates

STANDARD_LIBRARY = "python"
"""Package name of the standard library's docstrings."""
SKIPPED_FOLDERS = frozenset(
    "test tests testing __pycache__ site-packages dist-packages idlelib lib2to3 "  # noqa: SIM905
    # Copies of other packages would be counted twice.
    "_vendor vendor vendored vendored_packages externals _external extern third_party "
    "array_api_compat array_api_extra".split()
)
MIN_DOCSTRING_WORDS = 5
MIN_STRING_CHARS = 200
"""Shortest string, in characters, that can be documentation without being a docstring."""
MIN_COMMON_SHARE = 0.12
"""Least share of COMMON_WORDS in English prose. Code and tables are far below."""
COMMON_WORDS = frozenset(
    "a an and are as at be by can for from has if in into is it its not of on only or "  # noqa: SIM905
    "returns that the then this to used was when which will with you".split()
)
ENGLISH_WORD = re.compile(r"[A-Za-z]+")
FILES_PER_TASK = 64
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Docstring(NamedTuple):
    """One piece of documentation and its origin."""

    package: str
    module: str
    name: str
    """Dotted name of the function or class in the module; "" for a module or another string."""
    text: str


def harvest(max_chars: float = math.inf) -> Iterator[Docstring]:
    """Yield the documentation of the standard library and of all installed packages.

    Each text occurs once. The order of the modules is random, so that a part of the documentation
    is a sample of all packages; it depends on the installed files only.
    """
    seen: set[bytes] = set()
    num_chars = 0
    tasks = sorted(
        _list_modules(), key=lambda task: hashlib.blake2b("\0".join(task[1:]).encode()).digest()
    )
    # A forked process can hang if its parent had threads, as torch and tokenizers have.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(usable_cores(), spawn, follow_parent) as pool:
        for docstrings in pool.map(
            _read_module, *zip(*tasks, strict=True), chunksize=FILES_PER_TASK
        ):
            for docstring in docstrings:
                digest = hashlib.blake2b(docstring.text.encode(), digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    num_chars += len(docstring.text)
                    yield docstring
            if num_chars > max_chars:
                pool.shutdown(cancel_futures=True)
                break


def write_jsonl(records: Iterable[NamedTuple], path: Path) -> None:
    """Write records as a .jsonl file, one a line."""
    lines = (json.dumps(each._asdict(), ensure_ascii=False) + "\n" for each in records)
    with new_file(path) as incomplete, incomplete.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def _list_modules() -> Iterator[tuple[Path, str, str]]:
    """Yield (file, package, module), sorted by package and module."""
    standard = Path(sysconfig.get_path("stdlib"))
    found: dict[tuple[str, str], Path] = {}
    for root in (standard, *_list_package_folders()):
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
            for name in names:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    parts = path.relative_to(root).with_suffix("").parts
                    module = ".".join(parts).removesuffix(".__init__")
                    package = STANDARD_LIBRARY if root == standard else parts[0]
                    # Python imports from the first matching entry of sys.path.
                    found.setdefault((package, module), path)
    for (package, module), path in sorted(found.items()):
        yield path, package, module


def _list_package_folders() -> list[Path]:
    entries = map(Path, dict.fromkeys(sys.path))
    return [entry for entry in entries if entry.name in ("site-packages", "dist-packages")]


def _read_module(path: Path, package: str, module: str) -> list[Docstring]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []
    return [
        Docstring(package, module, name, text)
        for name, raw in _find_strings(tree, "")
        if is_english(text := clean_docstring(replace_surrogates(raw)))
    ]


def _find_strings(parent: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of a node and its definitions, and ("", text) of long strings."""
    if isinstance(parent, ast.Module | Definition) and (text := ast.get_docstring(parent, False)):
        yield prefix, text
    for block in ("body", "orelse", "handlers", "finalbody"):
        for node in getattr(parent, block, ()):
            if isinstance(node, Definition):
                yield from _find_strings(node, f"{prefix}.{node.name}".removeprefix("."))
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr):
                # Long strings in functions are messages and templates; the search would cost time.
                if not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from (("", text) for text in _find_long_strings(node))
            else:
                yield from _find_strings(node, prefix)


def _find_long_strings(statement: ast.stmt) -> Iterator[str]:
    if statement.end_lineno == statement.lineno:
        return
    for node in ast.walk(statement):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and len(value) >= MIN_STRING_CHARS:
            yield value


CODE_DIRECTIVES = (
    "code|code-block|sourcecode|math|plot|doctest|testcode|ipython|image|figure|toctree"
)
CODE_BLOCK = re.compile(rf"\.\. ({CODE_DIRECTIVES})::|.*::$")
DIRECTIVE = re.compile(r"\.\. [\w:-]+::")
RULER = re.compile(r"[\W_]+$")
LIST_ITEM = re.compile(r"([-*+•:@]|\d+[.)]|\w+ ?(\(.*\))? ?:) ?")
ROLE = re.compile(r":[a-z:]+:`~?([^`<]+?)(?: <[^>]*>)?`")
MARKUP = re.compile(r"(`{1,3}|\*\*)([^`*]+)\1_?")
MIN_WRAPPED_COLUMNS = 50
"""Columns of the shortest wrapped line. A shorter line ends its paragraph."""


def clean_docstring(text: str) -> str:
    """Return documentation without markup and code, one paragraph per line."""
    paragraphs: list[str] = []
    goes_on = False
    code_indent: int | None = None
    in_example = in_fence = False
    for line in inspect.cleandoc(text).expandtabs().splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("```"):
            in_fence = not in_fence
            goes_on = False
            continue
        if not stripped:
            goes_on = in_example = False
            continue
        if code_indent is not None and indent <= code_indent:
            code_indent = None
        in_example = in_example or stripped.startswith(">>>")
        if code_indent is not None or in_example or in_fence:
            continue
        if CODE_BLOCK.match(stripped):
            code_indent = indent
        if DIRECTIVE.match(stripped) or RULER.match(stripped):
            goes_on = False
            continue
        plain = MARKUP.sub(r"\2", ROLE.sub(r"\1", stripped))
        if goes_on and not LIST_ITEM.match(stripped):
            paragraphs[-1] += f" {plain}"
        else:
            paragraphs.append(plain)
        goes_on = len(line) >= MIN_WRAPPED_COLUMNS
    return "\n".join(paragraphs)


def is_english(text: str) -> bool:
    """Return whether a text is English prose, by its number of words and share of COMMON_WORDS."""
    words = ENGLISH_WORD.findall(text.lower())
    num_common = sum(word in COMMON_WORDS for word in words)
    return len(words) >= MIN_DOCSTRING_WORDS and num_common >= MIN_COMMON_SHARE * len(words)
