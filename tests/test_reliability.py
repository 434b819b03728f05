"""Runs that are not lost: continued by their command, stopped in time, guarded, on full disks."""

import gc
import gzip
import json
import math
import os
import pty
import resource
import shutil
import signal
import sys
import threading
from contextlib import contextmanager

import pytest
import torch
from networks import assert_same_tensors
from refusals import refuse
from runs import (
    assert_same_end,
    final_tensors,
    ignore,
    limit_files,
    read_records,
    send_at,
    wait_for,
)
from torch.nn.modules.module import register_module_forward_hook

from electra.assignments import flatten, override
from electra.checkpoints.checkpoint import copy_state, find_checkpoint, list_checkpoints
from electra.checkpoints.manifest import amend_session
from electra.checkpoints.metrics import read_metrics
from electra.errors import UserError
from electra.files import read_object, write_json
from electra.method.objective import Objective
from electra.presets import PRESETS
from electra.pretraining.guard import ACCEPTED, NOT_FINITE, SPIKE, Guard
from electra.pretraining.journal import PATIENCE, Alarms
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.memory import make_rows
from electra.pretraining.resolution import resolve
from electra.pretraining.signals import heed_signals
from electra.pretraining.start import build_model
from electra.pretraining.step import Step
from electra.processes import Interrupted
from electra.settings import to_dict
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine


@pytest.fixture
def stopped(train, tmp_path):
    """A run that its time limit stopped after its first step."""
    with pytest.raises(Interrupted, match="stopped at step 1;") as stop:
        train("run", max_seconds=0)
    assert stop.value.in_time
    return tmp_path / "run"


# The same command again


def test_the_same_call_continues_the_run(run, stopped, train):
    """Two of the calls have time for one step, the last one for the rest."""
    for done in (2, 3):
        with pytest.raises(Interrupted, match=f"stopped at step {done};"):
            train("run", max_seconds=0)
    assert_same_end(run, train("run"))


def test_a_run_can_be_made_longer(run, train, tmp_path):
    """Also a complete one; how often it is logged may also change."""
    shutil.copytree(run, tmp_path / "run")
    longer = "train.steps=14 train.log_every=2"
    says = r"resuming .*run with changed settings: train.steps 12 -> 14, train.log_every 4 -> 2"
    with pytest.warns(UserWarning, match=says):
        train("run", longer)
    assert json.loads((tmp_path / "run/results.json").read_text())["steps"] == 14
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["train"]["steps"], config["train"]["log_every"]) == (14, 2)
    says = r"is complete; .*choose another --out, or more train\.steps"
    with pytest.raises(UserError, match=says):
        train("run", longer)


def test_a_run_that_goes_on_in_another_dtype_says_so(stopped, train):
    amend_session(stopped, dtype="torch.bfloat16")  # as of a CPU that multiplies it
    with pytest.warns(UserWarning, match="in float32, before in bfloat16; --set"):
        train("run")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("train.steps=8", r"train\.steps=12, not 8: a run can be made longer, not shorter"),
        ("model.num_hidden_layers=3", r"started with model\.num_hidden_layers=2, not 3: .* --out"),
        (
            "train.seed=1 model.layer_norm_eps=1 train.log_every=3",
            r"model\.layer_norm_eps=1e-12, not 1\.0, train\.seed=0, not 1: .* --resume \S*run`$",
        ),
    ],
)
def test_a_run_is_not_continued_as_another(stopped, train, settings, says):
    before = (stopped / "config.json").read_text()
    with pytest.raises(UserError, match=says):
        train("run", settings)
    assert (stopped / "config.json").read_text() == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["train.steps=3"], "train.steps=12, not 3: a run can be made longer, not shorter"),
        (["model.hidden_size=64"], "model.hidden_size=128, not 64"),
        ([], "more differ: the result would belong to neither"),
    ],
)
def test_the_command_says_which_settings_differ(stopped, toy_config, settings, says):
    """Before any rule of a new run, such as that its warm-up is shorter than its steps."""
    values = {**dict(flatten(to_dict(toy_config))), "model.vocab_size": None}.items()
    begun = [f"{name}={value}" for name, value in values if value is not None] if settings else []
    given = {each.partition("=")[0]: each for each in (*begun, *settings)}
    refuse(says, lambda: resolve("tiny", None, list(given.values()), run=stopped))


