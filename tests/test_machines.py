"""Machines that are not there: processes with homes, caches, addresses or networks of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from stores import free_ports
from test_distributed import TESTS, assert_same_losses, children_of, finish, read_sessions

from electra.assignments import override, to_dict
from electra.checkpoints.checkpoint import list_checkpoints
from electra.shards.config import PrepareConfig
from electra.shards.examples import Examples
from electra.shards.prepare import prepare
from electra.shards.store import open_shards

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from electra.assignments import from_dict
from electra.files import cache_folder
from electra.pretraining import loop
from electra.training import watchdog
from electra.training.config import PretrainConfig
shards, run, config, lost, slow, seen = sys.argv[1:]
machine = int(os.environ["MACHINE"])
watchdog.LOOK_SECONDS, watchdog.SILENT_SECONDS = 1, 15
rate = loop.find_learning_rate
def break_down(step, *given):
    time.sleep(json.loads(slow)[machine])
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

INSIDE = ("ip", "netns", "exec")


@pytest.fixture
def namespaces():
    """Two networks with a cable between them, whose ends are called eth0."""
    names = [f"electra-{os.getpid()}-{number}" for number in range(2)]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"namespaces of networks are not allowed here: {error}")
    try:
        peers = ["name", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0"]
        subprocess.run(["ip", "link", "add", *peers, "netns", names[1]], check=True)
        for number, name in enumerate(names, 1):
            inside = [*INSIDE, name, "ip"]
            address = f"10.213.7.{number}/24"
            subprocess.run([*inside, "address", "add", address, "dev", "eth0"], check=True)
            for card in ("lo", "eth0"):
                subprocess.run([*inside, "link", "set", card, "up"], check=True)
        yield names
    finally:
        for name in names:
            kill(pids_in(name))
            subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture
def short_folder():
    """One for Ray, which makes sockets in it: their names may have 107 characters."""
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


def pids_in(namespace):
    return map(int, subprocess.check_output(["ip", "netns", "pids", namespace]).split())


def kill(pids):
    for pid in pids:
        with suppress(OSError):  # it may have ended by itself
            os.kill(pid, signal.SIGKILL)


def wait_for(is_so, seconds=120):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.2)


@pytest.fixture
def start_machine(tmp_path):
    """Return what starts torchrun on a machine, which has one process, by its number.

    All are at the network of this machine, or at those of some namespaces.
    """
    port, started = free_ports(1)[0], []

    def start_machine(number, words, *options, namespaces=()):
        home = tmp_path / f"machine-{number}"
        home.mkdir(exist_ok=True)
        subnet, card = ("10.213.7", "eth0") if namespaces else ("127.0.0", "lo")
        launcher = [*INSIDE, namespaces[number]] if namespaces else []
        launcher += [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *options]
        launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={subnet}.1:{port}"]
        launcher += ["--max-restarts=3", f"--rdzv-conf=is_host={number == 0},last_call_timeout=2"]
        launcher += [f"--local-addr={subnet}.{number + 1}"]
        own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "MACHINE": str(number)}
        own |= {"GLOO_SOCKET_IFNAME": card, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        words = [*launcher, tmp_path / "program.py", *words]
        started.append(subprocess.Popen(list(map(str, words)), env={**os.environ, **own}, **pipes))
        return started[-1]

    yield start_machine
    for process in started:
        if process.poll() is None:
            kill([*children_of(process.pid), process.pid])


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
    given = f"file://{many_shards}", tmp_path / "run", json.dumps(to_dict(config)), 7, [0, 0.2]
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


@pytest.mark.slow
def test_a_machine_out_of_reach_is_left_and_comes_back(
    start_machine, namespaces, toy_shards, toy_config, train, tmp_path
):
    """The cable is cut: the other machine continues alone, and with it when it is started anew."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["train.log_every=1", "train.save_every=2", "train.initial_weights=bert"]
    words += ["train.steps=120", "train.evaluate_every=60"]
    words += ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    config = override(toy_config, words)
    run = tmp_path / "run"
    given = toy_shards, run, json.dumps(to_dict(config)), -1, [0.4, 0.4], tmp_path / "seen.json"

    def start(number):
        return start_machine(number, given, "--nnodes=1:2", namespaces=namespaces)

    def count():
        """Return how many processes each session has had."""
        with suppress(OSError):
            return [session["processes"] for session in read_sessions(run)]
        return []

    def cut(state):
        cable = [*INSIDE, namespaces[1], "ip", "link", "set", "eth0", state]
        subprocess.run(cable, check=True)

    first, second = start(0), start(1)
    wait_for(lambda: list_checkpoints(run)[1:])
    cut("down")
    wait_for(lambda: count() == [2, 1])
    cut("up")
    kill([*children_of(second.pid), second.pid])
    assert finish(second)[0]
    third = start(1)
    for machine in (first, third):
        status, _, err = finish(machine)
        assert status == 0, err
    assert count() == [2, 1, 2]
    assert_same_losses(train("alone", " ".join(words)), run)


@pytest.mark.slow
def test_a_machine_of_a_ray_cluster_is_lost(
    short_folder, namespaces, toy_tokenizer, tmp_path, monkeypatch
):
    """Its pieces are prepared by the other one: the shards are those of one machine."""
    pytest.importorskip("ray")
    text, given = tmp_path / "a.txt", tmp_path / "tokenizer"
    text.write_text("\n\n".join(f"my neighbour sold engine {n} . " * 80 for n in range(6000)))
    toy_tokenizer.save(given)
    settings = PrepareConfig(workers=0, heldout_prob=0.1, task_bytes=20_000)
    prepare([str(text)], toy_tokenizer, tmp_path / "local", replace(settings, workers=1))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_TMPDIR", short_folder)  # others would join this cluster
    cluster = "10.213.7.1:6379"

    def start(number, *words, **own):
        line = [*INSIDE, namespaces[number], sys.executable, "-m", *words]
        with (tmp_path / "out.txt").open("a") as out:
            environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), **own}
            return subprocess.Popen(line, env=environment, stdout=out, stderr=out)

    def start_node(number, *words):
        address = f"--node-ip-address=10.213.7.{number + 1}"
        words = [*words, address, "--num-cpus=1", "--disable-usage-stats", "--block"]
        start(number, "ray.scripts.scripts", "start", *words)

    def works(number):
        """Return whether a piece is prepared on a machine."""
        for pid in pids_in(namespaces[number]):
            with suppress(OSError):
                if b"_prepare_on_ray" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
        return False

    def said():
        return (tmp_path / "out.txt").read_text()

    start_node(0, "--head", "--port=6379", "--include-dashboard=false")
    wait_for(lambda: said().count("block forever") == 1)
    start_node(1, f"--address={cluster}")
    wait_for(lambda: said().count("block forever") == 2)
    verb = ["electra", "prepare", str(text), "--tokenizer", str(given), "--engine", "ray", "--set"]
    verb += ["workers=0", "heldout_prob=0.1", "task_bytes=20000", "--out", str(tmp_path / "out")]
    command = start(0, *verb, RAY_ADDRESS=cluster)
    wait_for(lambda: works(1))
    kill(pids_in(namespaces[1]))
    assert command.wait(120) == 0, said()
    local, found = ((tmp_path / name / "manifest.json").read_text() for name in ("local", "out"))
    assert found == local
