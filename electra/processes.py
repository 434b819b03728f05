"""Processes: usable cores, place under torchrun, workers that end with their parent, signals."""

import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, import_extra

LOOK_SECONDS = 1.0
"""Time between two looks for the launcher."""
GRACE_SECONDS = 30.0
"""Time in which processes whose launcher is gone may save; torchrun leaves as much."""

Tell = Callable[[int, int], None]
"""Takes how much of a work is done, and how much there is in all."""


def silent(done: int, total: int) -> None:
    """Tell nothing."""


OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores(membership: Path = OWN_GROUPS, mount: Path = GROUPS) -> int:
    """Return the number of cores available to this process, or all cores if that is unknown.

    A container on many cores may have the time of a few (docker --cpus, limits of Kubernetes).
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    for group, is_version_1 in control_groups("cpu", membership, mount):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_version_1 else ("cpu.max",)
        files = [group / name for name in names]
        if all(file.is_file() for file in files):
            time, period = " ".join(file.read_text() for file in files).split()
            if time not in ("max", "-1"):
                cores = min(cores, int(time) // int(period))
    return max(1, cores)


def control_groups(controller: str, membership: Path, mount: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the control groups that limit this process, and whether they are of version 1.

    Inside a container the paths in /proc/PID/cgroup may be those of the host; the mounted group is
    then its group.
    """
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = mount / controller if controllers else mount
            own = top / path.lstrip("/")
            for group in (own, *own.parents):
                if group.is_relative_to(top):
                    yield group, bool(controllers)


def read_processor() -> tuple[str, set[str]]:
    """Return the processor's name, and its flags where the system lists them."""
    facts: dict[str, str] = {}
    if (path := Path("/proc/cpuinfo")).is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    return name, {*facts.get("flags", "").split()}


class Place(NamedTuple):
    """The place of this process among those that torchrun started."""

    rank: int = 0
    """Number of the process, from 0."""
    num_ranks: int = 1
    local_rank: int = 0
    """Number of the process on its machine."""
    num_local: int = 1
    """Processes on this machine."""


def find_place() -> Place:
    """Return the place that torchrun has given this process; without torchrun it is alone."""
    if not is_launched():
        return Place()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Place(*(int(os.environ[name]) for name in names))


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask for a stop: Ctrl-C, a queue's stop, a closed terminal.

    Under nohup a closed terminal is ignored.
    """
    found, hang_up = [signal.SIGINT, signal.SIGTERM], getattr(signal, "SIGHUP", None)
    if hang_up and signal.getsignal(hang_up) != signal.SIG_IGN:  # Windows has none
        found.append(hang_up)
    return found


def follow_launcher() -> None:
    """Make this process save and stop when torchrun, which started it, is gone.

    A torchrun that was killed ends none of its processes, which would keep the lock of the run.
    """
    if not is_launched():
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def follow_parent() -> None:
    """Make this worker process end with its parent, which handles Ctrl-C and a closed terminal.

    Without this, the workers of a killed parent would wait for work forever.
    """
    import multiprocessing  # not at the top: `electra --help` needs none of it

    for number in stop_signals():
        if number != signal.SIGTERM:  # the terminal signals the whole process group
            signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def join_ray() -> Iterator[Any]:
    """Yield Ray, with the cluster of RAY_ADDRESS, else one that runs here, else a new one."""
    ray = import_extra("ray", "ray", "--engine ray")
    # Without this, Ray warns that a later version will treat tasks without a GPU differently.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    is_ours, before = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    if is_ours:
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except Exception as error:
            raise UserError(f"Ray did not start: {str(error).splitlines()[0]}") from error
        if threading.current_thread() is threading.main_thread():  # Ray would end without a word
            signal.signal(signal.SIGTERM, before)
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


class Interrupted(Exception):
    """A pre-training stopped before its end; the checkpoint of the step reached is written."""

    def __init__(self, run: Path, step: int, *, in_time: bool = False):
        super().__init__(f"stopped at step {step:,}; {run} is safe")
        self.run = run
        self.step = step
        self.in_time = in_time