def test_a_run_is_not_continued_on_other_shards(stopped, toy_shards, toy_config, tmp_path):
    other = shutil.copytree(toy_shards, tmp_path / "other")
    path = other / "manifest.json"
    write_json(path, {**read_object(path), "note": "prepared anew"})
    with pytest.raises(UserError, match=r"does not hold the shards of .* it has another corpus"):
        pretrain(other, stopped, toy_config, ignore)


def test_the_second_stage_stays_where_it_was(train):
    settings = "method.scheme=two_stage method.sharing=none optimizer.warmup_steps=1"
    longer = f"{settings} train.steps=14"
    train("run", settings)
    with pytest.raises(UserError, match=r"began at step 6.*set method\.generator_steps=6$"):
        train("run", longer)
    with pytest.warns(UserWarning, match="changed settings: method.generator_steps 0 -> 6"):
        run = train("run", longer, "method.generator_steps=6")
    assert json.loads((run / "results.json").read_text())["steps"] == 14


# Signals


def test_a_signal_saves_and_the_run_goes_on(run, train):
    ours = train("run", "train.keep_checkpoints=3", show=send_at(8, signal.SIGUSR1))
    names = [folder.name for folder in list_checkpoints(ours)]
    assert names == ["step-00000006", "step-00000009", "step-00000012"]
    assert_same_end(run, ours)


