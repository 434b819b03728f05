"""The processes of a pool: how many there may be, and that they end with their parent."""

import multiprocessing
import os
import signal
import threading


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
