"""The optimizer step in the fastest form that its device has; step.py is its definition.

A CPU does it operation by operation. On a CUDA device the objective is compiled and the whole step,
optimizer included, is captured once as a CUDA graph and replayed: at hidden size 256 a step is some
two thousand small operations, each of which would have to be launched. Nothing in a step waits for
the device.
"""

import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import sdpa_kernel

from electra.config import PretrainConfig, UserError
from electra.method.objective import Objective
from electra.model.batch import Batch, find_real
from electra.pretraining.attention import rank_attention
from electra.pretraining.step import Outcome, Step
from electra.pretraining.working_copies import WorkingCopies
from electra.training.machine import Machine

WARM_UP_STEPS = 3
"""Steps done before one is captured; libraries choose and allocate in them what they keep."""


def prepare_step(model: Objective, config: PretrainConfig, machine: Machine) -> Step:
    """Return the step in the fastest form that the machine has; arguments as those of `Step`."""
    is_plain = machine.device.type != "cuda" and config.train.compile != "yes"
    return (Step if is_plain else AcceleratedStep)(model, config, machine)


class AcceleratedStep(Step):
    """The step compiled, and on a CUDA device with copies of the weights and captured as a graph.

    Args:
        model: The objective, on the machine's device.
        config: The settings of the run.
        machine: As in `Step`.

    Attributes:
        compiler_failure: What became of the compiler, and at which step; None while it works.
    """

    def __init__(self, model: Objective, config: PretrainConfig, machine: Machine):
        on_cuda = machine.device.type == "cuda"
        # Layers that recompute set the random numbers back, which a capture does not allow:
        # uncompiled by asking for their state, compiled by generators that it does not know.
        can_capture = on_cuda and not config.train.recompute_activations
        super().__init__(model, config, machine, config.train.cuda_graph and can_capture)
        self.compiled = _compiles(config, machine.device)
        self.compiler_failure: str | None = None
        if self.compiled:
            self.forward = torch.compile(model, fullgraph=True, dynamic=False)
        self._copy_weights()
        self.attention = {}
        if on_cuda:
            for masked in (False, True):
                self.attention[masked] = rank_attention(config, machine, masked=masked)
        self.captures: dict[tuple[Any, ...], _Capture] = {}
        if self.captured:  # all on one stream, to which gradients stay bound, and in one memory
            self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        """Do the step of this number; arguments as those of `Step`.

        Where the compiler fails on the model and was not asked for by name, it warns of it and goes
        on without.
        """
        try:
            return self._do(number, batch, learning_rate)
        except RuntimeError as error:
            is_compilers = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
            if not is_compilers or self.config.train.compile == "yes":
                raise
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"torch.compile fails, going on without it: {reason}", stacklevel=2)
        self.compiled, self.forward = False, self.model
        self.compiler_failure = f"at step {number}: {reason}"
        self.optimizer.zero_grad()
        self.forget()
        return self._do(number, batch, learning_rate)

    def _do(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        if self.machine.device.type != "cuda":
            return super().__call__(number, batch, learning_rate)
        if self.config.examples.short_prob and batch.attention_mask_BL is None:
            # Of 128 rows some is nearly always short. The rare step without a mask would be another
            # form, to be compiled and captured in the middle of a run, with memory of its own.
            batch = batch._replace(attention_mask_BL=find_real(batch))
        is_masked = batch.attention_mask_BL is not None or batch.document_ids_BL is not None
        with sdpa_kernel(self.attention[is_masked], set_priority=True):
            if not self.captured:
                return super().__call__(number, batch, learning_rate)
            shape = tuple(None if tensor is None else tensor.shape for tensor in batch)
            if shape not in self.captures:
                self.captures[shape] = _Capture(self, batch)
            self.begin(number, learning_rate)
            return self.captures[shape](batch)

    def forget(self) -> None:
        """Begin anew: from here on the model computes something else."""
        self.captures.clear()
        self._copy_weights()
        if self.captured:  # memory that no capture holds any more cannot be shared
            self.pool = torch.cuda.graph_pool_handle()

    def _copy_weights(self) -> None:
        dtype = self.machine.dtype
        is_needed = self.machine.device.type != "cpu" and dtype != torch.float32
        copies = WorkingCopies(self.model, dtype) if is_needed else None
        self.weights = copies.at_work if copies else nullcontext

    def describe(self) -> dict[str, Any]:
        """Return the form that steps have, for manifests."""
        return {
            **super().describe(),
            "compiler_failure": self.compiler_failure,
            "attention": {
                "masked" if masked else "unmasked": kernels[0].name
                for masked, kernels in self.attention.items()
            },
        }


class _Capture:
    """Steps with batches of one shape, as a CUDA graph over buffers that stay where they are."""

    def __init__(self, step: AcceleratedStep, batch: Batch):
        self.step = step
        self.batch = batch.to(step.machine.device)
        self.graph = torch.cuda.CUDAGraph()
        self.num_done = 0
        self.outcome: Outcome | None = None

    def __call__(self, batch: Batch) -> Outcome:
        for buffer, tensor in zip(self.batch, batch, strict=True):
            if buffer is not None and tensor is not None:
                buffer.copy_(tensor.pin_memory(), non_blocking=True)
        self.num_done += 1
        if self.num_done <= WARM_UP_STEPS:
            return self._warm_up()
        if self.outcome is None:
            self.graph.register_generator_state(self.step.rng)
            with torch.cuda.graph(self.graph, pool=self.step.pool, stream=self.step.stream):
                self.outcome = self.step.compute(self.batch)
        self.graph.replay()
        return self.outcome

    def _warm_up(self) -> Outcome:
        stream, current = self.step.stream, torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*capturable=True")  # it soon will be
            warnings.filterwarnings("ignore", message="TensorFloat32")  # float32 means float32
            outcome = self.step.compute(self.batch)
        current.wait_stream(stream)
        return outcome


def _compiles(config: PretrainConfig, device: torch.device) -> bool:
    """Return whether to compile.

    Raises:
        UserError: It was asked for, and there is no compiler that works.
    """
    choice = config.train.compile
    if choice == "no" or (choice == "auto" and device.type != "cuda"):
        return False
    _keep_compiled()
    try:
        torch.compile(torch.square)(torch.ones(8, device=device))
    except Exception as error:  # whatever a missing compiler, driver or header makes of itself
        if choice == "yes":
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"train.compile yes: torch.compile does not work here: {reason}"
            ) from None
        return False
    return True


def _keep_compiled() -> None:
    """Let what is compiled be found again by the next run, also after a restart."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "electra" / "compiled"))
