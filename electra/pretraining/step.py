"""One optimizer step: random numbers, micro-batches, gradients, clipping, update.

This form runs on a CPU. It is also the definition of the accelerated step in acceleration.py.

Each process of a step has its rows alone. Uniform numbers are drawn for all rows, and counts are
summed over the processes. Each micro-batch gives its share of the loss, and the gradients add up,
also over the processes. Gradient accumulation and data parallelism therefore do not change the
step, except for rounding and dropout.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from electra.method.masking import Counts, Draw
from electra.method.measures import Measures
from electra.method.objective import Objective, Output
from electra.model.batch import Batch
from electra.pretraining.guard import ACCEPTED, Guard
from electra.training.config import PretrainConfig
from electra.training.distributed import is_sharded, sum_over_ranks, whole
from electra.training.machine import Machine
from electra.training.optimizer import (
    build_optimizer,
    find_norm,
    set_learning_rate,
    step_seed,
    update_unless,
)

Ranking = dict[str, list[str]]
"""Names of attention kernels, fastest first, for "masked" and "unmasked" rows."""


class Outcome(NamedTuple):
    """Results of a step, on the device. The next captured step overwrites these tensors."""

    outputs: list[Output]
    """One output per micro-batch of this process, without gradients."""
    num_real: Tensor
    """Number of tokens of all rows of the step that are not padding."""
    grad_norm: Tensor
    """Global norm of the gradient before clipping."""
    verdict: Tensor
    """Whether the step was skipped, and why: a verdict of guard.py."""


class Step:
    """The optimizer step of an objective, which is on the machine's device.

    `captured` says whether steps will be captured as CUDA graphs. `forward`, `choose`, `judge` and
    `measures.tally` are functions of the model, the masking, the guard and the method, or their
    compiled forms.
    """

    def __init__(
        self, model: Objective, config: PretrainConfig, machine: Machine, captured: bool = False
    ):
        self.model = model
        self.config = config
        self.machine = machine
        self.optimizer = build_optimizer(
            model, config.optimizer, mode=config.method.mode, captured=captured
        )
        self.forward: Callable[..., Output] = model
        self.choose: Callable[..., tuple[Draw, Counts]] = model.masking.choose
        self.measures = Measures(model.loss_weights)
        self.weights: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context of each micro-batch; may replace the model's weights by working copies."""
        self.guard = Guard(machine.device)
        self.first_guard = Guard(machine.device) if config.train.updates == "apart" else None
        """Judges the generator's update of train.updates=apart."""
        self.judge: Callable[..., Tensor] = Guard.judge
        self.rng = torch.Generator(machine.device)
        self.number = 0
        self.captured, self.compiled = captured, False
        self.is_torn = False
        """Whether a step is half done, or other processes continue: it cannot be computed again."""
        self.prepares = False
        """Whether the last step also compiled or captured, and so took longer than others."""

    @property
    def _guards(self) -> list[Guard]:
        return [self.guard] if self.first_guard is None else [self.guard, self.first_guard]

    @property
    def memory(self) -> dict[str, Tensor]:
        """The guards' memory, for checkpoints."""
        first = self.first_guard.state if self.first_guard else {}
        return self.guard.state | {f"first_{name}": tensor for name, tensor in first.items()}

    @property
    def micro_rows(self) -> int:
        """Rows that this process computes at a time, at most."""
        return -(-self.config.train.micro_batch_size // self.machine.num_ranks)

    def __call__(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        """Run one optimizer step on this process's rows, in host memory, and return its outputs.

        All random numbers are functions of train.seed and the number of the step, from 0.
        """
        self.begin(number, learning_rate)
        return self.compute(batch.to(self.machine.device))

    def begin(self, number: int, learning_rate: float) -> None:
        """Set seeds, learning rate and limit, which a captured step cannot set itself."""
        self.number = number
        first = self.model.stages[self.model.stage_at(number)]
        is_warm = number - first >= self.config.optimizer.warmup_steps
        for guard in self._guards:
            guard.begin(self.config.train.spike_sigmas if is_warm else math.inf)
        self.rng.manual_seed(step_seed(self.config.train.seed, "corruption", number))
        set_learning_rate(self.optimizer, learning_rate)
        self.model.begin_step(number)
        # On CUDA this serves the whole step, because a captured one cannot be seeded in the middle.
        self.seed_dropout(self.machine.rank * self.config.train.accumulation)

    def compute(self, batch: Batch) -> Outcome:
        """Compute the step after `begin`; the batch is on the device."""
        part = self.machine.rank, self.machine.num_ranks
        draw, counts = self.choose(batch, self.model.masking.draw_uniform(batch, self.rng, part))
        if self.machine.num_ranks > 1:
            counts.num_chosen.mul_(draw.chosen_BS.any())  # the minimum of 1 applies to the sum only
            sum_over_ranks(counts)
            counts.num_chosen.clamp_(min=1)
        if self.first_guard is None or self.model.is_resting:
            outcome = self._update(batch, draw, counts)
        else:
            first = self._update(batch, draw, counts, "first")
            self.is_torn = True
            second = self._update(batch, draw, counts, first)
            outcome = second._replace(grad_norm=torch.hypot(first.grad_norm, second.grad_norm))
        self.is_torn = False
        return outcome

    def _update(
        self,
        batch: Batch,
        draw: Draw,
        counts: Counts,
        half: Outcome | Literal["first"] | None = None,
    ) -> Outcome:
        """Update the parameters by the whole loss, or by its first or second half."""
        model = self.model
        firsts = half.outputs if isinstance(half, Outcome) else None
        outputs: list[Output] = []
        for number, rows in self.micro_batches(len(batch.input_ids_BL)):
            if self.machine.device.type != "cuda":
                self.seed_dropout(number, "dropout" if firsts is None else "second dropout")
            given = [] if half is None else [firsts[len(outputs)] if firsts else half]
            with self.weights():
                outputs.append(self.descend(batch.rows(rows), draw.rows(rows), counts, *given))
        for parameter in model.resting:
            parameter.grad = None
        loss = torch.stack([output.loss for output in outputs]).sum()
        gradients = self.find_gradients()
        # A divided model has summed its gradients in the backward pass.
        sum_over_ranks([loss] if is_sharded(model) else [loss, *gradients])
        self.is_torn |= self.machine.num_ranks > 1
        grad_norm = whole(find_norm(gradients))
        verdict = self.judge(self.first_guard if half == "first" else self.guard, loss, grad_norm)
        if isinstance(half, Outcome):
            verdict = torch.where(half.verdict == ACCEPTED, verdict, half.verdict)
        is_skipped = verdict != ACCEPTED
        # Before the update: a step is computed again if the compiler fails on its measures.
        for output in outputs if half != "first" else ():
            self.measures.add(output, is_skipped)
        divisor = (grad_norm / self.config.optimizer.max_grad_norm).clamp(min=1)
        update_unless(is_skipped, self.optimizer, divisor)
        self.clear_gradients()
        return Outcome(outputs, counts.num_real, grad_norm, verdict)

    def descend(self, *arguments: Any) -> Output:
        """Return the output of `forward`, and add the gradients of its loss to the parameters'."""
        output = self.forward(*arguments)
        output.loss.backward()
        return output._replace(loss=output.loss.detach())

    def find_gradients(self) -> list[Tensor]:
        """Return the gradients of which the optimizer's next update consists."""
        return [each.grad for each in self.model.parameters() if each.grad is not None]

    def clear_gradients(self) -> None:
        """Remove the gradients, after an update or one that was left out."""
        self.optimizer.zero_grad()

    def begin_stage(self, stage: int) -> None:
        """Begin a stage of the objective: another loss is minimised and measured from now on."""
        self.model.begin_stage(stage)
        self.measures = Measures(self.model.loss_weights)
        for guard in self._guards:
            guard.clear()

    def close(self) -> None:
        """Free what the step holds beside the model; no other step follows."""

    def describe(self) -> dict[str, Any]:
        """Return the form of the step for manifests: layers, compiled, captured, gradient_sum."""
        backend = "nccl" if self.machine.device.type == "cuda" else "gloo"
        return {
            "layers": type(self.model.kept.layers[0]).__name__,
            "compiled": self.compiled,
            "captured": self.captured,
            "gradient_sum": backend if self.machine.num_ranks > 1 else None,
        }

    def micro_batches(self, num_rows: int) -> Iterator[tuple[int, slice]]:
        """Yield each micro-batch of this process: its number in the step, and its rows."""
        size, first = self.micro_rows, self.machine.rank * self.config.train.accumulation
        for number, start in enumerate(range(0, num_rows, size), first):
            yield number, slice(start, start + size)

    def seed_dropout(self, micro_batch: int, stream: str = "dropout") -> None:
        """Seed dropout by the micro-batch's number in the run, whatever the number of processes."""
        num_micro_batches = self.config.train.accumulation * self.machine.num_ranks
        number = self.number * num_micro_batches + micro_batch
        self.machine.seed_dropout(step_seed(self.config.train.seed, stream, number))
