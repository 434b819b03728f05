"""Errors that tools.mutants makes in a file, and who then has them."""

import importlib.util
import sys

import pytest

from tools.mutants import apply, find_functions, find_mutants

SOURCE = '''
LIMIT = 3


def small(n, most=2):
    """Whether n is at most one less than the limit."""
    if most is None:
        raise ValueError(f"{n + 1}")
    seen.append(n)
    return n < LIMIT - 1


seen = []
'''
CHANGES = [
    "most is None -> most is not None",
    "without seen.append(n)",
    "n < LIMIT - 1 -> n <= LIMIT - 1",
    "LIMIT - 1 -> LIMIT + 1",
    "1 -> 2",
]


@pytest.fixture
def module(tmp_path, monkeypatch):
    path = tmp_path / "limits.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("limits", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "limits", module)
    spec.loader.exec_module(module)
    return module


def test_each_mutant_is_one_error_in_a_function_wherever_it_is_held(module, tmp_path):
    """Default values, messages and what is at the top level have none."""
    held, found = module.small, {}
    for mutant in find_mutants(tmp_path / "limits.py"):
        apply(mutant, find_functions())
        module.seen.clear()
        try:
            found[mutant.change] = [held(n) for n in (1, 2, 3)], [*module.seen]
        except ValueError:
            found[mutant.change] = None
    assert list(found) == CHANGES
    assert found == dict(
        zip(
            CHANGES,
            [
                None,
                ([True, False, False], []),
                ([True, True, False], [1, 2, 3]),
                ([True, True, True], [1, 2, 3]),
                ([False, False, False], [1, 2, 3]),
            ],
            strict=True,
        )
    )
