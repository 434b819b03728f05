"""Processes: usable cores, workers that end with their parent, and stop requests by signal."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def usable_cores() -> int:
    """Return the number of cores available to this process, or all cores if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def follow_parent() -> None:
    """Make this worker process end with its parent, and ignore Ctrl-C.

    Without this, the workers of a killed parent would wait for work forever. The parent handles
    Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole process group
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Interrupted(Exception):
    """A pre-training stopped before its last step; the checkpoint of its last step is written.

    Args:
        run: The run folder.
        step: Steps done.
        in_time: Whether a time limit stopped the run, and not a signal.
    """

    def __init__(self, run: Path, step: int, *, in_time: bool = False):
        super().__init__(f"stopped at step {step:,}; {run} is safe")
        self.run = run
        self.step = step
        self.in_time = in_time


class Requests:
    """What signals have asked the process to do."""

    stops: bool = False
    """SIGINT or SIGTERM: save and stop."""
    saves: bool = False
    """SIGUSR1: save and go on."""


@contextmanager
def heed_signals() -> Iterator[Requests]:
    """Yield Requests, which signals set; a second SIGINT or SIGTERM acts at once."""
    requests = Requests()
    stops = (signal.SIGINT, signal.SIGTERM)
    signals = (*stops, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))  # not on Windows
    before = {number: signal.getsignal(number) for number in signals}

    def request(number: int, frame: FrameType | None) -> None:
        if number not in stops:
            requests.saves = True
            return
        requests.stops = True
        for each in stops:
            signal.signal(each, before[each])

    try:
        for number in signals:
            signal.signal(number, request)
        yield requests
    finally:
        for number in signals:
            signal.signal(number, before[number])
