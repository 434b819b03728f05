"""One optimizer step: draws, micro-batches, gradients, clipping, update.

It is what a CPU does, and the definition of what acceleration.py makes of it for a GPU.

Positions, draws and counts are those of all rows of a step, so that a step computed in several
micro-batches, or by several processes, is the same step: each computes its rows' share of the
losses, and gradients add up.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.config import PretrainConfig
from electra.method.objective import Objective, Output
from electra.model.batch import Batch
from electra.training.machine import Machine
from electra.training.optimizer import build_optimizer, set_learning_rate
from electra.training.seeds import step_seed


class Outcome(NamedTuple):
    """What a step leaves behind, on its device; overwritten by the next captured step."""

    outputs: list[Output]
    """One of each micro-batch; without gradients."""
    num_real: Tensor
    """Tokens that are not padding."""
    grad_norm: Tensor
    """Before clipping."""


class Step:
    """The optimizer step of a model.

    Args:
        model: The objective, on the machine's device.
        config: The settings of the run.
        machine: Device, and which share of the rows is computed here.
        captured: Whether steps will be captured as CUDA graphs.

    Attributes:
        optimizer: Updates the model's parameters.
        compiled: Whether the objective runs through torch.compile.
        forward: Computes the objective: the model, or a compiled form of it.
        weights: Entered for each micro-batch; puts other weights in place of the model's.
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
        self.weights: Callable[[], AbstractContextManager[None]] = nullcontext
        self.rng = torch.Generator(machine.device)
        self.number = 0
        self.captured, self.compiled = captured, False

    def __call__(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        """Do the step of this number, counted from 0.

        Args:
            number: All randomness is a function of it and of train.seed.
            batch: All rows of the step, in host memory.
            learning_rate: Of this step.
        """
        self.begin(number, learning_rate)
        return self.compute(batch.to(self.machine.device))

    def begin(self, number: int, learning_rate: float) -> None:
        """Set what differs from step to step but is no tensor: randomness and learning rate."""
        self.number = number
        self.rng.manual_seed(step_seed(self.config.train.seed, "corruption", number))
        set_learning_rate(self.optimizer, learning_rate)
        self._seed_dropout(0)

    def compute(self, batch: Batch) -> Outcome:
        """Do the step that has begun, with rows that are on the device."""
        model = self.model
        draw = model.masking.draw(batch, self.rng)
        counts = model.masking.count(batch, draw)
        outputs = []
        for micro_batch, rows in self._micro_batches(len(batch.input_ids_BL)):
            if self.machine.device.type != "cuda":
                self._seed_dropout(micro_batch)
            with self.weights():
                output = self.forward(batch.rows(rows), draw.rows(rows), counts)
                output.loss.backward()
            outputs.append(output._replace(loss=output.loss.detach()))
        grad_norm = nn.utils.clip_grad_norm_(
            model.parameters(), self.config.optimizer.max_grad_norm, foreach=True
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Outcome(outputs, counts.num_real, grad_norm)

    def forget(self) -> None:
        """Begin anew: from here on the model computes something else."""

    def describe(self) -> dict[str, Any]:
        """Return the form that steps have, for manifests."""
        return {
            "layers": type(self.model.kept.layers[0]).__name__,
            "compiled": self.compiled,
            "captured": self.captured,
        }

    def _micro_batches(self, num_rows: int) -> Iterator[tuple[int, slice]]:
        """Yield number in the step and rows of each micro-batch that this process computes."""
        num_micro_batches, rank = self.config.train.accumulation, self.machine.rank
        size = -(-self.config.train.micro_batch_size // self.machine.num_ranks)
        for number in range(rank * num_micro_batches, (rank + 1) * num_micro_batches):
            if number * size < num_rows:
                yield number, slice(number * size, (number + 1) * size)

    def _seed_dropout(self, micro_batch: int) -> None:
        """Seed dropout by the number of the micro-batch, counted from the first of the run.

        A function of (step, rank, micro-batch) that is the same for two micro-batches of one
        process and for one of each of two. On a CUDA device the seed of the first serves the whole
        step, since what is captured cannot be seeded in the middle.
        """
        num_micro_batches = self.config.train.accumulation * self.machine.num_ranks
        number = self.number * num_micro_batches + micro_batch
        torch.manual_seed(step_seed(self.config.train.seed, "dropout", number))
