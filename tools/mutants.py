"""Whether the tests notice an error: `python -m tools.mutants FILES --tests FILES`.

A mutant is a file with one error in a function: another operator or comparison, a number that is
one more, a condition turned round, a call left out. The tests run once, and the lines that each
reaches are noted. Then a process for each mutant runs the tests that reach its line, the fastest
first, until one fails. results/equivalent-mutants.toml names those that compute the same, with the
reason. The top level of a module (settings, tables, default values) has no mutants. Code that runs
when a test is collected, such as its parameters, is not run again: a survivor in such a line is
marked so.
"""

import argparse
import ast
import copy
import functools
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from electra.files import read_object, write_json, write_text
from electra.reports.rendering import Table, to_markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "mutants.json"
OTHERS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn},
    **{ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div},
    **{ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd, ast.And: ast.Or},
    **{ast.Or: ast.And, ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
"""What an operator becomes."""
UNTOUCHED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.arguments)
FIELDS = ("decorator_list", "returns", "annotation")
"""Messages, default values and types have no mutants."""
COLLECTED = -1
"""Number of what runs before the first test."""
SECONDS = 30
"""Time for the tests that reach a line: they run, the fastest first, up to this sum."""


class Mutant(NamedTuple):
    """A file with one error."""

    path: Path
    line: int
    lines: range
    """Those of the statement, or of its head."""
    change: str
    tree: ast.Module


def mutate(node: Any) -> tuple[Any, str] | None:
    """Return what may be in a node's place, and the change in words."""
    old, condition = ast.unparse(node), getattr(node, "test", None)
    match node:
        case ast.Compare(ops=[op]) if type(op) in OTHERS:
            new: Any = ast.Compare(node.left, [OTHERS[type(op)]()], node.comparators)
        case ast.BinOp() if type(node.op) in OTHERS:
            new = ast.BinOp(node.left, OTHERS[type(node.op)](), node.right)
        case ast.BoolOp():
            new = ast.BoolOp(OTHERS[type(node.op)](), node.values)
        case ast.UnaryOp():
            new = node.operand
        case ast.Constant(value=bool()):
            new = ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as number):
            new = ast.Constant(number + 1)
        case ast.If() | ast.IfExp() if isinstance(condition, ast.Name | ast.Attribute | ast.Call):
            new = copy.copy(node)
            new.test = ast.UnaryOp(ast.Not(), condition)
            return new, f"if not {ast.unparse(condition)}"
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            return ast.If(ast.Constant(False), [node], []), f"without {old}"
        case _:
            return None
    return new, f"{old} -> {ast.unparse(new)}"


def find_mutants(path: Path) -> Iterator[Mutant]:
    """Yield the mutants of a file."""
    tree = ast.parse(path.read_text())

    def walk(node: Any, around: Any, inside: bool) -> Iterator[Mutant]:
        for name, value in ast.iter_fields(node):
            is_list = isinstance(value, list)
            for key, child in enumerate(value) if is_list else ((name, value),):
                if name in FIELDS or isinstance(child, UNTOUCHED) or not isinstance(child, ast.AST):
                    continue
                place: Any = child
                statement: Any = child if isinstance(child, ast.stmt) else around
                if inside and (found := mutate(child)):
                    put: Any = value.__setitem__ if is_list else functools.partial(setattr, node)
                    put(key, ast.fix_missing_locations(ast.copy_location(found[0], child)))
                    body = getattr(statement, "body", None)
                    end = body[0].lineno if body else statement.end_lineno + 1
                    lines = range(statement.lineno, max(end, statement.lineno + 1))
                    yield Mutant(path, place.lineno, lines, found[1], copy.deepcopy(tree))
                    put(key, child)
                yield from walk(child, statement, inside or isinstance(child, ast.FunctionDef))

    yield from walk(tree, None, False)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a module's code and that of all functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_of(each)


def find_functions() -> list[Any]:
    """Return all functions and caches there are."""
    return [
        each
        for each in gc.get_objects()
        if type(each) in (FunctionType, functools._lru_cache_wrapper)
    ]


def apply(mutant: Mutant, functions: list[Any]) -> None:
    """Give the module's functions the mutant's code, and empty the caches."""
    codes = codes_of(compile(mutant.tree, str(mutant.path), "exec"))
    found = {(each.co_qualname, each.co_firstlineno): each for each in codes}
    for each in functions:
        if type(each) is not FunctionType:
            each.cache_clear()
        elif each.__code__.co_filename == str(mutant.path):
            each.__code__ = found[each.__code__.co_qualname, each.__code__.co_firstlineno]


