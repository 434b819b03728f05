"""The house stays small enough for one reader: lines, files, rooms, functions, docs."""

import ast
import re
from pathlib import Path

import pytest

import electra

PACKAGE = Path(electra.__file__).parent
ROOT = PACKAGE.parent
ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))
LONG = {"verbs/corpus.py:tokenizer", "verbs/reproduce.py:reproduce"}
"""Functions of more than 60 lines, at most two: verbs with many options."""
SAME_ROLE = {"__init__", "config", "loop", "network", "plan", "registry", "run", "start"}
"""File names that mean the same in every room that has them."""


def count_lines(paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.slow
def test_package_tests_and_documents_have_a_limit():
    """With air, so that no single change fails it: what counts is reach (test_architecture.py).

    Pages that a program writes say so in their first line, and do not count.
    """
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    texts = [path.read_bytes() for path in pages]
    assert count_lines(PACKAGE.rglob("*.py")) <= 47_000
    assert count_lines((ROOT / "tests").rglob("*.py")) <= 32_500
    assert sum(len(text) for text in texts if not text.startswith(b"<!-- written by")) <= 220_000


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.name)
def test_a_room_has_few_files(room):
    assert len(list(room.glob("*.py"))) <= 20


def test_a_file_name_stands_once():
    """But for verbs/, whose files have the names of what they call, and cli/."""
    rooms = ("cli", "verbs")
    names = [path.stem for path in PACKAGE.rglob("*.py") if path.parent.name not in rooms]
    assert {name for name in names if names.count(name) > 1} <= SAME_ROLE


def test_a_function_fits_on_a_screen_and_a_private_docstring_in_a_line():
    """Of a verb the docstring, which is the help of its options, does not count."""
    long = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            told = ast.get_docstring(node) or ""
            length = node.end_lineno - node.lineno + 1
            length -= told.count("\n") if path.parent.name == "verbs" else 0
            if length > 60:
                long.add(f"{path.relative_to(PACKAGE).as_posix()}:{node.name}")
            assert "\n" not in told or not re.match("_[^_]", node.name), f"{path}: {node.name}"
    assert long == LONG
    assert len(LONG) <= 2
