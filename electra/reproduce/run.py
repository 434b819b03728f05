"""Carrying out a plan: pre-training, fine-tuning, one process for each device; resumable anywhere.

A command that was interrupted goes on after the last checkpoint and the last finished fine-tuning.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

from electra.errors import UserError
from electra.finetuning.loop import finetune
from electra.finetuning.loop import ignore as pass_over
from electra.pretraining.continuation import branch
from electra.pretraining.loop import pretrain, resume
from electra.processes import Interrupted, follow_parent
from electra.reproduce.plan import Plan, PlannedRun, Unit, finetune_config
from electra.reproduce.suite import Suite
from electra.reproduce.work import Finetunings, find_work, finetuning_folder, is_done, is_pretrained

SECONDS_BETWEEN_LOOKS = 1.0
Show = Callable[[float, float, str], None]


def count_devices() -> int:
    """Return how many runs this machine computes at a time: one for each GPU, or one."""
    return max(1, torch.cuda.device_count())


def carry_out(
    suite: Suite,
    plan: Plan,
    shards: Path,
    data: Mapping[str, Path],
    runs: Path,
    finetunings: Finetunings,
    jobs: int,
    show: Show,
    save: Callable[[], object],
) -> None:
    """Compute what is not yet finished of a plan.

    Args:
        suite: The suite.
        plan: Its plan.
        shards: The shards' folder.
        data: The folder of each task.
        runs: The folder of all runs; exists.
        finetunings: What the fine-tunings cost.
        jobs: Processes that compute at a time. With several GPUs each process has its own.
        show: Called with the TFLOPs done and in total of what was left, and what is computed now.
        save: Called whenever the runs of a row and seed are finished.

    Raises:
        UserError: A run cannot be computed. All others are finished.
        KeyboardInterrupt: The user stopped the suite; every run is stopped at a checkpoint.
    """
    waiting = [unit for unit in plan.units if not all(is_done(suite, run, runs) for run in unit)]
    places = list(range(jobs))
    working: dict[int, _Worker] = {}
    watch = _Watch(suite, plan, runs, finetunings)
    failures: list[str] = []
    with _ended(working):
        while waiting or working:
            while waiting and len(working) < jobs:
                place = next(each for each in places if each not in working)
                working[place] = _start(suite, waiting.pop(0), shards, data, runs, place)
            time.sleep(SECONDS_BETWEEN_LOOKS)
            show(*watch.measure([worker.unit for worker in working.values()]))
            for place, worker in list(working.items()):
                if not worker.process.is_alive():
                    del working[place]
                    failures += worker.find_failures()
                    save()
    if failures:
        raise UserError(
            f"{failures[0]} ({len(failures)} of {len(plan.units)} rows and seeds failed, the "
            "others are done)"
        )


class _Worker(NamedTuple):
    process: BaseProcess
    answer: Connection
    unit: Unit

    def find_failures(self) -> list[str]:
        """Return what ended the process early, if anything."""
        name = self.unit[0].name
        with suppress(EOFError):  # nothing was sent
            return [f"{name}: {self.answer.recv()}"]
        status = self.process.exitcode
        return [f"{name} ended with exit status {status}"] if status else []


def _start(
    suite: Suite, unit: Unit, shards: Path, data: Mapping[str, Path], runs: Path, place: int
) -> _Worker:
    context = multiprocessing.get_context("spawn")
    answer, worker_end = context.Pipe(duplex=False)
    arguments = (suite, unit, shards, data, runs, place, worker_end)
    process = context.Process(target=_compute_unit, args=arguments)
    process.start()
    worker_end.close()
    return _Worker(process, answer, unit)


def _compute_unit(
    suite: Suite,
    unit: Unit,
    shards: Path,
    data: Mapping[str, Path],
    runs: Path,
    place: int,
    answer: Connection,
) -> None:
    """Compute the runs of a row and seed, in a process of its own."""
    follow_parent()
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    try:
        for run in unit:
            compute_run(suite, run, shards, data, runs)
    except (UserError, OSError) as error:
        answer.send(str(error))
    except Interrupted:
        pass


def compute_run(
    suite: Suite, run: PlannedRun, shards: Path, data: Mapping[str, Path], runs: Path
) -> None:
    """Pre-train a run as far as it is not done, then fine-tune it on the tasks not done."""
    folder = runs / run.name
    if run.trunk and not folder.exists():
        branch(runs / run.trunk, folder, run.config)
    if not is_pretrained(run, runs):
        if folder.exists():
            resume(folder, pass_over, shards)
        else:
            pretrain(shards, folder, run.config, pass_over)
    for task in suite.tasks:
        out = finetuning_folder(runs, run, task)
        if not out.exists():
            config = finetune_config(suite, run.config, task)
            finetune(folder, task, data[task], out, config, seeds=1, progress=pass_over)


@contextmanager
def _ended(working: Mapping[int, _Worker]) -> Iterator[None]:
    """End the processes that are still working, each after it has written a checkpoint."""
    try:
        yield
    finally:
        for worker in working.values():
            worker.process.terminate()
        for worker in working.values():
            worker.process.join()


class _Watch:
    """How much is done of what was left of a plan, from the files that the runs write."""

    def __init__(self, suite: Suite, plan: Plan, runs: Path, finetunings: Finetunings):
        self.suite = suite
        self.runs = runs
        self.finetunings = finetunings
        self.left = {run.name: self._look(run) for run in plan.runs}
        self.total = sum(self.left.values())

    def measure(self, working: list[Unit]) -> tuple[float, float, str]:
        """Return the TFLOPs done and in total, and the runs that are computed now."""
        notes = []
        for unit in working:
            self.left |= {run.name: self._look(run) for run in unit}
            unfinished = (run for run in unit if not is_done(self.suite, run, self.runs))
            current = next(unfinished, unit[-1])
            note = "fine-tuning" if is_pretrained(current, self.runs) else "pre-training"
            notes.append(f"{note} {current.name}")
        done = max(0.0, self.total - sum(self.left.values()))  # a resumed run may repeat steps
        return done / 1e12, self.total / 1e12, "; ".join(notes)

    def _look(self, run: PlannedRun) -> float:
        return sum(find_work(self.suite, run, self.runs, self.finetunings))