def test_a_signal_in_the_last_evaluation_stops_what_follows(train, tmp_path):
    with pytest.raises(Interrupted, match="stopped at step 12;"):
        train("run", show=send_at(12, signal.SIGINT))
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_acts_at_once(number):
    def refuse(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(number, refuse)
    try:
        with heed_signals() as requests:
            os.kill(os.getpid(), number)
            assert requests.stops
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


def test_a_thread_heeds_no_signals():
    """Which Python gives to the main thread alone."""
    found = []

    def enter():
        with heed_signals() as requests:
            found.append(requests)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not found[0].stops


@pytest.mark.parametrize("hang_up", [signal.SIG_DFL, signal.SIG_IGN], ids=["hang-up", "nohup"])
def test_a_run_outlives_its_terminal(toy_shards, tmp_path, hang_up):
    """As with a lost ssh. A hang-up saves and stops; under nohup the run continues, unseen."""
    run, settings = tmp_path / "run", ["model.num_hidden_layers=1", "train.evaluate_rows=0"]
    settings += ["train.steps=40", "train.log_every=1", "train.threads=1", "train.batch_size=2"]
    words = ["pretrain", str(toy_shards), "--preset", "tiny", "--out", str(run), "--set", *settings]
    process, terminal = pty.fork()
    if not process:
        signal.signal(signal.SIGHUP, hang_up)
        os.execv(sys.executable, [sys.executable, "-m", "electra", *words])
    while b"step 3" not in os.read(terminal, 1 << 16):
        pass
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    step, _ = find_checkpoint(run)
    assert (os.waitstatus_to_exitcode(status), step == 40) in ((130, False), (0, True))
    assert (step == 40) == (hang_up == signal.SIG_IGN)
    assert not (run / "lock").exists()


def test_the_signal_that_a_parent_passes_on_is_the_first_one_again(monkeypatch):
    """A queue signals a suite and its runs at once, and the suite then signals its runs."""
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with heed_signals() as requests:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert requests.stops
            monkeypatch.setattr("electra.pretraining.signals.SAME_REQUEST_SECONDS", 0.0)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


# Skipped steps


@contextmanager
def broken(what, steps):
    """Make the loss or the gradient of the training steps NaN whose numbers are given."""
    seen = 0

    def damage(module, inputs, output):
        nonlocal seen
        if not isinstance(module, Objective) or not module.training:
            return None
        seen += 1
        if seen - 1 not in steps:
            return None
        if what == "loss":
            return output._replace(loss=output.loss * math.nan)
        output.loss.register_hook(lambda gradient: gradient * math.inf)
        return None

    hook = register_module_forward_hook(damage)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize(
    "optimizer", ["method.mode=paper", "method.mode=reference", "optimizer.matrices=muon"]
)
@pytest.mark.parametrize("first", [0, 2])
def test_a_step_without_numbers_changes_nothing(optimizer, what, first):
    """Parameters, moments, counters and measures keep their bits, and so do the steps after it."""
    small = ["model.num_hidden_layers=1", "train.batch_size=4"]
    shape = ["examples.sequence_length=32", "train.precision=float32", optimizer]
    config = override(PRESETS["small"], [*small, *shape])
    with_it, without = (
        Step(build_model(config, make_tokenizer(300), Machine()).train(), config, Machine())
        for _ in range(2)
    )
    for number in range(4):
        batch, is_broken = make_rows(config, 4, number), number == first
        if not is_broken:
            without(number, batch, 1e-3)
        before = {name: each.clone() for name, each in with_it.model.named_parameters()}
        with broken(what, {0} if is_broken else set()):
            outcome = with_it(number, batch, 1e-3)
        assert outcome.verdict == (NOT_FINITE if is_broken else ACCEPTED)
        if is_broken:
            assert_same_tensors(dict(with_it.model.named_parameters()), before)
    assert with_it.measures.record() == without.measures.record()
    states = [copy_state(each.model, each.optimizer, each.memory) for each in (with_it, without)]
    for tensors, expected in zip(*(each.values() for each in states), strict=True):
        assert_same_tensors(tensors, expected)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_skipped_steps_are_counted_and_their_rows_kept(train, what):
    with broken(what, {2, 7, 8}):
        run = train("run", "train.log_every=1 train.check_memory=false")
    records = read_records(run, "train")
    assert [record["skipped"] for record in records] == [0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 3]
    assert [record["step"] for record in records if record["loss"] is None] == [3, 8, 9]
    files = sorted((run / "skipped").iterdir())
    assert [file.name for file in files] == [f"step-0000000{n}.json" for n in (2, 7, 8)]
    skipped = json.loads(files[0].read_text())
    assert skipped["reason"] == "loss or gradient not finite"
    assert len(skipped["rows"]) == 8
    assert skipped["rows"][0].startswith("[CLS] ")
    assert all(tensor.isfinite().all() for tensor in final_tensors(run)[1].values())


def test_ten_steps_without_numbers_stop_the_run(train, tmp_path):
    """The weights are saved as they were, and the run can go on."""
    says = r"11 steps in a row before step 16 had no finite loss .* lower optimizer.learning_rate"
    with broken("loss", range(5, 16)), pytest.raises(UserError, match=says):
        train("run", "train.steps=20 train.check_memory=false")
    assert find_checkpoint(tmp_path / "run")[0] == 16
    assert resume(tmp_path / "run", ignore)["steps"] == 20


def judge(guard, norms):
    return [int(guard.judge(torch.tensor(1.0), torch.tensor(norm))) for norm in norms]


def make_guard(sigmas=6.0, count=128):
    """A guard that knows norms of mean 1 and standard deviation 0.1."""
    guard, rng = Guard(torch.device("cpu")), torch.Generator().manual_seed(0)
    guard.begin(sigmas)
    norms = (1 + 0.1 * torch.randn(count, generator=rng)).tolist()
    assert judge(guard, norms) == [ACCEPTED] * count
    return guard


def test_spikes_are_told_from_norms():
    guard = make_guard()
    assert judge(guard, [1.5, 2.0, math.nan, 50, 1.1, math.inf, 2.0]) == [
        *(ACCEPTED, SPIKE, NOT_FINITE, SPIKE, ACCEPTED, NOT_FINITE),
        ACCEPTED,  # spikes have entered the window as the limit, so it is a little higher
    ]
    assert guard.log_norms.isfinite().all()
    assert judge(make_guard(count=127), [50.0]) == [ACCEPTED]
    assert judge(make_guard(), [50.0]) == [SPIKE]
    assert judge(make_guard(count=1000), [0.9, 50.0]) == [ACCEPTED, SPIKE]
    assert judge(make_guard(sigmas=math.inf), [50.0]) == [ACCEPTED]
    assert judge(make_guard(), [0.0, 1.0]) == [ACCEPTED, ACCEPTED]
    loss_alone = Guard(torch.device("cpu")).judge(torch.tensor(math.inf), torch.tensor(1.0))
    assert loss_alone == NOT_FINITE


def test_a_lasting_change_of_the_norm_is_accepted_soon():
    verdicts = judge(make_guard(), [5.0] * 100)
    assert 1 < verdicts.count(SPIKE) < 30
    assert verdicts == sorted(verdicts, reverse=True)


def test_spikes_are_skipped_after_the_warm_up(train):
    """With a limit so low that ordinary norms exceed it."""
    settings = "train.steps=150 train.save_every=150 train.batch_size=2 optimizer.warmup_steps=140"
    settings += " model.num_hidden_layers=1 train.evaluate_rows=0"
    file = min((train("run", settings, "train.spike_sigmas=0.01") / "skipped").iterdir())
    assert 140 <= int(file.name[5:13]) < 148
    assert json.loads(file.read_text())["reason"] == "spike of the gradient norm"


@pytest.mark.slow
def test_a_healthy_run_skips_nothing(train):
    settings = "train.steps=1000 train.save_every=1000 train.log_every=100"
    run = train("run", settings, "optimizer.warmup_steps=50")
    assert read_metrics(run / "metrics.jsonl")[-2]["skipped"] == 0
    assert not (run / "skipped").exists()


# Alarms


def record_at(step, **changes):
    usual = {"mlm_loss": 10.4, "disc_loss": 0.3, "constant_disc_loss": 0.4, "replaced_rate": 0.1}
    usual |= {"sampled_accuracy": 0.3, "tokens_per_second": 1000.0}
    return {"step": step, **usual, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"disc_loss": 0.4}, "no better than a constant prediction"),
        ({"sampled_accuracy": 0.74}, "a smaller one, or a higher generator.temperature"),
        ({"mlm_loss": 12.4}, "mlm_loss is above 10.33, the loss of a uniform guess"),
        ({"tokens_per_second": 499.0}, "less than half of 1,000 tokens per second"),
    ],
)
def test_an_alarm_is_raised_once(toy_config, changes, says):
    alarms = Alarms(toy_config)
    assert not any(alarms.read(record_at(step)) for step in range(20))
    bad = [alarms.read(record_at(20 + step, **changes)) for step in range(2 * PATIENCE)]
    assert [len(texts) for texts in bad] == [int(n == PATIENCE - 1) for n in range(2 * PATIENCE)]
    assert says in bad[PATIENCE - 1][0]


