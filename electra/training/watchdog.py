"""A watchdog of processes that compute together: it names the one that hangs, and where.

In a collective all processes wait for the last one, and none can report which it is. So a thread
of each process writes its step and its line of code into torchrun's store every few seconds.
Process 0 reads these reports. If no step ends for PATIENCE_SECONDS, it reports where all are. If a
process stops writing, because its machine is gone or out of reach, process 0 ends after
SILENT_SECONDS (gloo and NCCL may wait for hours), and torchrun restarts on the remaining machines.
"""

import math
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from electra.training.machine import Machine

LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 300.0
"""Time without the end of a step after which process 0 reports where all are."""
SILENT_SECONDS = 600.0
"""Time without a report from a process after which process 0 ends."""
ENDED = b"ended"
"""Last report of a process that has left its steps, and may wait long for the others."""
PACKAGE = Path(__file__).parent.parent


class Beat(NamedTuple):
    """The report of a process on itself."""

    step: int = -1
    waits: bool = False
    """Whether it is in a collective."""
    place: str = "before its first step"
    """File, line and function of the package."""
    host: str = ""


@contextmanager
def watched(machine: Machine) -> Iterator[Callable[[int], None]]:
    """Yield a function that each process calls with the number of each step that it begins.

    A warning names the process that hangs. If one stops reporting, process 0 ends with status 1.
    """
    watch, ended = _Watch(machine), threading.Event()
    thread = threading.Thread(target=watch.run, args=(ended,), daemon=True)
    thread.start()
    try:
        yield watch.begin
    finally:
        ended.set()
        thread.join(LOOK_SECONDS)


def find_place(ident: int) -> tuple[bool, str]:
    """Return whether a thread is in a collective, and its innermost line in the package."""
    frame, waits = sys._current_frames().get(ident), False
    while frame:
        code = frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE) and path.stem != "distributed":
            name = path.relative_to(PACKAGE.parent).as_posix()
            return waits, f"{name}:{frame.f_lineno}, {code.co_name}"
        waits |= "torch/distributed/" in path.as_posix()
        frame = frame.f_back
    return waits, "no line of the package"


def describe(beats: Sequence[Beat]) -> str:
    """Return where the processes are: those first that do not wait for others."""
    ranks: dict[Beat, list[int]] = {}
    for rank, beat in enumerate(beats):
        ranks.setdefault(beat, []).append(rank)
    told = []
    for beat, found in sorted(ranks.items(), key=lambda item: (item[0].waits, len(item[1]))):
        who = f"process{'es' if len(found) > 1 else ''} {', '.join(map(str, found))}"
        what = f"at step {beat.step + 1:,} in {beat.place}" if beat.step >= 0 else beat.place
        told.append(f"{who} on {beat.host}: {'waits ' if beat.waits else ''}{what}")
    return "; ".join(told)


def _parse(word: str) -> Beat:
    _, step, waits, place, host = word.split("\n")
    return Beat(int(step), waits == "True", place, host)


class _Watch:
    """The thread of a process: it writes reports, and in process 0 it also reads them."""

    def __init__(self, machine: Machine):
        self.machine, self.step = machine, -1
        self.main, now = threading.get_ident(), time.monotonic()
        self.heard = [(b"", now)] * machine.num_ranks
        """Last words of each process, and when they were new here."""
        self.told = -1, now
        """The step at the last look, and when it was new."""

    def begin(self, step: int) -> None:
        """Note that a step begins."""
        self.step = step

    def run(self, ended: threading.Event) -> None:
        """Write and read until the end; without a store the collectives fail by themselves."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        keys = [f"electra beat {rank}" for rank in range(self.machine.num_ranks)]
        try:
            store = dist.TCPStore(address, port, timeout=timedelta(seconds=SILENT_SECONDS))
            while not ended.is_set():
                beat = Beat(self.step, *find_place(self.main), platform.node())
                store.set(keys[self.machine.rank], "\n".join(map(str, (time.time(), *beat))))
                if self.machine.rank == 0:
                    self._judge([store.get(key) if store.check([key]) else b"" for key in keys])
                ended.wait(LOOK_SECONDS)
            store.set(keys[self.machine.rank], ENDED.decode())
        except (dist.DistError, RuntimeError):
            return

    def _judge(self, words: Sequence[bytes]) -> None:
        """Report where all are if no step has ended for long; end if one is silent."""
        now = time.monotonic()
        for rank, word in enumerate(words):
            if word != self.heard[rank][0]:
                self.heard[rank] = word, now
        beats = [_parse(word.decode()) if b"\n" in word else Beat() for word, _ in self.heard]
        if self.step != self.told[0]:
            self.told = self.step, now
        elif now - self.told[1] > PATIENCE_SECONDS:
            self.told = self.step, math.inf
            told = f"no step has ended for {PATIENCE_SECONDS:.0f} s: {describe(beats)}"
            warnings.warn(told, stacklevel=2)
        silent = [
            rank
            for rank, (word, at) in enumerate(self.heard)
            if now - at > SILENT_SECONDS and word != ENDED
        ]
        if silent:
            told = f"no word of process {', '.join(map(str, silent))} for {SILENT_SECONDS:.0f} s"
            last = describe([beats[rank] for rank in silent])
            warnings.warn(f"{told}: this one ends; the last words: {last}", stacklevel=2)
            sys.stderr.flush()
            os._exit(1)
