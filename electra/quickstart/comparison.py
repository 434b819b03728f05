"""Fine-tunings from pre-trained weights and from scratch, several at a time.

An encoder of the quickstart's size computes faster in several processes of one thread than in one
process of several threads.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, NamedTuple

from electra.config import FinetuneConfig
from electra.files import read_object
from electra.finetuning.grid import combine, search
from electra.processes import follow_parent
from electra.reports.runs import Finetuning, read_finetuning
from electra.terminal.live import Progress

REFRESH_SECONDS = 0.2
_records: SimpleQueue[tuple[int, float]]
"""In a worker: where it tells which comparison has done how many runs."""


class Comparison(NamedTuple):
    """One question, asked from one start."""

    run: Path
    """The pre-training."""
    task: str
    data: Path
    out: Path
    """The fine-tuning folder to write."""
    config: FinetuneConfig
    grid: str
    """Learning rates to choose from, as in --grid."""
    seeds: int
    from_scratch: bool

    @property
    def combinations(self) -> dict[str, FinetuneConfig]:
        """Settings of each learning rate, by name."""
        return combine(self.config, (), [self.grid])


def compare(comparisons: Sequence[Comparison], num_workers: int) -> list[Finetuning]:
    """Run all comparisons, and return the best fine-tuning of each.

    Args:
        comparisons: What to fine-tune. Each computes with the threads of its settings.
        num_workers: Comparisons that run at a time.
    """
    total = sum(each.seeds * len(each.combinations) for each in comparisons)
    done = [0.0] * len(comparisons)
    with Progress("fine-tuning", unit="runs") as progress:

        def show(number: int, runs: float) -> None:
            done[number] = runs
            progress.update(sum(done), total)

        if num_workers == 1:
            for number, each in enumerate(comparisons):
                _search(number, each, show)
        else:
            # A forked process can hang if its parent had threads, as torch has.
            spawn = multiprocessing.get_context("spawn")
            records: SimpleQueue[tuple[int, float]] = spawn.SimpleQueue()
            with ProcessPoolExecutor(num_workers, spawn, _begin, (records,)) as pool:
                left = {pool.submit(_search_in_worker, *each) for each in enumerate(comparisons)}
                try:
                    while left:
                        finished, left = wait(left, REFRESH_SECONDS, FIRST_EXCEPTION)
                        while not records.empty():
                            show(*records.get())
                        for future in finished:
                            future.result()
                except BaseException:  # the pool would wait for the comparisons to finish
                    for worker in multiprocessing.active_children():
                        worker.terminate()
                    raise
    return [_read_best(each.out) for each in comparisons]


def _search(number: int, comparison: Comparison, show: Callable[[int, float], None]) -> None:
    def tell(record: dict[str, Any]) -> None:
        if record["part"] == "train":
            show(number, record["run"] + record["step"] / record["steps"])

    search(
        *(comparison.run, comparison.task, comparison.data, comparison.out),
        comparison.combinations,
        seeds=comparison.seeds,
        from_scratch=comparison.from_scratch,
        progress=tell,
    )


def _begin(records: SimpleQueue[tuple[int, float]]) -> None:
    global _records
    follow_parent()
    _records = records


def _search_in_worker(number: int, comparison: Comparison) -> None:
    _search(number, comparison, lambda *record: _records.put(record))


def _read_best(out: Path) -> Finetuning:
    results = read_object(out / "results.json")
    return read_finetuning(out / results["best"] / "results.json")
