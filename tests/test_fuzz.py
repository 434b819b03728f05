"""Readers of strangers' bytes: what they failed at once, and some seconds of new damage each."""

import shutil
from pathlib import Path

import pytest

from electra.errors import UserError
from tools.fuzz import FOUND, Target, find_targets, fuzz, try_input

READERS = "text table lines parquet questions tags settings suite pieces tokenizer run records"
READERS += " shards finetuned weights published pickle tensorflow"
KEPT = sorted(path for path in FOUND.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return find_targets(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_what_was_a_fault_once_is_read_or_refused(targets, path, tmp_path):
    reader, _, *name = path.relative_to(FOUND).parts
    assert not try_input(targets[reader], "/".join(name), path.read_bytes(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS.split())
def test_damage_is_read_or_refused(targets, reader, tmp_path):
    # So many that a faster machine does not find here what `make fuzz` is for.
    number, faults = fuzz(targets[reader], 3, 0, tmp_path, most=100)
    assert number
    assert not faults


def test_every_reader_is_tried(targets):
    assert list(targets) == READERS.split()
    for reader in targets:
        assert targets[reader].seeds


@pytest.mark.parametrize("reader", READERS.split())
def test_a_sample_is_read_and_not_refused(targets, reader, tmp_path):
    target = targets[reader]
    if target.folder:
        target.read(Path(shutil.copytree(target.folder, tmp_path / "input")))
    else:
        for name, content in target.seeds.items():
            (tmp_path / name).write_bytes(content)
            target.read(tmp_path / name)


def test_a_fault_is_found_and_a_refusal_is_none(tmp_path):
    def read(path):
        content = path.read_bytes()
        if b"1" in content:
            raise UserError("refused")
        if b"\xff" in content:
            raise KeyError("fault")

    target = Target(read, {"a.txt": b"0" * 64})
    number, faults = fuzz(target, 0.5, 0, tmp_path)
    assert number > 1
    ((place, (name, content, told)),) = faults.items()
    assert "test_fuzz.py" in place
    assert name == "a.txt"
    assert b"\xff" in content
    assert told.endswith("KeyError: 'fault'\n")
