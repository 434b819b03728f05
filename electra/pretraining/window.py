"""The steps between two records of metrics.jsonl: measures, tokens, time and skipped steps."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from electra.method.measures import Measures
from electra.method.objective import Objective
from electra.pretraining.guard import ACCEPTED, NOT_FINITE, Skipped
from electra.pretraining.step import Outcome
from electra.training.distributed import sum_over_ranks
from electra.training.machine import Machine


class Window:
    """Collects the outcomes of steps on the device, without waiting for the device.

    Args:
        model: The objective.
        machine: Device of the outcomes, and the processes whose measures are summed.
        last: The last training record of the run; None at its start.

    Attributes:
        num_bad: Steps in a row, up to the last one, without a finite loss and gradient.
        most_bad: Largest such number in the steps of the last record.
    """

    def __init__(self, model: Objective, machine: Machine, last: dict[str, Any] | None):
        self.model, self.machine = model, machine
        self.clock = Clock(last)
        self.num_skipped = last.get("skipped", 0) if last else 0
        self.num_bad = self.most_bad = 0
        self.num_real = torch.zeros((), dtype=torch.int64, device=machine.device)
        self.begin_stage()

    def begin_stage(self) -> None:
        """Begin an empty window with the loss of the model's stage."""
        self.measures = Measures(self.model.loss_weights)
        self.num_real.zero_()
        self.grad_norms: list[torch.Tensor] = []
        self.verdicts: list[torch.Tensor] = []

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of the next step."""
        for output in outcome.outputs:
            self.measures.add(output)
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
            **self.measures.record(sum_over_ranks if self.machine.num_ranks > 1 else None),
            "grad_norm": accepted.mean().item() if len(accepted) else math.nan,
            "skipped": self.num_skipped,
        }
        self.num_real.zero_()
        self.grad_norms, self.verdicts = [], []
        return record, skipped


class Clock:
    """Training time over all sessions of a run, seconds, without evaluations and checkpoints."""

    def __init__(self, last: dict[str, Any] | None):
        self.seconds, self.tokens, self.step = 0.0, 0, 0
        if last:
            self.seconds, self.tokens, self.step = last["seconds"], last["tokens"], last["step"]
        self.since = time.perf_counter()

    def record(self, step: int, steps: int, new_tokens: int) -> dict[str, Any]:
        """Return progress, speed and remaining time for a record of metrics.jsonl.

        Args:
            step: Steps done.
            steps: Steps of the run.
            new_tokens: Real tokens since the last call.
        """
        now = time.perf_counter()
        seconds, self.since = now - self.since, now
        seconds_per_step = seconds / (step - self.step)
        self.seconds += seconds
        self.tokens += new_tokens
        self.step = step
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": new_tokens / seconds,
            "seconds_left": seconds_per_step * (steps - step),
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context from the training time."""
        began = time.perf_counter()
        yield
        self.since += time.perf_counter() - began
