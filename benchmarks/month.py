"""A month of failures: schedules drawn from public logs, and a real run that is killed by one.

    python -m benchmarks.month --work FOLDER --out results/month.json

Simulated: runs of 30 days of steps on 8, 64 and 512 GPUs. Failures come at the rates of LOGS; some
machines fail more often than others, and most restarts fail. What a failure costs is the work since
the last whole checkpoint, the failed restarts, and a start. Seconds of a start and of a save are
measured here, with a run of the preset --large (a step is small, its checkpoints have their size),
as seconds of one core.
Goodput is the share of the time in which steps were computed that were kept. Beside it: what
Young's and Daly's formulas promise for the same mean times (Young 1974; Daly 2006, with the
seconds until a checkpoint is whole counted as seconds of a restart).

Killed: a small run on one core, whose --steps take the place of the 30 days. SIGKILL comes at the
drawn times of 512 GPUs, in proportion, and inside the starts that the schedule lets fail; then the
same command follows. Its files at the end are compared with those of an undisturbed run,
and its lost steps with the simulator's for the same failures. What --out has of the preset
is kept.
"""

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.reliability import make_config, make_shards
from electra.assignments import override, to_dict
from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints, step_of
from electra.checkpoints.manifest import find_commit
from electra.errors import UserError
from electra.files import read_object, sha256_file, write_json, write_text
from electra.presets import PRESETS
from electra.reports.rendering import Table, to_markdown
from electra.training.config import PretrainConfig
from electra.training.machine import Machine

DAY = 24 * 60 * 60
MONTH = 30 * DAY
GPUS, OF_A_MACHINE = (8, 64, 512), 8
LOGS = {"Llama 3 405B": 419 / (16_384 * 54), "OPT-175B": 24 / 7.5 / 992}
"""Failures per GPU and day: of the paper's 54 days (419 unexpected ones on 16,384 H100), and of a
stop every 7.5 hours on 992 A100 (glennklockwood.com)."""
LEMONS = 3 / 63
"""Share of machines that cause half of the failures (arXiv 2605.09370: three of 63)."""
RETRY_PROB, RETRY_SECONDS = 1 / 3, 11 * 60
"""Share of restarts that succeed, and the time between two (arXiv 2605.09370)."""
MONTHS = 1000
"""Schedules that are drawn for each row of the table."""
CHILD = """
import json, sys, time
from pathlib import Path
from electra.training.config import PretrainConfig
from electra.pretraining.loop import pretrain
from electra.assignments import from_dict
shards, run, config = sys.argv[1:]
def show(record):
    if record["part"] == "train":
        print(record["step"], time.time(), time.thread_time(), flush=True)
pretrain(Path(shards), Path(run), from_dict(PretrainConfig, json.loads(config)), show)
"""


class Failure(NamedTuple):
    """The end of a session, and what follows."""

    uptime: float
    """Seconds since the first step of the session."""
    failed: int
    """Restarts that fail before the one that succeeds."""


class Times(NamedTuple):
    """Seconds that the schedule needs."""

    start: float
    """From the command to the first step behind a checkpoint."""
    block: float
    """By which a save delays the steps."""
    write: float
    """From the step to the whole checkpoint."""
    retry: float = RETRY_SECONDS
    """Of a restart that fails."""

    @property
    def restart(self) -> float:
        """Mean seconds from a failure to the first step."""
        return self.start + (1 / RETRY_PROB - 1) * self.retry


class Outcome(NamedTuple):
    """The outcome of a schedule."""

    wall: float
    """Seconds."""
    lost: float
    """Seconds of steps that were computed again."""
    failures: int


def draw(rng: np.random.Generator, gpus: int, per_gpu_day: float) -> Iterator[Failure]:
    """Yield the failures of a month; its machines, and the lemons among them, are drawn first."""
    machines = gpus // OF_A_MACHINE
    lemons = rng.binomial(machines, LEMONS)
    alike = (lemons / LEMONS + (machines - lemons) / (1 - LEMONS)) / 2
    rate = per_gpu_day * OF_A_MACHINE * alike / DAY
    while True:
        yield Failure(rng.exponential(1 / rate), int(rng.geometric(RETRY_PROB)) - 1)


