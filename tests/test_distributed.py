"""Several processes under torchrun compute one step together, stop together and resume."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from refusals import refuse
from runs import assert_same_end, read_measures, write_toml

from electra.assignments import override
from electra.checkpoints.checkpoint import find_checkpoint
from electra.cli import main
from electra.errors import UserError
from electra.pretraining import opening
from electra.pretraining.start import require_equal_shares
from electra.pretraining.step import Step
from electra.processes import Interrupted
from electra.settings import to_dict
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.training.distributed import joined
from electra.training.machine import Machine, prepare_machine

TESTS = Path(__file__).parent
SECONDS = 300  # of a machine with other work
"""Watchdog: a run that hangs fails its test."""


def torchrun(processes, *words, restarts=0):
    """Start a program under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*launcher, *map(str, words)], env=environment, **pipes)


def finish(process):
    """Return status, standard output and standard error; if it hangs, end it with its children."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        for pid in (*children_of(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


def succeed(processes, *words, restarts=0):
    """Return standard output and standard error of processes that must succeed."""
    status, out, err = finish(torchrun(processes, *words, restarts=restarts))
    assert status == 0, err
    return out, err


def children_of(pid):
    """The processes that torchrun started; they are in groups of their own."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def assert_one_step(names, processes, steps, folder, sharding="none"):
    """The same rows, positions and draws, and the same losses to rounding.

    One step differs by less than 1e-6. Adam divides by the root of small second moments, so later
    steps amplify that: 1.5e-6 was seen after eight steps of four processes, and in reference mode,
    whose Adam corrects no bias, 1.1e-4 of a norm after nine steps of two.
    """
    succeed(processes, TESTS / "ranks.py", folder, steps, sharding, *names)
    for name in names:
        alone = ranks.compute(name, steps, Machine(), sharding)
        files = [folder / f"{name}-{rank}.json" for rank in range(processes)]
        together = [json.loads(file.read_text()) for file in files]
        of_steps = zip(*(found["draws"] for found in together), strict=True)
        assert [list(chain(*parts)) for parts in of_steps] == alone["draws"], name
        for found in together:
            assert found["norms"] == pytest.approx(alone["norms"], rel=3e-4), name
            assert found["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-6), name
            assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5), name
            assert found["losses"] == together[0]["losses"], name


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_objective_is_computed_by_several_processes(tmp_path, processes):
    """As one process with as many micro-batches; dropout and sampling on.

    Few steps: sooner or later rounding makes one sampled token another, and all after it. Without
    processes, `test_two_processes_share_the_rows_of_a_step` asks the same.
    """
    assert_one_step(list(ranks.STEPS), processes, 10, tmp_path)


@pytest.mark.slow
def test_one_process_compiles_for_all(tmp_path, monkeypatch):
    """The forward and backward pass, which take longest; the other finds both in the cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    name = "train.compile=yes"
    succeed(2, TESTS / "ranks.py", tmp_path, 3, "none", name)
    found = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(2)]
    assert [each["found"] for each in found] == [0, 2]
    assert found[0]["losses"] == found[1]["losses"]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "sharding"), [(2, "full"), (4, "full"), (4, "hybrid")])
def test_every_objective_is_computed_by_a_divided_model(tmp_path, processes, sharding):
    names = [name for name in ranks.STEPS if name != "modernbert"]
    assert_one_step(names, processes, 10, tmp_path, sharding)


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from electra.training.config import PretrainConfig
from electra.pretraining.loop import pretrain
from electra.processes import Interrupted
from electra.assignments import from_dict
shards, run, config = sys.argv[1:4]
kills = sys.argv[4:]  # of each start: signal, rank and step
pid = run + ".pid-"
Path(pid + os.environ["RANK"]).write_text(str(os.getpid()))
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
kills = kills[start:start + 1]
def show(record):
    if kills and record["part"] == "train":
        name, rank, step = kills[0].split(",")
        if record["step"] >= int(step):
            kills.clear()
            os.kill(int(Path(pid + rank).read_text()), getattr(signal, name))
try:
    pretrain(Path(shards), Path(run), from_dict(PretrainConfig, json.loads(config)), show)
except Interrupted as stop:
    Path(run, f"stopped-{os.environ['RANK']}").write_text(str(stop.step))
names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
is_divided = json.loads(config)["train"]["sharding"] != "none"
assert is_divided or not any("gloo" in name for name in names), names  # they could abort its end
"""


