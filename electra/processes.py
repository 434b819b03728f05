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
    """A signal stopped a pre-training after a step; the checkpoint of this step is written."""

    def __init__(self, run: Path, step: int):
        super().__init__(f"stopped at step {step:,}; {run} is safe")
        self.run = run
        self.step = step


class StopRequest:
    """Whether a signal has asked the process to stop."""

    requested: bool = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Yield a StopRequest that the first SIGINT or SIGTERM sets; a second signal acts at once."""
    stop = StopRequest()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def request(number: int, frame: FrameType | None) -> None:
        stop.requested = True
        for each in signals:
            signal.signal(each, before[each])

    try:
        for number in signals:
            signal.signal(number, request)
        yield stop
    finally:
        for number in signals:
            signal.signal(number, before[number])
