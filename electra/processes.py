"""Processes: how many there may be, that those of a pool end with their parent, and stopping."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def usable_cores() -> int:
    """Return the number of cores this process may run on, where the system tells, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def follow_parent() -> None:
    """Make a process of a pool end with its parent, and leave Ctrl-C to that.

    Otherwise a parent that is killed leaves the processes waiting for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the whole process group
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class StopRequest:
    """Whether somebody asked the process to stop."""

    requested: bool = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request the loop sees; a second one acts at once."""
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
