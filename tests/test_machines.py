"""Machines that are not there: processes with homes, caches and addresses of their own."""

import json
import os
import signal
import subprocess
import sys

import pytest
from stores import free_ports
from test_distributed import TESTS, assert_same_losses, finish, read_sessions

from electra.assignments import override, to_dict
from electra.shards.examples import Examples
from electra.shards.store import open_shards

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from electra.assignments import from_dict
from electra.files import cache_folder
from electra.pretraining import loop
from electra.training.config import PretrainConfig
shards, run, config, lost, slow, seen = sys.argv[1:]
machine = int(os.environ["MACHINE"])
rate = loop.find_learning_rate
def break_down(step, *given):
    if machine == 1:
        time.sleep(float(slow))
    if machine == 1 and step == int(lost):
        names = [path.name for path in cache_folder("window").iterdir() if len(path.name) == 64]
        Path(seen).write_text(json.dumps(names))
        os.kill(os.getppid(), signal.SIGKILL)  # torchrun
        os.kill(os.getpid(), signal.SIGKILL)
    return rate(step, *given)
loop.find_learning_rate = break_down
config = from_dict(PretrainConfig, json.loads(config))
loop.pretrain(Path(shards), Path(run), config, lambda _: 0, cache=10**9)
"""


@pytest.fixture
def start_machine(tmp_path):
    """Return what starts torchrun on a machine, which has one process."""
    port = free_ports(1)[0]

    def start_machine(number, words, *options):
        home = tmp_path / f"machine-{number}"
        home.mkdir(exist_ok=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *options]
        launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--max-restarts=3"]
        launcher += [f"--rdzv-conf=is_host={number == 0},last_call_timeout=2"]
        launcher += [f"--local-addr=127.0.0.{number + 1}"]
        own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "MACHINE": str(number)}
        own |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        words = [tmp_path / "program.py", *words]
        return subprocess.Popen([*launcher, *map(str, words)], env={**os.environ, **own}, **pipes)

    return start_machine


@pytest.mark.slow
def test_a_machine_is_lost_and_the_other_one_finishes(
    start_machine, many_shards, toy_config, train, tmp_path
):
    """By itself; each machine has read its part of the shards before, with the losses of one."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["examples.order=window", "examples.groups=2", "examples.window=4", "train.log_every=1"]
    words += ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    words += ["train.save_every=2", "train.initial_weights=bert"]
    config = override(toy_config, words)
    given = f"file://{many_shards}", tmp_path / "run", json.dumps(to_dict(config)), 7, 0.2
    machines = [
        start_machine(number, [*given, tmp_path / "seen.json"], "--nnodes=1:2")
        for number in range(2)
    ]
    status, _, err = finish(machines[0])
    assert status == 0, err
    assert finish(machines[1])[0] == -signal.SIGKILL
    assert [session["processes"] for session in read_sessions(tmp_path / "run")] == [2, 1]
    assert_same_losses(train("alone", " ".join(words), shards=many_shards), tmp_path / "run")
    shards = open_shards(many_shards)
    examples = Examples(shards.train, shards.tokenizer, config.examples, config.train.seed)
    parts = [
        {name for n in stream.numbers for name in shards.train[n].sha256.values()}
        for stream in examples.order.streams[0]
    ]
    seen = set(json.loads((tmp_path / "seen.json").read_text()))
    assert seen
    assert seen <= parts[1]
