"""One optimizer step: the same computation on every device, in the fastest form each has.

`Step.compute` is the step: positions drawn, losses, gradients, clipping, update. A CPU does it
operation by operation. On a CUDA device the objective is compiled and the whole step, optimizer
included, is captured once as a CUDA graph and replayed: at hidden size 256 a step is some two
thousand small operations, each of which would have to be launched. Nothing in a step waits for the
device.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from electra.config import PretrainConfig, UserError
from electra.method.objective import Objective, Output
from electra.model.batch import Batch, find_real
from electra.pretraining.attention import rank_attention
from electra.pretraining.working_copies import WorkingCopies
from electra.training.machine import choose_dtype
from electra.training.optimizer import build_optimizer, set_learning_rate
from electra.training.seeds import step_seed

WARM_UP_STEPS = 3
"""Steps done before one is captured; libraries choose and allocate in them what they keep."""


class Outcome(NamedTuple):
    """What a step leaves behind, on its device; overwritten by the next captured step."""

    outputs: list[Output]
    """One of each piece; without gradients."""
    num_real: Tensor
    """Tokens that are not padding."""
    grad_norm: Tensor
    """Before clipping."""


class Step:
    """The optimizer step of a model.

    Args:
        model: Its networks, on the device.
        config: The settings of the run.

    Attributes:
        optimizer: Updates the model's parameters.
        compiled: Whether the objective runs through torch.compile.
        captured: Whether steps are replayed as CUDA graphs.
        compiler_failure: What became of the compiler, and at which step; None while it works.
    """

    def __init__(self, model: Objective, config: PretrainConfig):
        self.model = model
        self.config = config
        self.device = next(model.parameters()).device
        self.compiled = _compiles(config, self.device)
        self.compiler_failure: str | None = None
        # Layers that recompute set the random numbers back, which a capture does not allow:
        # uncompiled by asking for their state, compiled by generators that it does not know.
        can_capture = self.device.type == "cuda" and not config.train.recompute_activations
        self.captured = config.train.cuda_graph and can_capture
        self.optimizer = build_optimizer(
            model, config.optimizer, mode=config.method.mode, captured=self.captured
        )
        self.copies = self._copy_weights()
        self.rng = torch.Generator(self.device)
        self.forward: Callable[..., Output] = model
        if self.compiled:
            self.forward = torch.compile(model, fullgraph=True, dynamic=False)
        self.attention = {}
        if self.device.type == "cuda":
            for masked in (False, True):
                self.attention[masked] = rank_attention(config, self.device, masked=masked)
        self.captures: dict[tuple[Any, ...], _Capture] = {}
        if self.captured:  # all on one stream, to which gradients stay bound, and in one memory
            self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        """Do the step of this number, counted from 0.

        Where the compiler fails on the model and was not asked for by name, it warns of it and goes
        on without.

        Args:
            number: All randomness is a function of it and of train.seed.
            batch: The rows, in host memory.
            learning_rate: Of this step.
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
        seed = self.config.train.seed
        self.rng.manual_seed(step_seed(seed, "corruption", number))
        torch.manual_seed(step_seed(seed, "dropout", number))
        set_learning_rate(self.optimizer, learning_rate)
        if self.device.type != "cuda":
            return self.compute(batch)
        if self.config.examples.short_prob and batch.attention_mask_BL is None:
            # Of 128 rows some is nearly always short. The rare step without a mask would be another
            # form, to be compiled and captured in the middle of a run, with memory of its own.
            batch = batch._replace(attention_mask_BL=find_real(batch))
        with sdpa_kernel(self.attention[_is_masked(batch)], set_priority=True):
            if not self.captured:
                return self.compute(batch.to(self.device))
            shape = tuple(None if tensor is None else tensor.shape for tensor in batch)
            if shape not in self.captures:
                self.captures[shape] = _Capture(self, batch)
            return self.captures[shape](batch)

    def compute(self, batch: Batch) -> Outcome:
        """Do a step with rows that are on the device: the definition."""
        train, model = self.config.train, self.model
        piece = train.micro_batch_size
        draw = model.masking.draw(batch, self.rng)
        counts = model.masking.count(batch, draw)
        outputs = []
        for first in range(0, len(batch.input_ids_BL), piece):
            rows = slice(first, first + piece)
            with self.copies.at_work() if self.copies else nullcontext():
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
        self.captures.clear()
        self.copies = self._copy_weights()
        if self.captured:  # memory that no capture holds any more cannot be shared
            self.pool = torch.cuda.graph_pool_handle()

    def _copy_weights(self) -> WorkingCopies | None:
        dtype = choose_dtype(self.config.train.precision, self.device)
        if self.device.type == "cpu" or dtype == torch.float32:
            return None
        return WorkingCopies(self.model, dtype)

    def describe(self) -> dict[str, Any]:
        """Return the form that steps have, for manifests."""
        return {
            "compiled": self.compiled,
            "compiler_failure": self.compiler_failure,
            "captured": self.captured,
            "attention": {
                "masked" if masked else "unmasked": kernels[0].name
                for masked, kernels in self.attention.items()
            },
        }


def _is_masked(batch: Batch) -> bool:
    """Return whether some attention is not between all positions of a row."""
    return batch.attention_mask_BL is not None or batch.document_ids_BL is not None


class _Capture:
    """Steps with batches of one shape, as a CUDA graph over buffers that stay where they are."""

    def __init__(self, step: Step, batch: Batch):
        self.step = step
        self.batch = batch.to(step.device)
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
