"""Ways to do the tasks of a preparation: processes of this machine, or a Ray cluster.

A task gives the same files wherever and however often it is done, so both ways simply do those that
are missing, and begin a task again if its process is killed.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from electra.errors import UserError, import_extra
from electra.processes import follow_parent, usable_cores
from electra.shards.pieces import Task, prepare_task
from electra.text.ranges import close_last
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import LineEncoder, WordEncoder, make_encoder

Record = dict[str, Any]
Tell = Callable[[Task, Record], None]
"""Called with each finished task and its record."""

MAX_ATTEMPTS = 3
"""Times that a task is begun whose process is killed."""
RAY_CPUS = 0.9
"""Cores that Ray reserves for a task. A little less than one, so that the program that waits for
the tasks, or another one, finds room on a full cluster."""
RAY_TASKS = 16
"""Most tasks in one call of Ray: ranges of one compressed file are best read in turn."""


def run_here(
    tasks: Sequence[Task], tokenizer: Tokenizer, folder: Path, workers: int, tell: Tell
) -> None:
    """Do the tasks with processes of this machine.

    Args:
        tasks: The tasks.
        tokenizer: The tokenizer.
        folder: The folder of all tasks.
        workers: Number of processes; 0: one per available core. A single one is this process.
        tell: Called with each task that is done.

    Raises:
        UserError: A file is damaged, or a process was killed again and again.
    """
    workers = min(workers or usable_cores(), len(tasks))
    if workers <= 1:
        encoder = make_encoder(tokenizer)
        try:
            for task in tasks:
                tell(task, prepare_task(task, encoder, folder))
        finally:
            close_last()
        return
    queue = _Queue(tasks)
    pools = [_start_pool(tokenizer, folder) for _ in range(workers)]
    attempts = dict.fromkeys(range(len(tasks)), 0)
    pending: dict[Future[Record], tuple[int, Task]] = {}

    def begin(worker: int, task: Task | None) -> None:
        if task is not None:
            pending[pools[worker].submit(_do_in_worker, task)] = worker, task

    try:
        for worker in range(workers):
            begin(worker, queue.take(worker))
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                worker, task = pending.pop(future)
                try:
                    record = future.result()
                except BrokenProcessPool:
                    attempts[task.number] = attempts.get(task.number, 0) + 1
                    if attempts[task.number] == MAX_ATTEMPTS:
                        raise UserError(
                            f"the process of {task} was killed {MAX_ATTEMPTS} times, possibly for "
                            f"lack of memory; try fewer workers than {workers}; finished tasks are "
                            "kept"
                        ) from None
                    pools[worker].shutdown()
                    pools[worker] = _start_pool(tokenizer, folder)
                    begin(worker, task)
                else:
                    begin(worker, queue.take(worker))
                    tell(task, record)
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _start_pool(tokenizer: Tokenizer, folder: Path) -> ProcessPoolExecutor:
    """Return a pool of one process. The death of a process breaks its pool and no other."""
    return ProcessPoolExecutor(
        1,
        # A forked process can hang if its parent had threads, as torch and tokenizers have.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer, folder),
    )


class _Queue:
    """Tasks for workers. The ranges of a compressed file go to one worker, as long as it can be.

    A worker that has nothing left takes the second half of what the busiest one has before it.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.free: deque[deque[Task]] = deque()
        self.taken: dict[int, deque[Task]] = {}
        previous = None
        for task in tasks:
            if task.compressed is None or task.compressed != previous:
                self.free.append(deque())
            self.free[-1].append(task)
            previous = task.compressed

    def take(self, worker: int) -> Task | None:
        """Return the next task of a worker, or None."""
        mine = self.taken.get(worker)
        if not mine and self.free:
            mine = self.taken[worker] = self.free.popleft()
        if not mine and self.taken:
            longest = max(self.taken.values(), key=len)
            half = [longest.pop() for _ in range(-(-len(longest) // 2))]
            mine = self.taken[worker] = deque(reversed(half))
        return mine.popleft() if mine else None


_worker: tuple[WordEncoder | LineEncoder, Path]


def _start_worker(tokenizer: Tokenizer, folder: Path) -> None:
    global _worker
    follow_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = make_encoder(tokenizer), folder


def _do_in_worker(task: Task) -> Record:
    encoder, folder = _worker
    return prepare_task(task, encoder, folder)


def run_on_ray(
    tasks: Sequence[Task], tokenizer: Tokenizer, folder: Path, workers: int, tell: Tell
) -> None:
    """Do the tasks on a Ray cluster: that of RAY_ADDRESS, else one that runs here, else a new one.

    All machines must see the text and the folder under the same names.

    Args:
        tasks: The tasks.
        tokenizer: The tokenizer.
        folder: The folder of all tasks.
        workers: Most processes at the same time; 0: as many as the cluster has room for.
        tell: Called with each task that is done.

    Raises:
        UserError: Ray is not installed, a file is damaged, or processes were killed again and
            again.
    """
    ray = import_extra("ray", "ray", "--engine ray")
    # Without this, Ray warns that a later version will treat tasks without a GPU differently.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except Exception as error:
            raise UserError(f"Ray did not start: {str(error).splitlines()[0]}") from error
    try:
        call = ray.remote(num_cpus=RAY_CPUS, max_retries=MAX_ATTEMPTS - 1)(_do_on_ray)
        shared = ray.put(tokenizer)
        units = deque(_units(tasks))
        room = workers or max(1, int(ray.cluster_resources().get("CPU", 1) / RAY_CPUS))
        pending: dict[Any, list[Task]] = {}
        while units or pending:
            # A few more than there is room for, so that no process waits for the next one.
            while units and len(pending) < (workers or 2 * room):
                unit = units.popleft()
                pending[call.remote(unit, shared, str(folder.absolute()))] = unit
            done, _ = ray.wait(list(pending), num_returns=1, timeout=10)
            for reference in done:
                unit = pending.pop(reference)
                try:
                    records = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause
                    raise (cause if isinstance(cause, UserError | OSError) else error) from None
                except ray.exceptions.RayError as error:
                    raise UserError(
                        f"the process of {unit[0]} was killed {MAX_ATTEMPTS} times: "
                        f"{str(error).splitlines()[0]}; finished tasks are kept"
                    ) from None
                for task, record in zip(unit, records, strict=True):
                    tell(task, record)
    finally:
        if is_ours:
            ray.shutdown()


def _units(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Yield single tasks, and ranges of one compressed file together."""
    unit: list[Task] = []
    for task in tasks:
        follows = unit and task.compressed and task.compressed == unit[-1].compressed
        if unit and not (follows and len(unit) < RAY_TASKS):
            yield unit
            unit = []
        unit.append(task)
    if unit:
        yield unit


_encoders: dict[str, WordEncoder | LineEncoder] = {}


def _do_on_ray(unit: list[Task], tokenizer: Tokenizer, folder: str) -> list[Record]:
    encoder = _encoders.get(tokenizer.digest)
    if encoder is None:
        encoder = _encoders[tokenizer.digest] = make_encoder(tokenizer)
    return [prepare_task(task, encoder, Path(folder)) for task in unit]