ODD = """
import os, torch
from electra.pretraining.guard import SPIKE, Guard
judge, calls = Guard.judge, []
def judge_otherwise(*given):
    verdict = judge(*given)
    calls.append(verdict)
    is_odd = os.environ["RANK"] == "1" and len(calls) == 8
    return torch.full_like(verdict, SPIKE) if is_odd else verdict
Guard.judge = judge_otherwise
"""
"""Before PROGRAM: process 1 alone skips step 8."""


@pytest.fixture
def train_together(toy_shards, toy_config, tmp_path):
    """Return what makes or continues a run in some processes, with signals at some steps."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def train_together(name, processes, settings, *kills, restarts=0, shards=toy_shards):
        config = json.dumps(to_dict(override(toy_config, settings.split())))
        words = [tmp_path / "program.py", shards, tmp_path / name, config, *kills]
        succeed(processes, *words, restarts=restarts)
        return tmp_path / name

    return train_together


def wait_for_records(run, process):
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def read_sessions(run):
    return json.loads((run / "manifest.json").read_text())["sessions"]


def assert_same_losses(*runs):
    first, second = ([record["loss"] for record in read_measures(run)] for run in runs)
    assert second == pytest.approx(first, rel=1e-6)


@pytest.mark.slow
def test_processes_stop_together_and_any_number_goes_on(train_together, train, tmp_path):
    """SIGTERM to one of two; then two processes, and from another copy one, to the same end."""
    run = train_together("run", 2, "train.log_every=1", "SIGTERM,1,7")
    stops = [(run / f"stopped-{rank}").read_text() for rank in range(2)]
    assert stops[0] == stops[1]
    assert stops[0] in ("8", "9")
    shutil.copytree(run, tmp_path / "alone")
    whole = train_together("whole", 2, "train.log_every=1")
    train_together("run", 2, "train.log_every=1")
    assert_same_end(whole, run, all_records=True)
    session = read_sessions(run)[1]
    assert (session["first_step"], session["processes"]) == (int(stops[0]), 2)
    with pytest.warns(UserWarning, match=r"changed settings: train\.accumulation 1 -> 2"):
        alone = train("alone", "train.log_every=1 train.accumulation=2")
    assert_same_losses(whole, alone)


@pytest.mark.slow
def test_weights_that_part_are_found_before_they_are_saved(
    train_together, toy_shards, toy_config, tmp_path
):
    (tmp_path / "program.py").write_text(ODD + PROGRAM)
    config = override(toy_config, ["train.save_every=6", "train.log_every=3"])
    given = tmp_path / "program.py", toy_shards, tmp_path / "run", json.dumps(to_dict(config))
    status, _, err = finish(torchrun(2, *given))
    assert status == 1
    assert "after step 9 the weights of process 1 are not those of process 0 (1 first in " in err
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000006"]
    (tmp_path / "program.py").write_text(PROGRAM)
    run = train_together("run", 2, "train.save_every=6 train.log_every=3")
    assert_same_end(train_together("whole", 2, "train.save_every=6 train.log_every=3"), run)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4)])
def test_more_processes_go_on(train_together, train, toy_config, before, after):
    """With the same micro-batches: the losses of one process that was never stopped."""
    settings = {n: f"train.log_every=1 train.accumulation={4 // n}" for n in (1, before, after)}
    run = train_together("run", before, settings[before], "SIGTERM,0,5")
    assert int((run / "stopped-0").read_text()) < toy_config.train.steps
    train_together("run", after, settings[after])
    assert [session["processes"] for session in read_sessions(run)] == [before, after]
    assert_same_losses(train("whole", settings[1]), run)


@pytest.mark.slow
def test_groups_of_shards_are_read_by_a_process_each(
    train_together, train, toy_text, toy_tokenizer, tmp_path
):
    """With the losses of one process, which reads all groups."""
    given = [str(toy_text)], toy_tokenizer, tmp_path / "many"
    prepare(*given, PrepareConfig(heldout_prob=0.1, workers=1, shard_tokens=400))
    settings = "examples.order=window examples.groups=2 examples.window=4 train.log_every=1"
    run = train_together("run", 2, settings, shards=tmp_path / "many")
    alone = train("alone", f"{settings} train.accumulation=2", shards=tmp_path / "many")
    assert_same_losses(alone, run)


@pytest.mark.slow
def test_a_lost_process_costs_a_restart(train_together):
    """kill -9 of either of two processes; torchrun starts both anew, to the same bits."""
    settings = "train.log_every=1 train.save_every=2"
    run = train_together("run", 2, settings, "SIGKILL,1,4", "SIGKILL,0,7", restarts=2)
    assert len(read_sessions(run)) == 3
    assert_same_end(train_together("whole", 2, settings), run, all_records=True)


@pytest.mark.slow
def test_a_divided_run_goes_on_in_any_form(train_together, train, tmp_path):
    """Divided among two processes and killed: to the same bits; then whole on one: the same run."""
    plain = "train.log_every=1 train.save_every=2 train.layers=plain"
    divided = f"{plain} train.sharding=full"
    whole = train_together("whole", 2, divided)
    killed = train_together("killed", 2, divided, "SIGKILL,1,4", restarts=1)
    assert len(read_sessions(killed)) == 2
    assert_same_end(whole, killed, all_records=True)
    run = train_together("run", 2, divided, "SIGTERM,0,5")
    with pytest.warns(UserWarning, match=r"train\.sharding full -> none"):
        train("run", plain, "train.accumulation=2")
    assert_same_losses(whole, run)
    ends = [read_measures(each)[-1] for each in (whole, train_together("copied", 2, plain))]
    assert ends[1]["loss"] == pytest.approx(ends[0]["loss"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_whose_torchrun_is_killed_saves_and_ends(toy_shards, tmp_path, processes):
    """Its processes would go on without torchrun, and keep the lock of the run."""
    run = tmp_path / "run"
    words = ["-m", "electra", "pretrain", toy_shards, "--preset", "tiny", "--out", run, "--set"]
    process = torchrun(processes, *words, "model.num_hidden_layers=1", "train.log_every=1")
    wait_for_records(run, process)
    process.kill()
    finish(process)  # when the last of its processes has closed the streams
    assert not (run / "lock").exists()
    assert find_checkpoint(run)[0] == read_measures(run)[-1]["step"]


@pytest.mark.slow
def test_the_command_under_torchrun(toy_shards, toy_config, tmp_path):
    """It prints once; SIGTERM to launcher and processes at once, as queues send it, saves."""
    run, toml = tmp_path / "run", write_toml(tmp_path, toy_config)
    words = ["-m", "electra", "pretrain", toy_shards, "--out", run, "--config", toml]
    process = torchrun(2, *words, "--set", "train.steps=100000", "train.log_every=10")
    wait_for_records(run, process)
    for pid in (*children_of(process.pid), process.pid):
        os.kill(pid, signal.SIGTERM)
    began = time.monotonic()
    status, out, err = finish(process)
    assert status != 0
    assert time.monotonic() - began < 30, "torchrun kills what has not ended by then"
    assert out.count("stopped at step") == 1, err
    step = int(out.partition("stopped at step ")[2].partition(";")[0].replace(",", ""))
    assert find_checkpoint(run)[0] == step
    more = ["--set", "train.steps=100010", "train.log_every=10", "--max-time", "0.001s"]
    out, err = succeed(2, *words, *more)
    assert out.count(f"stopped at step {step + 1:,}") == 1
    assert err.count("with changed settings: train.steps") == 1
    cooldown = ["--resume", run, "--cooldown", "3", "--out", tmp_path / "end"]
    out, _ = succeed(2, *words[:3], *cooldown)
    assert out.count("wrote ") == 1
    assert read_measures(tmp_path / "end")[-1]["step"] == step + 4
    status, _, err = finish(torchrun(2, "-m", "electra", "export", run, "--out", tmp_path / "hf"))
    assert status != 0
    assert "torchrun is for pretrain and finetune, not for export" in err


@pytest.mark.parametrize(
    ("setting", "num_ranks", "says"),
    [
        ("train.accumulation=2", 3, "batch_size 8 must be a multiple of 6, which is 3 "),
        ("train.accumulation=2", 3, "set train.batch_size=12"),
        ("method.objective=cocolm", 2, "compares the rows of one process, not of 2: start one, or"),
    ],
)
def test_unequal_shares_are_refused(toy_config, setting, num_ranks, says):
    config = override(toy_config, [setting])
    refuse(says, require_equal_shares, config, Machine(num_ranks=num_ranks))
    require_equal_shares(config, Machine())


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--seeds", "3"], ["--grid", "learning_rate=1e-3,2e-3,3e-3"]])
def test_processes_share_seeds_and_grid_points(start, toy_question, tmp_path, words):
    """The scores are those of one process, which trains them one after the other."""
    task = ["finetune", start, "--task", "own", "--data", toy_question, "--out"]
    small = [*words, "--set", "epochs=1", "threads=1", "precision=float32"]
    main([str(word) for word in (*task, tmp_path / "alone", *small)])
    several = ["-m", "electra", *task, tmp_path / "together", *small]
    out, _ = succeed(2, *several)
    assert out.count("wrote ") == 1
    alone, together = (
        {path.relative_to(folder): path.read_text() for path in folder.rglob("predictions.tsv")}
        for folder in (tmp_path / "alone", tmp_path / "together")
    )
    assert len(alone) >= 3
    assert alone == together


@pytest.mark.parametrize(
    ("error", "on_host", "ends"),
    [
        (None, False, True),
        (Interrupted(Path("run"), 3), False, True),  # by all processes after the same step
        (UserError("no memory"), False, False),
        (ZeroDivisionError(), False, False),
        (ZeroDivisionError(), True, True),
    ],
)
def test_nccl_is_ended_by_all_processes_or_by_none(monkeypatch, error, on_host, ends):
    """An error of one process alone must not wait for the others, who know nothing of it.

    Processes that share nothing on their devices have no NCCL.
    """
    begun, ended = [], []
    monkeypatch.setattr(dist, "rendezvous", lambda *words, **_: iter([(None, 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: begun.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(True))
    machine = Machine(torch.device("cuda"), num_ranks=2)
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, joined(machine, on_host=on_host):
        if error is not None:
            raise error
    assert begun == ["gloo" if on_host else "cpu:gloo,cuda:nccl"]
    assert bool(ended) == ends


@pytest.mark.parametrize("max_seconds", [math.inf, 0])
def test_captures_are_freed_before_the_group_is_left(train, monkeypatch, max_seconds):
    """Of a finished and of a stopped run."""
    order = []

    @contextmanager
    def joined(machine):
        try:
            yield
        finally:
            order.append("left")

    monkeypatch.setattr(opening, "joined", joined)
    monkeypatch.setattr(Step, "close", lambda step: order.append("closed"))
    with nullcontext() if max_seconds else pytest.raises(Interrupted):
        train("run", "train.steps=2 optimizer.warmup_steps=0", max_seconds=max_seconds)
    assert order == ["closed", "left"]


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("electra.training.machine.usable_cores", lambda: 3)
    for name, value in (("RANK", 0), ("WORLD_SIZE", 3), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 3)):
        monkeypatch.setenv(name, str(value))
    assert prepare_machine("cpu", "float32", 0).threads == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    assert prepare_machine("cpu", "float32", 0).threads == 1
