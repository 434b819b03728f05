"""The steps between two records of metrics.jsonl: measures, tokens, time and skipped steps."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from electra.pretraining.guard import ACCEPTED, NOT_FINITE, Skipped
from electra.pretraining.step import Outcome, Step
from electra.training.distributed import gather_over_ranks, sum_over_ranks


class Window:
    """Collects the outcomes of steps on the device, without waiting for the device.

    Args:
        step: The step, which sums its measures over the window.
        last: The last training record of the run; None at its start.

    Attributes:
        num_bad: Steps in a row, up to the last one, without a finite loss and gradient.
        most_bad: Largest such number in the steps of the last record.
    """

    def __init__(self, step: Step, last: dict[str, Any] | None):
        self.step = step
        self.clock = Clock(last, step.machine.wait)
        self.num_skipped = last.get("skipped", 0) if last else 0
        self.num_bad = self.most_bad = 0
        self.num_real = torch.zeros((), dtype=torch.int64, device=step.machine.device)
        self.grad_norms: list[torch.Tensor] = []
        self.verdicts: list[torch.Tensor] = []

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of the next step."""
        self.num_real += outcome.num_real
        self.grad_norms.append(outcome.grad_norm.clone())
        self.verdicts.append(outcome.verdict.clone())

    def record(self, done: int, steps: int) -> tuple[dict[str, Any], list[Skipped]]:
        """Return the means over the window and its skipped steps, and begin the next window.

        All processes of a step have to call this together; they get the same means.

        Args:
            done: Steps done.
            steps: Steps of the run.
        """
        norms = torch.stack(self.grad_norms).cpu()
        verdicts = torch.stack(self.verdicts).cpu()
        skipped = [
            Skipped(done - len(verdicts) + place, int(verdicts[place]), norms[place].item())
            for place in verdicts.nonzero().flatten().tolist()
        ]
        self.num_skipped += len(skipped)
        self.most_bad = 0
        for verdict in verdicts.tolist():
            self.num_bad = self.num_bad + 1 if verdict == NOT_FINITE else 0
            self.most_bad = max(self.most_bad, self.num_bad)
        accepted = norms[verdicts == ACCEPTED]
        record = {
            **self.clock.record(done, steps, int(self.num_real)),
            **self._compare_ranks(),
            **self.step.measures.record(sum_over_ranks),
            "grad_norm": accepted.mean().item() if len(accepted) else math.nan,
            "skipped": self.num_skipped,
        }
        self.num_real.zero_()
        self.grad_norms, self.verdicts = [], []
        self.clock.waited = 0.0
        return record, skipped

    def _compare_ranks(self) -> dict[str, Any]:
        """Return the time waiting for data and the peak memory: the most of any process.

        Of several processes, the least and the rank that has the most are returned, too.
        """
        own = torch.tensor([self.clock.waited, self.step.machine.peak_memory], dtype=torch.float64)
        of_ranks = gather_over_ranks(own)
        record: dict[str, Any] = {}
        for name, of_rank in zip(("data_seconds", "peak_memory"), of_ranks.T, strict=True):
            record[name] = of_rank.max().item()
            if len(of_rank) > 1:
                record |= {
                    f"{name}_least": of_rank.min().item(),
                    f"{name}_rank": int(of_rank.argmax()),
                }
        return record


class Clock:
    """Training time over all sessions of a run, seconds, without evaluations and checkpoints.

    Speed and remaining time leave out the steps that also compiled or captured.

    Args:
        last: The last train record of metrics.jsonl; None: the run begins.
        wait: Waits until the device has finished all queued work.
        now: Returns the current time, seconds.
    """

    def __init__(
        self,
        last: dict[str, Any] | None,
        wait: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ):
        self.seconds, self.tokens, self.step = 0.0, 0, 0
        if last:
            self.seconds, self.tokens, self.step = last["seconds"], last["tokens"], last["step"]
        self.wait, self.now = wait, now
        self.since = now()
        self.waited = 0.0
        self.prepared = _Prepared()

    def count_wait(self, began: float) -> None:
        """Count the time since `began` as time waiting for data."""
        self.waited += self.now() - began

    def leave_out(self, began: float, new_tokens: int) -> None:
        """Leave the step since `began` out of the speed; it has `new_tokens` real tokens."""
        self.wait()
        seconds, tokens, steps = self.prepared
        seconds += self.now() - began
        self.prepared = _Prepared(seconds, tokens + new_tokens, steps + 1)

    def record(self, step: int, steps: int, new_tokens: int) -> dict[str, Any]:
        """Return progress, speed and remaining time for a record of metrics.jsonl.

        Args:
            step: Steps done.
            steps: Steps of the run.
            new_tokens: Real tokens since the last call.
        """
        now = self.now()
        seconds, self.since = now - self.since, now
        new_steps = step - self.step
        prepared, self.prepared = self.prepared, _Prepared()
        self.seconds += seconds
        self.tokens += new_tokens
        self.step = step
        preparing = {"preparing_seconds": prepared.seconds} if prepared.steps else {}
        if prepared.steps < new_steps:
            seconds -= prepared.seconds
            new_tokens -= prepared.tokens
            new_steps -= prepared.steps
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            **preparing,
            "tokens_per_second": new_tokens / seconds,
            "seconds_left": seconds / new_steps * (steps - step),
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context from the training time; queued steps count."""
        self.wait()
        began = self.now()
        yield
        self.since += self.now() - began


class _Prepared(NamedTuple):
    """The steps of a log window that also compiled or captured."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