class Hunt:
    """A plugin of pytest that runs the tests once, and for each mutant those that reach it."""

    def __init__(self, mutants: list[Mutant], minutes: float):
        self.minutes = minutes
        self.mutants, self.paths = mutants, {str(each.path) for each in mutants}
        self.fates: list[str] = []
        self.reached: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.seconds: dict[int, float] = {}
        self.functions: list[Any] = []
        self.number = COLLECTED

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Note the lines of the mutated files."""
        if frame.f_code.co_filename not in self.paths:
            return None
        self.reached[frame.f_code.co_filename, frame.f_lineno].add(self.number)
        return self.trace

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Note the lines that run before the tests."""
        sys.settrace(self.trace)
        yield
        sys.settrace(None)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests in this process, and then again in one for each mutant."""
        items = session.items
        for self.number, item in enumerate(items):
            begin = time.process_time()
            sys.settrace(self.trace)
            reports = runtestprotocol(item, False, items[(self.number + 1) % len(items)])
            sys.settrace(None)
            if any(each.failed for each in reports):
                sys.exit(f"{item.nodeid} fails without an error\n{reports[-1].longreprtext}")
            self.seconds[self.number] = time.process_time() - begin
        gc.unfreeze()
        self.functions = find_functions()
        gc.freeze()  # so that processes do not copy unused memory
        end = time.monotonic() + 60 * self.minutes
        for mutant in self.mutants:
            if time.monotonic() < end:
                self.fates.append(self.judge(session, mutant))
        return True

    def judge(self, session: pytest.Session, mutant: Mutant) -> str:
        """Return why a mutant survives; empty: a test fails, or takes several times as long."""
        reach = set().union(*(self.reached[str(mutant.path), line] for line in mutant.lines))
        chosen: list[pytest.Item] = []
        left = float(SECONDS)
        early = ", and it runs when they are collected" * (COLLECTED in reach)
        for number in sorted(reach - {COLLECTED}, key=self.seconds.__getitem__):
            left -= self.seconds[number]
            chosen += [session.items[number]] if left > 0 or not chosen else []
        if not chosen:
            return "no test reaches it" + early
        if process := os.fork():
            return "" if os.waitpid(process, 0)[1] else f"{len(chosen)} tests pass{early}"
        signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)  # of its own: others may be busy
        signal.alarm(100 * SECONDS)
        place, status = Path(tempfile.mkdtemp()), 0
        session.config._tmp_path_factory._basetemp = place  # type: ignore[attr-defined]
        try:
            apply(mutant, self.functions)
            for item, following in zip(chosen, [*chosen[1:], chosen[-1]], strict=True):
                if any(each.failed for each in runtestprotocol(item, False, following)):
                    status = 1
                    break
        finally:
            shutil.rmtree(place)
            os._exit(status)


def write_results(
    hunt: Hunt, files: list[Path], tests: list[str], equivalent: list[dict[str, str]]
) -> None:
    """Write the scores of these files beside those of others, and all as a table."""
    found = read_object(RESULTS) if RESULTS.exists() else {"files": {}}
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text().splitlines()
        same = {(each["line"], each["change"]) for each in equivalent if each["file"] == name}
        mine = [
            pair for pair in zip(hunt.mutants, hunt.fates, strict=False) if pair[0].path == path
        ]
        alike = {each for each, _ in mine if (source[each.line - 1].strip(), each.change) in same}
        alive = [pair for pair in mine if pair[1] and pair[0] not in alike]
        count = len(mine) - len(alike)
        survivors = sorted(f"{each.line}: {each.change} ({why})" for each, why in alive)
        found["files"][name] = {
            **{"commit": commit, "mutants": count, "killed": count - len(alive)},
            "left_out": sum(each.path == path for each in hunt.mutants) - len(mine),
            **{"equivalent": len(alike), "survivors": survivors},
            "tests": tests,
        }
    found["files"] = dict(sorted(found["files"].items()))
    write_json(RESULTS, found)
    write_text(RESULTS.with_suffix(".md"), tabulate(found["files"]))


def tabulate(files: dict[str, Any]) -> str:
    """Return the page of all files: their scores, and what survives."""
    headers = ["file", "mutants", "noticed", "equivalent, not counted", "not tried", "commit"]
    rows, lines = [], []
    for name, each in files.items():
        noticed = f"{each['killed'] / max(1, each['mutants']):.1%}"
        counts = (each["mutants"], noticed, each["equivalent"], each["left_out"])
        rows.append([name, *map(str, counts), each["commit"]])
        lines += [f"- `{name}`, line {told}" for told in each["survivors"]]
    head = "`python -m tools.mutants`: errors in functions, and whether a test fails by them."
    survivors = "\n".join(lines) or "None survives."
    return f"{head}\n\n{to_markdown(Table(headers, rows))}\n\nThose that survive:\n\n{survivors}\n"


def main() -> None:
    """Read the command line, run the tests, and write what they notice."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--only", default="", help="mutants whose change has these words")
    parser.add_argument("--minutes", type=float, default=600, help="then others are left out")
    given = parser.parse_args()
    files = [path.resolve() for path in given.files]
    mutants = [each for path in files for each in find_mutants(path) if given.only in each.change]
    random.Random(0).shuffle(mutants)
    hunt = Hunt(mutants, given.minutes)
    pytest.main([*given.tests, "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[hunt])
    if hunt.fates:
        known = tomllib.loads(RESULTS.with_name("equivalent-mutants.toml").read_text())
        write_results(hunt, files, given.tests, known["mutants"])


if __name__ == "__main__":
    main()
