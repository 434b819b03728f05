"""The watchdog of processes that compute together: who hangs, where, and who is silent."""

import json
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_distributed import children_of, finish, torchrun

from electra.assignments import to_dict
from electra.model.batch import Batch
from electra.training import watchdog
from electra.training.machine import Machine
from electra.training.watchdog import Beat, describe, find_place

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from electra.assignments import from_dict
from electra.pretraining import loop
from electra.training import watchdog
from electra.training.config import PretrainConfig
shards, run, config, patience, silent, pause = sys.argv[1:]
watchdog.LOOK_SECONDS = 0.1
watchdog.PATIENCE_SECONDS, watchdog.SILENT_SECONDS = float(patience), float(silent)
rate = loop.find_learning_rate
def hang(step, *given):
    if os.environ["RANK"] == "1" and step == 3:
        Path(run + ".new").write_text(str(os.getpid()))
        Path(run + ".new").rename(run + ".pid")
        time.sleep(float(pause))
    return rate(step, *given)
loop.find_learning_rate = hang
loop.pretrain(Path(shards), Path(run), from_dict(PretrainConfig, json.loads(config)), lambda _: 0)
"""


@pytest.fixture
def start(toy_shards, toy_config, tmp_path):
    """Return what starts two processes, of which the second hangs for some seconds."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(patience, silent, pause):
        words = [toy_shards, tmp_path / "run", json.dumps(to_dict(toy_config))]
        return torchrun(2, tmp_path / "program.py", *words, patience, silent, pause)

    return start


@pytest.mark.slow
def test_the_process_that_hangs_is_named_and_where(start, tmp_path):
    """Once, and the run continues."""
    status, _, err = finish(start(2, 100, 8))
    assert status == 0, err
    assert err.count("no step has ended for 2 s: process 1 on ") == 1, err
    _, _, told = err.partition("no step has ended")
    hung, waiting, *_ = told.split("; ")
    assert "at step 4 in electra/pretraining/loop.py:" in hung
    assert "waits at step 4 in electra/" in waiting
    assert (tmp_path / "run/results.json").exists()


@pytest.mark.slow
def test_a_process_of_which_nothing_is_heard_ends_the_others(start, tmp_path):
    """Stopped in its place, as a machine that is out of reach: its connections stay open."""
    launcher = start(1, 3, 2)
    pid = tmp_path / "run.pid"
    while not pid.exists():
        assert launcher.poll() is None, launcher.communicate()
    os.kill(int(pid.read_text()), signal.SIGSTOP)
    ranks = children_of(launcher.pid)
    assert int(pid.read_text()) in ranks
    launcher.wait(180)
    _, err = launcher.communicate()
    assert launcher.returncode == 1
    assert "no word of process 1 for 3 s: this one ends" in err, err


def test_places_are_lines_of_the_package():
    """Of another thread, as the watchdog asks."""
    ident, seen = threading.get_ident(), []

    def look(tensor):
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(find_place, ident).result())

    look(None)
    Batch(torch.zeros(1), None, None).each(look)
    assert seen[0] == (False, "no line of the package")
    assert seen[1][0] is False
    assert re.fullmatch(r"electra/model/batch.py:\d+, .+", seen[1][1])


def test_those_that_do_not_wait_come_first():
    waiting, other = (
        Beat(7, True, "electra/x.py:1, f", "a"),
        Beat(7, False, "electra/y.py:2, g", "b"),
    )
    told = describe([waiting, waiting, other, Beat()])
    assert told.startswith("process 2 on b: at step 8 in electra/y.py:2, g; process 3")
    assert told.endswith("processes 0, 1 on a: waits at step 8 in electra/x.py:1, f")


def test_who_has_left_its_steps_is_not_silent(monkeypatch):
    """It may wait long for process 0, which writes the last checkpoint."""
    monkeypatch.setattr(watchdog, "SILENT_SECONDS", -1)
    monkeypatch.setattr(watchdog.os, "_exit", lambda status: pytest.fail(f"ended with {status}"))
    watch = watchdog._Watch(Machine(num_ranks=2))
    watch._judge([watchdog.ENDED] * 2)
    with pytest.raises(pytest.fail.Exception), pytest.warns(UserWarning, match="no word of pro"):
        watch._judge([watchdog.ENDED, b""])
