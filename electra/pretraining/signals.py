"""Signals by which a run is asked to save, or to save and stop."""

import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from electra.processes import is_launched, stop_signals

SAME_REQUEST_SECONDS = 2.0
"""Ctrl-C and the signals of a queue reach a parent and its processes at once, and the parent passes
them on. A second signal within this time is the first one again."""


class Requests:
    """The requests of signals to the process."""

    stops: bool = False
    """One of `stop_signals`: save and stop."""
    saves: bool = False
    """SIGUSR1: save and continue."""


@contextmanager
def heed_signals() -> Iterator[Requests]:
    """Yield Requests, which signals set; a second signal to stop acts at once."""
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():  # which alone takes signals
        yield requests
        return
    stops = stop_signals()
    signals = (*stops, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))  # not on Windows
    before = {number: signal.getsignal(number) for number in signals}
    first = math.inf

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if number not in stops:
            requests.saves = True
            return
        first = min(first, time.monotonic())
        requests.stops = True
        has_parent = is_launched() or multiprocessing.parent_process() is not None
        if has_parent and time.monotonic() < first + SAME_REQUEST_SECONDS:
            return
        for each in stops:
            signal.signal(each, before[each])
        if has_parent:
            signal.raise_signal(number)

    try:
        for number in signals:
            signal.signal(number, request)
        yield requests
    finally:
        for number in signals:
            signal.signal(number, before[number])
