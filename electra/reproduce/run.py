"""Carrying out a suite: pre-training, fine-tuning, one process for each device; resumable anywhere.

An interrupted command continues after the last checkpoint and the last finished fine-tuning.
"""

import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from electra.errors import UserError, did_you_mean, require
from electra.files import (
    LOCK,
    copy_folder,
    hold,
    make_folder,
    new_folder,
    sha256_file,
    write_hashes,
    write_json,
)
from electra.finetuning.grid import search
from electra.finetuning.loop import finetune
from electra.finetuning.loop import ignore as pass_over
from electra.inference.score import compare_pairs, load_scorer, read_pairs
from electra.pretraining.continuation import branch
from electra.pretraining.loop import pretrain, resume
from electra.processes import Interrupted, follow_parent, join_ray, usable_cores
from electra.reproduce.plan import (
    Finetunings,
    PlannedRun,
    Setup,
    Unit,
    Work,
    count_finetunings,
    digest_files,
    estimate_seconds,
    find_digest,
    find_finetunings,
    find_work,
    finetune_configs,
    keep_plan,
    known_name,
    open_plan,
)
from electra.reproduce.records import Cell, find_known, keep_scores, read_records, read_written
from electra.reproduce.report import write_results
from electra.reproduce.suite import PAIRS
from electra.tasks.glue import GLUE
from electra.tasks.registry import TASKS, read_task

SECONDS_BETWEEN_LOOKS = 1.0
LOOKS_BETWEEN_READS = 10
"""Looks at the processes between two at the records that their runs write."""
RETRIES = 2
"""New starts of a row and seed whose process on a Ray cluster was killed, at its checkpoint."""
Engine = Literal["local", "ray"]
Show = Callable[[float, float, str], None]