def simulate(work: float, interval: float, times: Times, failures: Iterable[Failure]) -> Outcome:
    """Return the outcome of `work` seconds of steps with failures, and saves at each interval."""
    cycle = interval + times.block
    done = lost = 0.0
    wall = times.start
    for number, (uptime, failed) in enumerate(failures):
        left = work - done
        needed = left + times.block * (math.ceil(left / interval) - 1)
        if uptime >= needed:
            return Outcome(wall + needed, lost, number)
        saved = max(0, math.floor((uptime - times.write + times.block) / cycle)) * interval
        cycles = math.floor(uptime / cycle)
        computed = cycles * interval + min(interval, uptime - cycles * cycle)
        done, lost = done + saved, lost + computed - saved
        wall += uptime + failed * times.retry + times.start
    raise AssertionError("the schedule ended before the run")


def find_interval(block: float, between: float) -> float:
    """Return Daly's seconds between two saves, for the mean seconds between two failures."""
    part = block / (2 * between)
    if part >= 1:
        return between
    return math.sqrt(2 * block * between) * (1 + math.sqrt(part) / 3 + part / 9) - block


def promise(times: Times, between: float, interval: float) -> tuple[float, float]:
    """Return the goodput by Young's formula at his interval, and by Daly's at this one."""
    restart = times.restart + times.write - times.block
    young = 1 - math.sqrt(2 * times.block / between) - restart / between
    grown = math.exp(restart / between) * math.expm1((interval + times.block) / between)
    return young, interval / between / grown


def foresee(
    gpus: int, log: str, times: Times, seed: int, interval: float | None = None
) -> dict[str, Any]:
    """Return the outcome of many months on some GPUs; by default, saves at Daly's interval."""
    between = DAY / (gpus * LOGS[log])
    interval = interval or find_interval(times.block, between)
    rng = np.random.default_rng([seed, gpus, list(LOGS).index(log)])
    found = [simulate(MONTH, interval, times, draw(rng, gpus, LOGS[log])) for _ in range(MONTHS)]
    goodput = [MONTH / each.wall for each in found]
    young, daly = promise(times, between, interval)
    return {
        "gpus": gpus,
        "log": log,
        "failures": statistics.mean(each.failures for each in found),
        "interval_seconds": interval,
        "goodput": statistics.mean(goodput),
        "goodput_5": float(np.quantile(goodput, 0.05)),
        "lost_hours": statistics.mean(each.lost for each in found) / 3600,
        "waiting_hours": statistics.mean(each.wall - MONTH - each.lost for each in found) / 3600,
        "young": young,
        "daly": daly,
    }


