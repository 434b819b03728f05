"""Which changes of the code no test sees: `python -m tools.mutants --sample 20 --seed 0`.

One operator, constant or name of a file is changed at a time, and the tests of that file are run
until the first fails: the mutant is killed. A mutant that survives is a line that no test holds, or
a change that means the same. results/mutants.json has the share of killed ones and all survivors; a
sample is drawn with the seed, from each file alike.
"""

import argparse
import ast
import importlib
import os
import random
import resource
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from electra.files import read_object, write_json, write_text
from electra.reports.rendering import Table, to_markdown

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "mutants.json"
CORE = ("test_golden.py", "test_method.py", "test_objectives.py", "test_electric.py")
TESTS = {
    "electra/method/replaced_token_detection.py": CORE,
    "electra/method/masking.py": CORE,
    "electra/method/measures.py": (*CORE, "test_reports.py"),
    "electra/method/objective.py": CORE,
    "electra/method/flops.py": ("test_flops.py",),
    "electra/training/optimizer.py": ("test_golden.py", "test_optimizer.py", "test_step.py"),
    "electra/training/muon.py": ("test_golden.py", "test_optimizer.py"),
    "electra/training/machine.py": ("test_step.py", "test_pretrain.py"),
    "electra/shards/examples.py": ("test_golden.py", "test_shards.py", "test_pretrain.py"),
}
"""Tests of each file, those first that fail first."""
FEW = "not test_golden or {}"
GOLDEN = "rtd] or mlm] or spans] or documents] or modern] or two-stage] or electric]"
"""Golden losses that are run; all take minutes."""
HEAVY = "torch numpy pytest tokenizers safetensors.torch scipy.stats sklearn.metrics transformers"
CPU_SECONDS = 120
"""Longest time of a mutant, after which it counts as killed: it does not end."""
OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.USub: ast.UAdd},
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A file with one change."""

    line: int
    change: str
    source: str


def list_mutants(source: str) -> list[Mutant]:
    """Return every change of a file, without those of docstrings, messages and annotations."""
    tree, found = ast.parse(source), []
    skipped = {id(each) for node in ast.walk(tree) for each in _list_skipped(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for field, old, new in _list_changes(node):
            setattr(node, field, new)
            text = ast.unparse(tree)
            setattr(node, field, old)
            line = getattr(node, "lineno", 0)
            changed = f"{_show(old)} -> {_show(new)} in {ast.unparse(node)[:60]}"
            found.append(Mutant(line, changed, text))
    return found


def _list_skipped(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is no computation: annotations, and what an error or a class says."""
    parts: list[Any] = [getattr(node, name, None) for name in ("annotation", "returns")]
    parts += node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    parts += [node] if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom) else []
    for part in parts:
        yield from ast.walk(part) if part is not None else ()


def _list_changes(node: ast.AST) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, old, new) for each change of a node."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.AugAssign):
        if type(node.op) in OTHERS:
            yield "op", node.op, OTHERS[type(node.op)]()
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "operand", node.operand, ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHERS:
        yield "ops", node.ops, [OTHERS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", node.value, not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "value", node.value, node.value + 1
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield "id", node.id, NAMES[node.id]
    elif isinstance(node, ast.IfExp):
        yield "body", node.body, node.orelse


def _show(value: Any) -> str:
    """Return an operator's or a constant's name."""
    value = value[0] if isinstance(value, list) else value
    is_operator = isinstance(value, ast.operator | ast.cmpop | ast.boolop | ast.unaryop)
    return (
        type(value).__name__
        if is_operator
        else ast.unparse(value)
        if isinstance(value, ast.AST)
        else repr(value)
    )


class Changed(SourceFileLoader):
    """Loads one module from a changed source."""

    source = ""

    def get_code(self, fullname: str) -> Any:
        """Compile the changed source."""
        return compile(self.source, self.path, "exec")


class Finder:
    """Finds the one module that is changed."""

    def __init__(self, name: str, path: Path, source: str):
        self.name, self.loader = name, Changed(name, str(path))
        self.loader.source = source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module's place, if it is this one."""
        return ModuleSpec(name, self.loader, origin=self.loader.path) if name == self.name else None


def survives(file: str, source: str) -> bool:
    """Return whether all tests of a file pass with another source, in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1), os.dup2(nothing, 2)
            for name in [each for each in sys.modules if each.split(".")[0] == "electra"]:
                del sys.modules[name]
            name = file.removesuffix(".py").replace("/", ".")
            sys.meta_path.insert(0, Finder(name, ROOT / file, source))
            tests = [str(ROOT / "tests" / each) for each in TESTS[file]]
            words = [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "not slow",
                "-k",
                FEW.format(GOLDEN),
            ]
            status = int(importlib.import_module("pytest").main([*words, *tests]))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    """Try mutants, and write the record and its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", choices=[*TESTS, []])
    parser.add_argument("--sample", type=int, default=0, help="mutants of a file; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in HEAVY.split():
        importlib.import_module(name)
    from electra.checkpoints.manifest import find_commit

    record: dict[str, Any] = read_object(RECORD) if RECORD.exists() else {}
    for file in arguments.files or TESTS:
        source = (ROOT / file).read_text(encoding="utf-8")
        if not survives(file, source):
            sys.exit(f"{file}: its tests fail as it is")
        mutants = list_mutants(source)
        rng, number = random.Random(arguments.seed), arguments.sample or len(mutants)
        tried = rng.sample(mutants, min(number, len(mutants)))
        alive = [each for each in tried if survives(file, each.source)]
        record[file] = {
            **{"mutants": len(mutants), "tried": len(tried), "killed": len(tried) - len(alive)},
            **{"seed": arguments.seed, "commit": find_commit(), "tests": TESTS[file]},
            "survivors": [f"line {each.line}: {each.change}" for each in sorted(alive)],
        }
        print(file, record[file]["tried"], record[file]["killed"], flush=True)
        print("\n".join(record[file]["survivors"]), flush=True)
        write_json(RECORD, record)
        write_text(RECORD.with_suffix(".md"), tabulate(record))


def tabulate(record: dict[str, Any]) -> str:
    """Return the table of a record."""
    rows = [
        [
            file,
            each["mutants"],
            each["tried"],
            each["killed"],
            f"{each['killed'] / each['tried']:.0%}",
        ]
        for file, each in record.items()
    ]
    table = Table(["file", "mutants", "tried", "killed", "share"], rows)
    return f"`python -m tools.mutants`\n\n{to_markdown(table)}\n"


if __name__ == "__main__":
    main()