def find_tasks(tasks: Sequence[str], glue: Path | None, data: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each task; refuse a task without one, and a folder of no task."""
    given = {}
    for word in data:
        name, equals, path = word.partition("=")
        require(bool(equals), f"--data takes TASK=FOLDER, not {word!r}")
        near = did_you_mean(name, tasks)
        require(name in tasks, f"--data names {name}, which is not a task of the suite{near}")
        given[name] = Path(path)
    folders = {}
    for task in tasks:
        folder = given.get(task, glue if task in GLUE else None)
        need = "--glue DIR" if task in GLUE else f"--data {task}=DIR"
        if folder is None:
            near = did_you_mean(task, TASKS)
            is_known = task in (*TASKS, PAIRS)
            require(is_known, f"unknown task {task!r}{near}; one of your own needs {need}")
            raise UserError(f"{task} has no folder: give {need}, or other --tasks")
        is_there = folder.is_file() if task == PAIRS else folder.is_dir()
        what = "file of pairs" if task == PAIRS else "folder"
        require(is_there, f"{folder} is no {what}; {task} needs {need}")
        folders[task] = folder
    return folders


class Session:
    """One command's work on a suite: compute what is not finished, and write the results.

    Runs that `earlier` results of other suites have are not computed. So many `jobs` are computed
    at a time; 0: none; None: one for each GPU, or one on a CPU. With the engine ray this holds for
    each machine of the cluster. With a `share` (I, N), this command, one of N tasks of a queue,
    computes every N-th of the rows and seeds, from number I on. `plan` has all runs of the suite or
    of the share, and `left` those that are to be computed, by name.
    """

    def __init__(
        self,
        setup: Setup,
        out: Path,
        earlier: Sequence[Path] = (),
        jobs: int | None = None,
        engine: Engine = "local",
        share: tuple[int, int] | None = None,
    ):
        jobs = max(1, torch.cuda.device_count()) if jobs is None else jobs
        require(jobs >= 0, f"--jobs must be >= 0, not {jobs}")
        suite, runs = setup.suite, setup.runs
        require(
            suite.equal != "seconds" or (engine == "local" and not share),
            "rows equal in seconds are computed on one machine; leave --task and --engine out",
        )
        self.setup, self.out, self.jobs, self.engine = setup, out, jobs, engine
        self.written = read_written(out)
        self.plan = open_plan(suite, setup.shards, runs, jobs)
        row, config = self.plan.runs[0].row, self.plan.runs[0].config
        tasks = {}
        for task in (each for each in suite.tasks if each != PAIRS):
            some = next(iter(finetune_configs(suite, row, config, task).values()))
            tasks[task] = read_task(known_name(task), setup.data[task], some)
        digests = {
            task: digest_files(map(sha256_file, question.files)) for task, question in tasks.items()
        }
        if PAIRS in suite.tasks:
            read_pairs(setup.data[PAIRS])  # refused before the pre-training
            digests[PAIRS] = digest_files([sha256_file(setup.data[PAIRS])])
        for task, digest in digests.items():
            for place in find_finetunings(runs, task):
                try:
                    require(
                        find_digest(place) == digest,
                        f"{task} has other files than {place}; scores on different data cannot be "
                        "compared: choose another --runs",
                    )
                except UserError:
                    if place.exists():
                        raise  # otherwise another task of the queue has just finished it
        self.known, reasons = find_known(out, earlier, suite, self.plan, digests)
        if reasons:
            count = f"{len(reasons)} records of --earlier are passed over"
            warnings.warn(f"{count}, such as {reasons[0]}", stacklevel=2)
        self.lock, self.share = runs / LOCK, share
        if share:
            number, size = share
            self.lock = runs / f"{LOCK}-{number}-of-{size}"
            self.plan = self.plan._replace(units=self.plan.units[number::size])
        self.unfinished = self.plan.without(self.known)
        self.left = {run.name: run for run in self.unfinished.runs if not setup.is_done(run)}
        self.finetunings: Finetunings = {}
        if self.left and jobs:
            self.finetunings = count_finetunings(setup, self.unfinished, tasks)

    def estimate(self) -> Work:
        """Return the time of what is left on this machine, with all jobs, seconds."""
        left = {
            name: find_work(self.setup, run, self.finetunings) for name, run in self.left.items()
        }
        seconds = estimate_seconds(self.unfinished, left)
        return Work(*(each / max(1, self.jobs) for each in seconds))

    def write(self, command: str) -> list[Cell]:
        """Write the results of finished runs, if any, but of no share; return the comparisons."""
        if self.share:
            return []
        records = keep_scores(read_records(self.setup, self.plan, self.known), self.written)
        found = {record["run"] for record in records}
        others = [each for each in self.written if each["run"] not in found]
        if not records:
            return []  # every row has failed so far; what is written stays
        count = len(self.plan.runs)
        return write_results(self.out, self.setup.suite, records, others, count, command)

    def carry_out(self, show: Show, save: Callable[[], object]) -> None:
        """Compute what is left. An interruption stops every run at a checkpoint.

        `show` is called with the TFLOPs done, the TFLOPs of all remaining work, and the current
        runs; `save` whenever the runs of a row and seed are finished. A run that cannot be computed
        is refused when all others are finished.
        """
        make_folder(self.setup.runs)
        with hold(self.lock):
            keep_plan(self.setup.suite, self.plan, self.setup.runs)
            self._compute(show, save)

    def _compute(self, show: Show, save: Callable[[], object]) -> None:
        units = self.unfinished.units
        waiting = [unit for unit in units if not all(map(self.setup.is_done, unit))]
        working: dict[int, _Process | _RayTask] = {}
        work = {run.name: self._look(run) for run in self.unfinished.runs}
        total = sum(work.values())
        failures: list[str] = []
        looks = 0
        with ExitStack() as stack:
            ray = stack.enter_context(join_ray()) if self.engine == "ray" else None
            room = len(waiting) if ray else self.jobs  # Ray queues the others
            stack.enter_context(_ended(working))
            while waiting or working:
                while waiting and len(working) < room:
                    place, unit = min(set(range(room)) - working.keys()), waiting.pop(0)
                    if ray:
                        working[place] = _start_on_ray(ray, self.setup, unit)
                    else:
                        working[place] = _start(self.setup, unit, place, room)
                time.sleep(SECONDS_BETWEEN_LOOKS)
                units_now = [worker.unit for worker in working.values()]
                looks += 1
                if looks % LOOKS_BETWEEN_READS == 1:
                    work |= {run.name: self._look(run) for unit in units_now for run in unit}
                done = max(0.0, total - sum(work.values()))  # a resumed run may repeat steps
                # Ray lets the others wait.
                begun = (each for each in units_now if (self.setup.runs / each[0].name).exists())
                show(done / 1e12, total / 1e12, "; ".join(map(self._name_current, begun)))
                for place, worker in list(working.items()):
                    if not worker.is_working():
                        del working[place]
                        work |= {run.name: self._look(run) for run in worker.unit}
                        failures += worker.find_failures()
                        save()
        if failures:
            raise UserError(
                f"{'; '.join(failures)} ({len(failures)} of {len(units)} rows and seeds failed, "
                "the others are done)"
            )

    def _look(self, run: PlannedRun) -> float:
        """Return the true FLOPs that are left of a run, from the files that it writes."""
        return sum(find_work(self.setup, run, self.finetunings))

    def _name_current(self, unit: Unit) -> str:
        """Return what is computed now of a row and seed."""
        unfinished = (run for run in unit if not self.setup.is_done(run))
        current = next(unfinished, unit[-1])
        what = "fine-tuning" if self.setup.is_pretrained(current) else "pre-training"
        return f"{what} {current.name}"


class _Process(NamedTuple):
    """A process of this machine that computes a row and seed."""

    process: BaseProcess
    answer: Connection
    unit: Unit

    def is_working(self) -> bool:
        return self.process.is_alive()

    def stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        self.process.join()

    def find_failures(self) -> list[str]:
        """Return what ended the process early, if anything."""
        name = self.unit[0].name
        with suppress(EOFError):  # nothing was sent
            return [f"{name}: {self.answer.recv()}"]
        status = self.process.exitcode
        return [f"{name} ended with exit status {status}"] if status else []


class _RayTask(NamedTuple):
    """A row and seed that a machine of a Ray cluster computes."""

    ray: Any
    result: Any
    unit: Unit

    def is_working(self) -> bool:
        return not self.ray.wait([self.result], timeout=0)[0]

    def stop(self) -> None:
        self.ray.cancel(self.result)

    def wait(self) -> None:
        self.ray.wait([self.result])

    def find_failures(self) -> list[str]:
        """Return what ended the task early, if anything."""
        try:
            failure = self.ray.get(self.result)
        except self.ray.exceptions.RayError as error:
            is_bug = isinstance(error, self.ray.exceptions.RayTaskError)  # its traceback
            failure = str(error).splitlines()[-1 if is_bug else 0]
        return [f"{self.unit[0].name}: {failure}"] if failure else []


def _start(setup: Setup, unit: Unit, place: int, jobs: int) -> _Process:
    """Start the process that computes a row and seed; with several GPUs each has its own."""
    context = multiprocessing.get_context("spawn")
    answer, worker_end = context.Pipe(duplex=False)
    process = context.Process(target=_compute_here, args=(setup, unit, place, jobs, worker_end))
    process.start()
    worker_end.close()
    return _Process(process, answer, unit)


def _start_on_ray(ray: Any, setup: Setup, unit: Unit) -> _RayTask:
    """Start a row and seed where a GPU of the cluster, or the cores for its threads, are free."""
    train = unit[0].config.train
    machines = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    has_gpu = train.device != "cpu" and any(each.get("GPU") for each in machines)
    most = max(int(each.get("CPU", 0)) for each in machines)  # for more, a task would wait forever
    cores = min(1 if has_gpu else train.threads or most, most) or 1
    call = ray.remote(num_cpus=cores, num_gpus=int(has_gpu), max_retries=RETRIES)(_compute_on_ray)
    return _RayTask(ray, call.remote(setup, unit, Path.cwd()), unit)


def _compute_on_ray(setup: Setup, unit: Unit, folder: Path) -> str:
    with suppress(OSError):  # all names may be absolute
        os.chdir(folder)
    return _compute_unit(setup, unit)


def _compute_here(setup: Setup, unit: Unit, place: int, jobs: int, answer: Connection) -> None:
    follow_parent()
    # torch's compiler would start a process for every core, at most 32, in each of the jobs.
    threads = min(32, max(1, usable_cores() // jobs))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    if failure := _compute_unit(setup, unit):
        answer.send(failure)


def _compute_unit(setup: Setup, unit: Unit) -> str:
    """Compute the runs of a row and seed; return why they cannot be, if so."""
    try:
        for run in unit:
            compute_run(setup, run)
    except (UserError, OSError, Interrupted) as error:
        return str(error)
    return ""


def compute_run(setup: Setup, run: PlannedRun) -> None:
    """Do the remaining pre-training of a run, then its remaining fine-tunings."""
    folder = setup.runs / run.name
    if run.twin and not folder.exists():
        with new_folder(folder) as copy:
            ignored = shutil.ignore_patterns("finetune-*", LOCK)
            copy_folder(setup.runs / run.twin, copy, ignore=ignored, dirs_exist_ok=True)
    if run.trunk and not folder.exists():
        branch(setup.runs / run.trunk, folder, run.config)
    if not setup.is_pretrained(run):
        if folder.exists():
            resume(folder, pass_over, setup.shards)
        else:
            pretrain(setup.shards, folder, run.config, pass_over)
    for task in setup.unfinished_tasks(run):
        configs = finetune_configs(setup.suite, run.row, run.config, task)
        where = folder, known_name(task), setup.data[task], setup.finetuning(run, task)
        if task == PAIRS:
            score_pairs(folder, setup.data[task], setup.finetuning(run, task))
            continue
        with setup.telling(run, task) as tell:
            if setup.suite.grid:
                search(*where, configs, seeds=1, progress=tell)
            else:
                finetune(*where, *configs.values(), seeds=1, progress=tell)


def score_pairs(run: Path, data: Path, out: Path) -> None:
    """Write the folder of a run's minimal pairs: the share whose good sentence is preferred."""
    pairs, scorer = read_pairs(data), load_scorer(run)
    found = compare_pairs(pairs, scorer.score([*pairs.good, *pairs.bad]))
    about = {"task": PAIRS, "start": str(run)}
    with new_folder(out) as folder:
        write_json(folder / "config.json", {**about, "files": {str(data): sha256_file(data)}})
        scores = {"metric": "accuracy", "median": found["accuracy"], "num_degenerate": 0}
        write_json(folder / "results.json", {**about, **scores, **scorer.origin, **found})
        write_hashes(folder)


@contextmanager
def _ended(working: Mapping[int, _Process | _RayTask]) -> Iterator[None]:
    """Stop all workers at the end; each first writes a checkpoint."""
    try:
        yield
    finally:
        for worker in working.values():
            worker.stop()
        for worker in working.values():
            worker.wait()
