"""The optimizer step of step.py, faster: compiled, with working copies, as a replayed CUDA graph.

On a CUDA device the encoders compute with bfloat16 copies of their weights, with the attention
kernels that are fastest for the sizes of the run, and whole steps are replayed as graphs. A model
that is divided among processes has the plain step.

Shape suffixes: B rows, L positions, N heads, D head size.
"""

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from electra.errors import UserError
from electra.files import cache_folder
from electra.method.measures import tally
from electra.method.objective import Objective, Output
from electra.model.batch import Batch, find_real
from electra.model.encoder import Encoder
from electra.model.parts import Linear
from electra.pretraining.step import Outcome, Ranking, Step
from electra.processes import find_place
from electra.training.config import PretrainConfig, TrainConfig
from electra.training.distributed import from_rank_0, wait_for_all
from electra.training.flat import FlatBuffers
from electra.training.machine import Machine

KERNELS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)

WARM_UP_STEPS = 3
"""Steps before the capture. In these steps libraries select kernels and allocate workspaces, which
a capture does not allow."""


class AcceleratedStep(Step):
    """The compiled optimizer step; on a CUDA device with working copies and as a CUDA graph."""

    def __init__(
        self,
        model: Objective,
        config: PretrainConfig,
        machine: Machine,
        attention: Ranking | None = None,
    ):
        on_cuda = machine.device.type == "cuda"
        # Recomputed layers restore the random number state, which a capture does not allow. Plain
        # layers read the generator's state; compiled layers use generators that are not registered
        # with the graph.
        can_capture = on_cuda and not config.train.recompute_activations
        super().__init__(model, config, machine, config.train.cuda_graph and can_capture)
        self.flat = FlatBuffers(self.optimizer)
        self.beside = torch.cuda.Stream() if on_cuda and config.train.overlap else None
        """Stream of the generator, with train.overlap."""
        self.compiled = _compiles(config, machine.device)
        self.compiler_failure: str | None = None
        """Step and message of the compiler's failure."""
        self.plain = self.functions
        if self.compiled:
            self.functions = tuple(map(self._compile, self.plain))
        self.leads = find_place().local_rank == 0
        self.has_begun = False
        """Whether this process has computed, or may compute, the first micro-batch of a stage."""
        self.weights = self._work_in_turn
        self._copy_weights()
        self.attention = attention or {}
        if on_cuda and not attention:  # the processes of a step compute with the same kernels
            self.attention = from_rank_0(rank_attention(config, machine, self.micro_rows))
        self.num_done: dict[tuple[Any, ...], int] = {}
        """Steps done with batches of each shape since the model's computation has changed."""
        self.postponed: tuple[Any, ...] | None = None
        """Shape of a padded batch that came before all others, which may be a rare one."""
        self.captures: dict[tuple[Any, ...], _Capture] = {}
        if self.captured:  # gradients are bound to a stream, so all captures share stream and pool
            self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """What is compiled."""
        return self.forward, self.choose, self.measures.tally, self.judge

    @functions.setter
    def functions(self, functions: tuple[Callable[..., Any], ...]) -> None:
        self.forward, self.choose, self.measures.tally, self.judge = functions

    def __call__(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        """Run one optimizer step, as `Step`.

        If the compiler fails and train.compile is auto, the step warns and runs without it.
        """
        try:
            return self._do(number, batch, learning_rate)
        except RuntimeError as error:
            is_compilers = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
            if not is_compilers or self.config.train.compile == "yes" or self.is_torn:
                raise
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"torch.compile fails, continuing without it: {reason}", stacklevel=2)
        self.compiled = False
        self.functions = self.plain
        self.compiler_failure = f"at step {number}: {reason}"
        self.clear_gradients()
        self._prepare_anew()
        return self._do(number, batch, learning_rate)

    def _do(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        on_cuda = self.machine.device.type == "cuda"
        if on_cuda and self.config.examples.short_prob and batch.attention_mask_BL is None:
            # Among 128 rows at least one is nearly always short. The rare step without a mask would
            # be compiled and captured separately in the middle of a run, and take more memory.
            batch = batch._replace(attention_mask_BL=find_real(batch))
        shape = tuple(None if tensor is None else tensor.shape for tensor in batch)
        is_padded = batch.attention_mask_BL is not None and not self.config.examples.short_prob
        may_be_rare = bool(self.num_done) or (is_padded and shape != self.postponed)
        if may_be_rare and shape not in self.num_done and (self.compiled or self.captured):
            self.postponed = shape
            return self._do_plain(number, batch, learning_rate)
        num_done = self.num_done.get(shape, 0)
        self.prepares = num_done < (WARM_UP_STEPS + 1 if self.captured else int(self.compiled))
        self.num_done[shape] = num_done + 1
        with self._prefer_kernels(batch):
            if not self.captured:
                return super().__call__(number, batch, learning_rate)
            if shape not in self.captures:
                self.captures[shape] = _Capture(self, batch)
            self.begin(number, learning_rate)
            return self.captures[shape](batch)

    def _do_plain(self, number: int, batch: Batch, learning_rate: float) -> Outcome:
        """Run a rare padded step; a form of its own would take a minute to compile, and memory."""
        self.prepares = False
        fast, self.functions = self.functions, self.plain
        try:
            with self._prefer_kernels(batch):
                if not self.captured:
                    return super().__call__(number, batch, learning_rate)
                self.begin(number, learning_rate)
                return self.compute_aside(batch.to(self.machine.device))
        finally:
            self.functions = fast

    def _prefer_kernels(self, batch: Batch) -> AbstractContextManager[None]:
        """Return the context in which attention takes the kernels that are fastest for a batch."""
        if self.machine.device.type != "cuda":
            return nullcontext()
        masks = batch.attention_mask_BL, batch.document_ids_BL
        is_masked = self.config.model.causal or any(each is not None for each in masks)
        kernels = find_kernels(self.attention, masked=is_masked)
        return cast(AbstractContextManager[None], sdpa_kernel(kernels, set_priority=True))

    def compute_aside(self, batch: Batch) -> Outcome:
        """Run `compute` on the stream of the captures, to which the gradients are bound."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), warnings.catch_warnings():
            # The optimizer warns because nothing is captured yet; the step after these is captured.
            warnings.filterwarnings("ignore", message=".*capturable=True")
            # Ignore hints: TensorFloat32, though float32 is promised; torch 2.11's split softmax.
            warnings.filterwarnings("ignore", message=r"TensorFloat32|\s*Online softmax")
            outcome = self.compute(batch)
        current.wait_stream(self.stream)
        return outcome

    def descend(self, *arguments: Any) -> Output:
        """Return the output of `forward`, as `Step.descend`, with train.overlap on two streams."""
        if self.beside is None or self.model.is_resting:
            return super().descend(*arguments)
        main = torch.cuda.current_stream()
        self.beside.wait_stream(main)
        with torch.cuda.stream(self.beside):
            first = self.forward(*arguments, "first")
            sampled = self.beside.record_event()
            first.loss.backward()
            first = first._replace(loss=first.loss.detach())
        main.wait_event(sampled)
        second = self.forward(*arguments, first)
        main.wait_stream(self.beside)  # both losses add to the gradients of shared embeddings
        second.loss.backward()
        return second._replace(loss=first.loss + second.loss.detach())

    def find_gradients(self) -> list[Tensor]:
        """Return the gradients as long tensors, and let the optimizer update such."""
        return self.flat.gather()

    def clear_gradients(self) -> None:
        """Remove the gradients of the parameters, but not the long tensors."""
        self.model.zero_grad()

    def close(self) -> None:
        """Free the captured graphs.

        NCCL does not end while a graph holds its communicator, and the traceback of an error may
        hold this step, so the graphs are reset and not only let go.
        """
        for capture in self.captures.values():
            capture.graph.reset()
        self.captures.clear()

    def begin_stage(self, stage: int) -> None:
        """Begin a stage of the objective, as `Step.begin_stage`."""
        super().begin_stage(stage)
        self.has_begun = False
        if self.compiled:
            self.measures.tally = self._compile(tally)
        self._prepare_anew()

    def _prepare_anew(self) -> None:
        """Discard captures and working copies, because the model's computation has changed."""
        self.num_done.clear()
        self.postponed = None
        self.captures.clear()
        self._copy_weights()
        if self.captured:  # a pool that no capture holds any more cannot be reused
            self.pool = torch.cuda.graph_pool_handle()

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        options = compile_options(self.config.train)
        return torch.compile(function, fullgraph=True, dynamic=False, options=options)

    def _copy_weights(self) -> None:
        dtype = self.machine.dtype
        is_needed = self.machine.device.type != "cpu" and dtype != torch.float32
        self.copies = WorkingCopies(self.model, self.flat, dtype) if is_needed else None

    @contextmanager
    def _work_in_turn(self) -> Iterator[None]:
        """Compute a micro-batch with working copies; one process compiles the first alone."""
        # The other processes of the machine then find its kernels in the cache.
        is_first, self.has_begun = not self.has_begun, self.has_begun or not self.leads
        if is_first and not self.leads:
            wait_for_all(self.machine)
        with self.copies.at_work() if self.copies else nullcontext():
            yield
        self.has_begun = True
        if is_first and self.leads:  # a step without the compiler may have been in between
            wait_for_all(self.machine)

    def describe(self) -> dict[str, Any]:
        """Return the form of the step for manifests: `Step.describe`, compiler and attention."""
        others = {"compiler_failure": self.compiler_failure, "attention": self.attention}
        return super().describe() | others


class _Capture:
    """A CUDA graph of the step for batches of one shape, over buffers at fixed addresses."""

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
            return self.step.compute_aside(self.batch)
        if self.outcome is None:
            self.graph.register_generator_state(self.step.rng)
            # NCCL's watchdog queries events in a thread of its own, which a global capture forbids.
            mode = "thread_local" if self.step.machine.num_ranks > 1 else "global"
            pool, stream = self.step.pool, self.step.stream
            try:
                with torch.cuda.graph(self.graph, pool, stream, capture_error_mode=mode):
                    self.outcome = self.step.compute(self.batch)
            except RuntimeError as error:  # after which the device's state is unknown
                reason = " ".join(str(error).split())[:200]
                without = "the same command with --set train.cuda_graph=false continues without it"
                raise UserError(f"the step is not captured: {reason}; {without}") from error
        self.graph.replay()
        return self.outcome


def compile_options(train: TrainConfig) -> dict[str, Any]:
    """Return the options of torch.compile, by torch's names."""
    return {
        "combo_kernels": train.combine_kernels,
        # With blocks of one size for rows and column sums a kernel would hold more registers.
        "combo_kernel_per_subkernel_blocks": True,
        "triton.enable_pdl": train.dependent_launch,
        "max_autotune_gemm": train.autotune,
    }


def _compiles(config: PretrainConfig, device: torch.device) -> bool:
    """Return whether to compile the objective; refuse train.compile=yes where it does not work."""
    choice = config.train.compile
    if choice == "no" or (choice == "auto" and device.type != "cuda"):
        return False
    # A cache that survives a restart, unless the user chose one.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder("compiled")))
    try:
        torch.compile(torch.square)(torch.ones(8, device=device))
    except Exception as error:  # a missing compiler, driver or header raises many types
        if choice == "yes":
            reason = str(error).strip().partition("\n")[0]
            what = f"train.compile yes: torch.compile does not work here: {reason}"
            raise UserError(what) from None
        return False
    return True


class WorkingCopies:
    """Copies of the weights and biases of a model's encoders, except the embedding block.

    The copies replace the parameters inside `at_work` only.
    """

    def __init__(self, model: nn.Module, flat: FlatBuffers, dtype: torch.dtype):
        self.flat = flat
        self.buffer = torch.zeros_like(flat.weights, dtype=dtype)
        parts_of = dict(zip(flat.parameters, flat.view(self.buffer), strict=True))
        encoders = (each for each in model.modules() if isinstance(each, Encoder))
        parts = (part for encoder in encoders for part in encoder.modules())
        maps = dict.fromkeys(part for part in parts if isinstance(part, Linear))
        self.places = [(part, name) for part in maps for name in dict(part.named_parameters())]
        self.masters = [part.get_parameter(name) for part, name in self.places]
        self.copies = [
            nn.Parameter(parts_of[master], requires_grad=master.requires_grad)
            for master in self.masters
        ]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the model compute with the copies; on exit add their gradients to the parameters'."""
        with torch.no_grad():
            self.buffer.copy_(self.flat.weights)
        self._install(self.copies)
        try:
            yield
            self._hand_over()
        finally:
            self._install(self.masters)

    def _install(self, parameters: list[nn.Parameter]) -> None:
        for (part, name), parameter in zip(self.places, parameters, strict=True):
            part._parameters[name] = parameter

    @torch.no_grad()
    def _hand_over(self) -> None:
        """Add the copies' gradients to the parameters' gradients, in float32."""
        learnt = [
            (master, copy.grad)
            for master, copy in zip(self.masters, self.copies, strict=True)
            if copy.grad is not None
        ]
        sums = [master.grad for master, _ in learnt if master.grad is not None]
        gradients = [torch.empty_like(each) for each in sums] or [
            self.flat.slots[master] for master, _ in learnt
        ]
        torch._foreach_copy_(gradients, [gradient for _, gradient in learnt])
        if sums:  # of earlier micro-batches of the step
            torch._foreach_add_(sums, gradients)
        else:
            for (master, _), gradient in zip(learnt, gradients, strict=True):
                master.grad = gradient
        for copy in self.copies:
            copy.grad = None


def rank_attention(config: PretrainConfig, machine: Machine, rows: int) -> Ranking:
    """Return torch's attention kernels that support the discriminator's layers, fastest first.

    The timing covers forward and backward pass of so many rows, with the run's sizes and dropout.
    It leaves out the launches, because the replay of a CUDA graph does not launch kernels one by
    one.
    """
    return {
        name: [kernel.name for kernel in _rank(config, machine, rows, masked=name == "masked")]
        for name in ("unmasked", "masked")
    }


def find_kernels(ranking: Ranking, *, masked: bool) -> list[SDPBackend]:
    """Return the kernels of a ranking for rows with or without a mask, fastest first."""
    return [SDPBackend.__members__[name] for name in ranking["masked" if masked else "unmasked"]]


def exact_kernels(dropout_prob: float) -> list[SDPBackend]:
    """Return the kernels that drop exactly this share of the attention probabilities.

    cuDNN's kernels round the share to sixteenths. Source: pytorch issue 174245.
    """
    is_sixteenths = (16 * dropout_prob).is_integer()
    return [each for each in KERNELS if is_sixteenths or each != SDPBackend.CUDNN_ATTENTION]


def _rank(config: PretrainConfig, machine: Machine, rows: int, *, masked: bool) -> list[SDPBackend]:
    sizes, length = config.model, config.examples.sequence_length
    heads, rate = sizes.num_attention_heads, sizes.attention_probs_dropout_prob
    device, dtype = machine.device, machine.dtype
    mask_B11L = torch.zeros((rows, 1, 1, length), device=device, dtype=dtype) if masked else None
    qkv_BL3ND = torch.randn(
        (rows, length, 3, heads, sizes.hidden_size // heads), device=device, dtype=dtype
    ).requires_grad_()

    def attend() -> None:
        q, k, v = qkv_BL3ND.permute(2, 0, 3, 1, 4).unbind(0)
        context_BNLD = F.scaled_dot_product_attention(q, k, v, mask_B11L, rate)
        context_BNLD.backward(torch.ones_like(context_BNLD))  # has the strides of a real gradient

    seconds = {}
    for kernel in exact_kernels(rate):
        with warnings.catch_warnings(), sdpa_kernel(kernel), suppress(RuntimeError):
            warnings.simplefilter("ignore")  # the reasons why a kernel does not support the sizes
            seconds[kernel] = statistics.median(_time(attend, device) for _ in range(7))
    return sorted(seconds, key=seconds.__getitem__)


def _time(work: Callable[[], None], device: torch.device) -> float:
    """Return the seconds that `work` takes on the device, without its launches."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1 << 25)  # clock cycles, about 20 ms: the time to launch everything below
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1000