def test_the_steps_of_the_second_of_two_stages_may_be_slower(toy_config):
    config = override(toy_config, ["train.steps=1000", "generator.warmup_steps=20"])
    alarms = Alarms(config)
    for step in range(60):
        speed = 1000.0 if step <= 20 else 400.0
        assert not alarms.read(record_at(step, tokens_per_second=speed))


def test_no_alarm_before_the_end_of_the_warm_up(toy_config):
    config = override(toy_config, ["train.steps=1000", "optimizer.warmup_steps=100"])
    alarms = Alarms(config)
    assert not any(alarms.read(record_at(step, disc_loss=0.5)) for step in range(101))


def test_a_run_raises_its_alarms(train):
    seen = []
    stays = "train.initial_weights=bert optimizer.learning_rate=1e-9"
    train("run", "train.log_every=1", stays, show=seen.append)
    alarms = [record["text"] for record in seen if record["part"] == "alarm"]
    assert any("constant prediction" in text for text in alarms)


# Full disks


def test_a_run_goes_on_after_a_checkpoint_that_found_no_room(run, train, tmp_path):
    """The one before it is whole, and the next one is written when there is room again."""
    checkpoints = tmp_path / "run/checkpoints"

    def fill_until_8(record):
        if record["step"] == 4:
            wait_for(checkpoints / "step-00000003")
            limit_files(100_000)
        if record["step"] == 8:
            limit_files(resource.RLIM_INFINITY)
            assert [path.name for path in checkpoints.iterdir()] == ["step-00000003"]

    says = "a checkpoint could not be written: .*File too large; the ones before it are whole"
    try:
        with pytest.warns(UserWarning, match=says):
            ours = train("run", "train.save_every=3 train.log_every=1", show=fill_until_8)
    finally:
        limit_files(resource.RLIM_INFINITY)
    names = [folder.name for folder in list_checkpoints(ours)]
    assert names == ["step-00000009", "step-00000012"]
    assert_same_end(run, ours)


def test_a_profile_is_written_by_one_setting(train):
    with gzip.open(train("run", "train.profile_step=3") / "trace.json.gz") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"]}
    assert {"ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"} <= names
    assert "ProfilerStep#2" not in names
    assert any(name.startswith("aten::") for name in names)


def test_a_run_tells_of_the_machine(run):
    for record in read_metrics(run / "metrics.jsonl"):
        if record["part"] == "train":
            assert 0 < record["mfu"] < 1.5
            assert 0 <= record["data_seconds"] <= record["seconds"]
            assert record["peak_memory"] > 1e8


def test_steps_run_without_the_garbage_collector(train):
    seen = []
    train("run", show=lambda record: record["part"] == "train" and seen.append(gc.isenabled()))
    assert seen
    assert not any(seen)
    assert all((gc.isenabled(), gc.get_freeze_count())), "what the tests froze stays frozen"