def launch(shards: Path, run: Path, config: PretrainConfig) -> subprocess.Popen[str]:
    """Start or continue a run, which prints each step and its time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    words = [sys.executable, "-c", CHILD, str(shards), str(run), json.dumps(to_dict(config))]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True)


def parse(printed: str) -> list[tuple[int, float, float]]:
    """Return of whole lines: steps, times, and seconds of the core since the start."""
    lines = [line.split() for line in printed.splitlines(keepends=True) if line.endswith("\n")]
    return [(int(step), float(at), float(spent)) for step, at, spent in lines]


def finish(process: subprocess.Popen[str]) -> list[tuple[int, float, float]]:
    """Return what a run printed until its end; raise its output if it failed."""
    printed, words = process.communicate()
    if process.returncode:
        raise RuntimeError(words)
    return parse(printed)


def measure(
    run: Path, shards: Path, config: PretrainConfig
) -> tuple[dict[str, float], dict[str, str]]:
    """Return seconds of a step, of a start behind a checkpoint and of a save, and its bytes.

    They are core seconds, which other work on the machine does not change, except the time until
    a checkpoint is whole, which `write_steps` gives in steps. Also the sha256 of the undisturbed
    run's weights and moments at its end.
    """
    every = config.train.save_every
    config = override(config, [f"train.keep_checkpoints={config.train.steps}"])
    found = finish(launch(shards, run, config))
    spent = {step: each for step, _, each in found}
    gaps = {step: spent[step + 1] - spent[step] for step in spent if step + 1 in spent}
    step = statistics.median(gap for step, gap in gaps.items() if step % every)
    saves = statistics.median(gap for step, gap in gaps.items() if step % every == 0)
    folders = {step_of(folder): folder for folder in list_checkpoints(run)}
    # A folder's status changes last when it gets its name, which it has when all is on the disk.
    at = {step: each for step, each, _ in found}
    pace = statistics.median(at[step + 1] - at[step] for step in gaps)
    write = statistics.median(folders[n].stat().st_ctime - at[n] for n in folders)
    end = hash_end(run)
    longer = [f"train.steps={config.train.steps + every}"]
    _, _, start = finish(launch(shards, run, override(config, longer)))[0]
    size = sum(path.stat().st_size for path in folders[max(folders)].rglob("*"))
    shutil.rmtree(run)
    block = max(saves - step, 1e-3)
    seconds = {"step": step, "start": start - step, "block": block}
    seconds["write_steps"] = write / pace
    return {**seconds, "write": max(write, block), "checkpoint_bytes": size}, end


def endure(
    shards: Path, run: Path, config: PretrainConfig, failures: Iterable[Failure], seed: int
) -> dict[str, Any]:
    """Kill a run after `uptime` steps of each session, until it has ended.

    SIGKILL comes at any moment of the next step, and at any moment of the starts that fail.
    """
    rng = np.random.default_rng(seed)
    kills = in_starts = in_saves = lost = last = 0
    for uptime, failed in failures:
        began = time.monotonic()
        process = launch(shards, run, config)
        assert process.stdout
        steps = (parse(line)[0][0] for line in iter(process.stdout.readline, ""))
        first = next(steps, 0)
        start = time.monotonic() - began
        lost += last - (first - 1) if last and first else 0
        step, until = first, first + int(uptime)
        began = time.monotonic()
        while step and step < until:
            step = next(steps, 0)
        if not step:
            finish(process)
            break
        time.sleep(rng.uniform() * (time.monotonic() - began) / max(1, step - first))
        process.kill()
        last = max([step, *steps])
        process.wait()
        kills += 1
        in_saves += any((run / "checkpoints").glob("*.incomplete"))
        for _ in range(failed):
            process = launch(shards, run, config)
            time.sleep(start * rng.uniform(0.0, 0.6))
            process.kill()
            # A start that was faster than the last one has computed steps.
            last = max([last, *(step for step, *_ in parse(process.communicate()[0]))])
            in_starts += 1
    return {
        "kills": kills + in_starts,
        "kills_in_a_start": in_starts,
        "kills_in_a_save": in_saves,
        "failures": kills,
        "lost_steps": lost,
    }


def hash_end(run: Path) -> dict[str, str]:
    """Return the sha256 of weights and moments of the last checkpoint."""
    folder = find_checkpoint(run)[1]
    return {name: sha256_file(folder / f"{name}.safetensors") for name in ("model", "optimizer")}


def kill(work: Path, shards: Path, config: PretrainConfig, log: str, seed: int) -> dict[str, Any]:
    """Return a killed run's record, beside the undisturbed one and the simulator's result."""
    steps, every = config.train.steps, config.train.save_every
    times, end = measure(work / "whole", shards, config)
    schedule = itertools.islice(draw(np.random.default_rng(seed), 512, LOGS[log]), 10 * steps)
    failures = [Failure(uptime * steps / MONTH, failed) for uptime, failed in schedule]
    found = endure(shards, work / "run", config, failures, seed)
    told = simulate(steps, every, Times(0, 0, times["write_steps"], 0), failures)
    return {
        "log": log,
        "steps": steps,
        "save_every": every,
        "measured": times,
        **found,
        "simulated_failures": told.failures,
        "simulated_lost_steps": told.lost,
        "sha256": hash_end(work / "run"),
        "same_bits": hash_end(work / "run") == end,
    }


def tabulate(record: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    large, killed = record["large"], record["killed"]
    columns = ["GPUs", "failures of", "failures", "save every", "goodput (worst of 20)"]
    columns += ["Young", "Daly", "a save an hour", "no failed restart"]
    rows = [
        [
            str(row["gpus"]), row["log"], f"{row['failures']:.1f}",
            f"{row['interval_seconds'] / 60:.1f} min",
            f"{row['goodput']:.4f} ({row['goodput_5']:.4f})", f"{row['young']:.4f}",
            f"{row['daly']:.4f}", f"{hourly['goodput']:.4f}", f"{sure['goodput']:.4f}",
        ]
        for row, hourly, sure in zip(
            *(record[name] for name in ("simulated", "hourly", "sure_restarts")), strict=True
        )
    ]  # fmt: skip
    told = (
        f"{record['device']}, commit {record['commit']}, seed {record['seed']}. Simulated: "
        f"{record['months']:,} months of 30 days of steps for each row; one of three restarts "
        f"succeeds, 11 minutes apart. Measured with `{large['preset']}`: a start takes "
        f"{large['start']:.1f} s of a core, a save delays the steps by {large['block']:.2f} s and "
        f"is whole after {large['write']:.1f} s ({large['checkpoint_bytes'] / 1e9:.2f} GB)."
    )
    real = (
        f"Killed: {killed['steps']} steps of a small run, each of which stands for "
        f"{MONTH / 3600 / killed['steps']:.1f} hours of 512 GPUs with the failures of "
        f"{killed['log']}. {killed['kills']} times SIGKILL, of them {killed['kills_in_a_start']} "
        f"in a start and {killed['kills_in_a_save']} in a save; a save every "
        f"{killed['save_every']} steps, {killed['lost_steps']} steps lost (simulated: "
        f"{killed['simulated_lost_steps']:.0f}). Same bits as the undisturbed run: "
        f"{killed['same_bits']}."
    )
    return f"{told}\n\n{to_markdown(Table(columns, rows))}\n\n{real}\n"


def main() -> None:
    """Measure, kill, simulate, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--large", choices=PRESETS, default="base")
    parser.add_argument("--steps", type=int, default=300, help="of the run that is killed")
    parser.add_argument("--log", choices=LOGS, default="Llama 3 405B", help="that it is killed by")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    work, seed = arguments.work, arguments.seed
    for name in ("measured", "whole", "run"):
        shutil.rmtree(work / name, ignore_errors=True)
    shards = make_shards(work)
    words = "train.log_every=1 train.save_every=2 train.steps=6 train.batch_size=1 train.threads=1"
    words += " examples.sequence_length=32 train.evaluate_rows=0 train.check_memory=false"
    words += " optimizer.warmup_steps=2 train.device=cpu train.precision=float32"
    config = override(PRESETS[arguments.large], words.split())
    record = read_object(arguments.out) if arguments.out.exists() else {}
    large = record.get("large", {})
    if large.get("preset") != arguments.large:
        facts = {"preset": arguments.large, "commit": find_commit()}
        large = facts | measure(work / "measured", shards, config)[0]
    small = [f"train.steps={arguments.steps}", "train.log_every=1", "train.save_every=5"]
    killed = kill(
        work, shards, make_config(*small, "train.evaluate_every=100"), arguments.log, seed
    )
    times = Times(large["start"], large["block"], large["write"])
    cases = [(gpus, log) for log in LOGS for gpus in GPUS]
    record = {
        "device": Machine().name,
        "commit": find_commit(),
        "torch": torch.__version__,
        "seed": seed,
        "months": MONTHS,
        "large": large,
        "simulated": [foresee(*case, times, seed) for case in cases],
        "hourly": [foresee(*case, times, seed, 3600.0) for case in cases],
        "sure_restarts": [foresee(*case, times._replace(retry=0.0), seed) for case in cases],
        "killed": killed,
    }
    write_json(arguments.out, record)
    write_text(arguments.out.with_suffix(".md"), tabulate(record))
    print(tabulate(record))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
