"""What keeps steps even and shows where their time goes: the garbage collector, and a profile."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile, schedule

from electra.config import TrainConfig

PROFILED_STEPS = 3
TRACE = "trace.json.gz"


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the context, where it would pause steps.

    The steps make no cycles, so that reference counts free what they leave. Objects that live
    already are never searched again.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def profiled(run: Path, train: TrainConfig, first_step: int) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step: `train.profile_step` steps on, a profile is recorded.

    The file TRACE in the run folder has the operations on the CPU and on the device in the format
    of Chrome's traces. One step before the first recorded one warms the profiler up.

    Args:
        run: The run folder.
        train: The settings.
        first_step: Steps done before this session. A session that begins later records nothing.
    """
    before = train.profile_step - first_step - 1
    if not train.profile_step or before < 0:
        yield lambda: None
        return
    plan = schedule(skip_first=before, wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
    path = str(run / TRACE)
    with profile(
        schedule=plan,
        on_trace_ready=lambda found: found.export_chrome_trace(path),
        acc_events=True,  # there is one cycle; torch 2.11 would warn of further ones
    ) as found:
        yield found.step
