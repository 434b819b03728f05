"""A failure of the power leaves what is written whole or absent; system calls that fail, a line."""

import errno
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import SMALL, words_of

from benchmarks.power import MODELS, rebuild, recording, write_state
from benchmarks.trials import is_same
from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints, write_checkpoint
from electra.cli import main
from electra.errors import UserError
from electra.files import check_hashes, make_folder, new_file, new_folder, write_hashes, write_text

FAULTS = Path(__file__).parents[1] / "benchmarks/faults.c"


def list_states(root, tmp_path, write):
    """Yield each state that a failure may leave while something is written, and if it was done."""
    with recording(root, tmp_path / "moments"):
        write()
    moments, rng = pickle.loads((tmp_path / "moments").read_bytes()), random.Random(0)
    for model in MODELS:
        for stop in range(len(moments)):
            yield rebuild(moments, stop, model, rng), stop == len(moments) - 1


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    write_text(root / "a", "old " * 1000)
    found = []
    for state, is_done in list_states(
        root, tmp_path, lambda: write_text(root / "a", "new " * 1500)
    ):
        assert state["a"] in (b"old " * 1000, b"new " * 1500)
        assert state["a"].startswith(b"new") or not is_done
        found.append(state["a"])
    assert len(set(found)) == 2


def test_a_folder_is_whole_or_absent(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()

    def write():
        with new_folder(root / "in/out") as folder:
            (folder / "part").mkdir()
            for name in ("a", "part/b"):
                (folder / name).write_bytes(os.urandom(3000))
            write_hashes(folder / "part")
            write_hashes(folder)

    seen = set()
    for state, is_done in list_states(root, tmp_path, write):
        is_there = "in/out" in state
        assert is_there or not is_done
        seen.add(is_there)
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name, content in state.items():
            path = copy / name
            path.mkdir() if content is None else path.write_bytes(content)
        if is_there:
            for place in ("in/out", "in/out/part"):
                assert (copy / place / "electra.json").exists()
                check_hashes(copy / place)
        elif (copy / "in").exists():  # what is left is in nobody's way
            with new_folder(copy / "in/out") as folder:
                assert [path.name for path in folder.iterdir()] == [".unfinished"]
    assert seen == {True, False}


def test_a_run_never_lacks_a_checkpoint_once_it_has_one(tmp_path):
    """The old one is removed when the new one is on the disk, also if one is kept."""
    root = tmp_path / "disk"
    root.mkdir()
    tensors = {"x": torch.arange(500.0)}
    state = {name: tensors for name in ("model.safetensors", "optimizer.safetensors")}
    write_checkpoint(root / "run", 1, state, {}, 1)
    steps = set()
    write = lambda: write_checkpoint(root / "run", 2, state, {}, 1)  # noqa: E731
    for found, is_done in list_states(root, tmp_path, write):
        shutil.rmtree(root)
        root.mkdir()
        for name, content in found.items():
            path = root / name
            path.mkdir() if content is None else path.write_bytes(content)
        intact = []
        for folder in list_checkpoints(root / "run"):
            try:
                intact.append(find_checkpoint(folder)[0])
            except UserError:
                continue
        assert intact
        assert 2 in intact or not is_done
        steps |= set(intact)
    assert steps == {1, 2}


def test_names_of_new_folders_are_kept(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    for state, is_done in list_states(root, tmp_path, lambda: make_folder(root / "a/b/c")):
        assert "a/b/c" in state or not is_done


def test_an_error_of_an_open_file_has_its_name(tmp_path):
    for write, name in ((new_file, "out.txt"), (new_folder, "out")):
        with pytest.raises(OSError, match="Input/output") as failure, write(tmp_path / name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        assert failure.value.filename == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


SLOW = [pytest.param(verb, marks=pytest.mark.slow) for verb in ("prepare", "finetune")]


@pytest.mark.parametrize("verb", ["tokenizer", "pretrain", "export", *SLOW])
def test_a_command_that_was_cut_off_is_done_by_the_same_command(
    run, toy_text, toy_tokenizer, toy_shards, toy_question, tmp_path, capsys, verb
):
    """The last states of all models are whole; of those before it some are tried."""
    root, out = tmp_path / "disk", tmp_path / "disk/out"
    root.mkdir()
    toy_tokenizer.save(tmp_path / "vocabulary")
    given = {
        "tokenizer": [toy_text, "--set", "vocab_size=120"],
        "prepare": [toy_text, "--tokenizer", tmp_path / "vocabulary", "--set", "workers=1",
                    "heldout_prob=0.1", "task_bytes=8000"],
        "pretrain": [toy_shards, "--set", *words_of(SMALL), "train.steps=6", "train.save_every=2",
                     "train.keep_checkpoints=1"],
        "finetune": [run, "--task", "own", "--data", toy_question, "--seeds", "2", "--set",
                     "epochs=1", "threads=1", "reseeds=0"],
        "export": [run],
    }[verb]  # fmt: skip
    words = [verb, *map(str, given), "--out", str(out)]
    states = {}
    for state, is_done in list_states(root, tmp_path, lambda: main(words)):
        states.setdefault(frozenset(state.items()), (state, is_done))
    shutil.move(out, tmp_path / "whole")
    last = [state for state, is_done in states.values() if is_done]
    before = [state for state, is_done in states.values() if not is_done]
    for state in [*last, *random.Random(0).sample(before, 6)]:
        write_state(root, state)
        if state in last or (out.exists() and verb != "pretrain"):
            assert is_same(tmp_path / "whole", out)
        if not out.exists() or verb in ("pretrain", "finetune"):
            main(words)
        assert is_same(tmp_path / "whole", out)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The library of system calls that fail, compiled."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, FAULTS, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        (f"write {errno.EIO} 0 1", 2, "error: out: Input/output error; see the system's log for"),
        (f"write {errno.EDQUOT} 0 99", 2, "error: out: Disk quota exceeded; make room, then give"),
        (f"close {errno.EIO} 0 1", 2, "error: out: Input/output error; see the system's log for"),
        (f"fsync {errno.EIO} 0 1", 2, "out.incomplete: Input/output error; see the system's log"),
        (f"rename {errno.EIO} 0 1", 2, "Input/output error; see the system's log for the disk"),
        ("write 0 0 999", 0, "wrote out"),
        (f"fsync {errno.EINVAL} 0 999", 0, "wrote out"),
        (f"flock {errno.ENOLCK} 0 99", 0, "note: this file system has no locks (No locks avail"),
        (f"flock {errno.ENOSYS} 0 99", 0, "note: this file system has no locks (Function not im"),
    ],
)
def test_a_system_call_that_fails_is_a_line(faults, toy_text, tmp_path, fault, status, says):
    """And the same command works afterwards; locks that are missing are told, once."""
    words = ["tokenizer", toy_text, "--out", "out", "--set", "vocab_size=120"]
    command = [sys.executable, "-m", "electra", *map(str, words)]
    given = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    failing = {"LD_PRELOAD": str(faults), "FAULT": f"{fault} /out"}
    path = os.pathsep.join([str(FAULTS.parents[1]), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(command, **given, env=os.environ | failing | {"PYTHONPATH": path})
    assert ended.returncode == status, ended.stderr
    assert (ended.stdout + ended.stderr).count(says) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    if status:
        assert list(tmp_path.iterdir()) == []
        again = subprocess.run(command, **given, env=os.environ | {"PYTHONPATH": path})
        assert again.returncode == 0, again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    check_hashes(tmp_path / "out")
