"""Estimated memory of a pre-training step, and the check against free memory."""

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra.config import PretrainConfig
from electra.errors import require
from electra.method.flops import count_run
from electra.method.objective import Objective
from electra.model.batch import Batch
from electra.model.encoder import Encoder, find_layers
from electra.pretraining.acceleration import WARM_UP_STEPS, prepare_step
from electra.pretraining.start import build_model
from electra.tokenizing.tokenizer import SPECIAL_TOKENS, make_tokenizer
from electra.training.machine import Machine, prepare_machine

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, each float32."""
BYTES_TO_UNDO = 12
"""Per parameter: copies of weight and moments, which ReferenceAdamW's update takes (update.py)."""
GIB = 2**30
"""Bytes."""


def estimate_step(model: Objective, config: PretrainConfig, device: torch.device) -> float:
    """Return the estimated peak memory of a step, bytes, without torch's own memory.

    The estimate is BYTES_PER_PARAMETER for each parameter, plus the activations of one micro-batch
    or, in reference mode, the copies of an update if these are more.
    """
    a_row = measure_activations(model, config, device)
    activations = a_row * config.train.micro_batch_size
    return _fixed(model, 1) + max(activations, _copies(model, config, 1))


def require_memory(
    model: Objective, config: PretrainConfig, device: torch.device, num_parts: int = 1
) -> None:
    """Refuse a run whose steps do not fit into free memory, unless train.check_memory is false.

    Args:
        model: The objective.
        config: The settings, with the rows of this process.
        device: Its device.
        num_parts: Number of processes among which the parameters will be divided.

    Raises:
        UserError: A step does not fit. The message names the train.accumulation that fits. If not
            even one row fits, it names train.recompute_activations or a smaller model.
    """
    free = free_memory(device) if config.train.check_memory else None
    if free is None:
        return
    train = config.train
    free += sum(tensor.nbytes for tensor in model.parameters())  # already allocated
    a_row = measure_activations(model, config, device)
    fixed = _fixed(model, num_parts)
    copies = _copies(model, config, num_parts)
    room = int((free - fixed) // a_row) if fixed + copies <= free else 0
    accumulation = -(-train.batch_size // room) if room > 0 else 0
    can_recompute = fixed + copies < free and not train.recompute_activations
    smaller = "choose a smaller model, or a shorter examples.sequence_length"
    need = fixed + max(a_row * train.micro_batch_size, copies)
    require(
        need <= free,
        f"a step needs about {need / GIB:.1f} GiB, and {max(free, 0) / GIB:.1f} GiB are free: "
        + (
            f"set train.accumulation={accumulation}"
            if accumulation
            else f"set train.recompute_activations=true, or {smaller}"
            if can_recompute
            else smaller
        )
        + "; train.check_memory=false begins without this estimate",
    )


def free_memory(device: torch.device) -> float | None:
    """Return the memory that this process can still allocate, bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    facts = Path("/proc/meminfo")
    if not facts.is_file():
        return None
    free = int(facts.read_text("ascii").partition("MemAvailable:")[2].split()[0]) * 1024
    return min([free, *free_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def free_in_groups(membership: Path, mount: Path) -> list[int]:
    """Return the free bytes of each control group that limits the process.

    A group is charged for the page cache of every file that its processes read. The system reclaims
    the page cache before it refuses memory, so the page cache counts as free.

    Args:
        membership: The file /proc/PID/cgroup of the process. Inside a container the paths in this
            file may be those of the host; the mounted group is then the container's group.
        mount: Mount point of the control groups: version 2, or version 1 with the folder `memory`.
    """
    free = []
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, files, prefix = mount, ("memory.max", "memory.current"), ""
        if controllers:  # version 1
            top, files = mount / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            prefix = "total_"
        own = top / path.lstrip("/")
        for group in (own, *own.parents):
            if group.is_relative_to(top) and all((group / name).is_file() for name in files):
                limit, used = ((group / name).read_text().strip() for name in files)
                if limit != "max":
                    free.append(int(limit) - int(used) + _reclaimable(group, prefix))
    return free


def _reclaimable(group: Path, prefix: str) -> int:
    """Return the bytes charged to a control group that the system can reclaim."""
    lines = (group / "memory.stat").read_text().splitlines()
    stat = {name: int(value) for name, value in (line.split() for line in lines)}
    names = ("inactive_file", "active_file", "slab_reclaimable")
    return sum(stat.get(prefix + name, 0) for name in names)


def make_rows(config: PretrainConfig, num_rows: int, seed: int) -> Batch:
    """Return full rows of random tokens between [CLS] and [SEP], for estimates and timings.

    Each row has two segments, and two documents if examples.attend is document.
    """
    length = config.examples.sequence_length
    rng = torch.Generator().manual_seed(seed)
    first = len(SPECIAL_TOKENS)
    ids_BL = torch.randint(first, config.model.vocab_size, (num_rows, length), generator=rng)
    ids_BL[:, 0], ids_BL[:, -1] = 2, 3
    types_BL = (torch.arange(length) >= length // 2).long().repeat(num_rows, 1)
    return Batch(
        ids_BL, None, types_BL, types_BL + 1 if config.examples.attend == "document" else None
    )


def measure_activations(model: Objective, config: PretrainConfig, device: torch.device) -> float:
    """Return the bytes that one more row of a micro-batch takes, in the stage that takes most.

    A row takes the activations that the forward pass saves. In the backward pass it also takes the
    gradients of the activations of the widest layer. With train.recompute_activations the forward
    pass saves little more than the layers' inputs, and the backward pass holds the recomputed
    activations of one layer and their gradients.
    """
    first = _measure_stage(model, config, device)
    if len(model.stages) == 1:
        return first
    last = copy.deepcopy(model)  # a stage that has begun does not end
    for stage in range(1, len(model.stages)):
        last.begin_stage(stage)
    return max(first, _measure_stage(last, config, device))


def _measure_stage(model: Objective, config: PretrainConfig, device: torch.device) -> float:
    def measure(num_rows: int) -> int:
        batch = make_rows(config, num_rows, seed=0).to(device)
        rng = torch.Generator(device).manual_seed(0)
        kept = _saved_bytes(model, lambda: model.compute(batch, rng).loss)
        widest = max(
            _layer_bytes(encoder, batch.input_ids_BL)
            for encoder in model.modules()
            if isinstance(encoder, Encoder)
        )
        return kept + widest * (2 if config.train.recompute_activations else 1)

    return measure(2) - measure(1)


def _layer_bytes(encoder: Encoder, input_ids_BL: Tensor) -> int:
    """Return the bytes of the activations that one layer saves."""
    x_BLH = torch.zeros(
        (*input_ids_BL.shape, encoder.config.hidden_size),
        dtype=encoder.compute_dtype,
        device=input_ids_BL.device,
        requires_grad=True,
    )
    places = encoder.find_places(input_ids_BL)[0]
    return _saved_bytes(encoder, lambda: encoder.layers[0](x_BLH, places, None))


def _fixed(model: Objective, num_parts: int) -> float:
    """Return the bytes of weights, gradients and moments on one of `num_parts` processes.

    Of a divided model a process also holds the whole weights and gradients outside the layers, and
    those of two layers: one that is computed and one that is being gathered.
    """
    bytes_of_part = BYTES_PER_PARAMETER * _count(model) / num_parts
    if num_parts == 1:
        return bytes_of_part
    layers = [_count(layer) for layer in find_layers(model)]
    return bytes_of_part + 8 * (_count(model) - sum(layers) + 2 * max(layers))


def _copies(model: Objective, config: PretrainConfig, num_parts: int) -> float:
    is_reference = config.method.mode == "reference"
    return BYTES_TO_UNDO * _count(model) / num_parts if is_reference else 0.0


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _saved_bytes(module: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that a forward pass saves for the backward pass, each storage once."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        # The tensor itself would close a reference cycle through its graph. The nodes that
        # accumulate gradients would then outlive this pass, bound to its stream, and break a CUDA
        # graph.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    del output
    return sum(storages.values())


class Plan(NamedTuple):
    """Estimated cost of a run."""

    kept_parameters: int
    """Parameters of the encoder that pre-training returns."""
    parameters: int
    """Parameters of all networks in training."""
    steps: int
    """Optimizer steps."""
    tokens: int
    """Positions of all rows, padding included."""
    flops: dict[str, float]
    """Operations of the whole run: "true" and "paper"."""
    memory: float
    """Estimated peak memory of a step, bytes."""
    seconds: float
    """Estimated training time, seconds, without evaluations."""
    device: str
    """Device that the time was measured on."""


def plan(
    config: PretrainConfig,
    probe_seconds: float,
    progress: Callable[[float], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Return the estimated cost of a run, after timing steps with random tokens.

    Args:
        config: The settings of the run, with the final `model.vocab_size`.
        probe_seconds: Time limit of the measurement, seconds. On a CPU a step that takes too long
            is timed on fewer rows, and its time is scaled in proportion to the rows.
        progress: Called repeatedly with the seconds spent.
        clock: Returns the current time, seconds.
    """
    machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
    tokenizer = make_tokenizer(config.model.vocab_size)
    frequencies_V = torch.ones(config.model.vocab_size)
    model = build_model(config, tokenizer, machine, frequencies_V)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = sum(parameter.numel() for parameter in model.kept.parameters())
    return Plan(
        kept,
        num_parameters,
        config.train.steps,
        config.train.steps * config.train.batch_size * config.examples.sequence_length,
        count_run(model, config),
        estimate_step(model, config, machine.device),
        time_run(model, config, machine, probe_seconds, progress, clock),
        machine.name,
    )


def time_run(
    model: Objective,
    config: PretrainConfig,
    machine: Machine,
    probe_seconds: float,
    progress: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the estimated time of all steps, seconds; arguments as for `time_step`.

    The stages of an objective take equal parts of the probe.
    """
    seconds, share = 0.0, probe_seconds / len(model.stages)
    for stage, first in enumerate(model.stages):
        if stage:
            model.begin_stage(stage)
        end = (*model.stages, config.train.steps)[stage + 1]

        def add(spent: float, earlier: float = stage * share) -> None:
            progress(earlier + spent)

        seconds += (end - first) * time_step(model, config, machine, share, add, clock)
    return seconds


def time_step(
    model: Objective,
    config: PretrainConfig,
    machine: Machine,
    probe_seconds: float,
    progress: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the estimated time of an optimizer step, seconds: the median of the timed steps.

    Args:
        model: The objective, on the machine's device.
        config: The settings of the run.
        machine: The machine to time on.
        probe_seconds: As in `plan`.
        progress: As in `plan`.
        clock: As in `plan`.
    """
    step = prepare_step(model, config, machine)
    batch_size = config.train.batch_size
    model.train()

    def run(num_rows: int) -> float:
        batch = make_rows(config, num_rows, seed=num_rows)
        began = clock()
        step(0, batch, config.optimizer.learning_rate)
        machine.wait()
        return clock() - began

    def warmed_up(num_rows: int) -> float:
        run(num_rows)  # sets up what has this size
        return run(num_rows)

    began = clock()
    if machine.device.type == "cuda":  # time is not proportional to rows until they fill the GPU
        num_rows = batch_size
        for _ in range(WARM_UP_STEPS + 1):
            run(num_rows)
        began = clock()  # compilation does not count
    else:
        # As many rows as leave time for five steps. A step has costs that do not grow with its rows
        # (the update, the vocabulary), so that a few rows say little about many.
        whole = config.train.micro_batch_size
        num_rows = max(1, batch_size // (16 * config.train.accumulation))
        taken = warmed_up(num_rows)
        while num_rows < whole and 2 * taken <= probe_seconds / 5:
            num_rows = min(2 * num_rows, whole)
            taken = warmed_up(num_rows)
        num_rows = max(1, min(whole, int(probe_seconds / 5 / taken * num_rows)))
        began = clock()
    seconds = [warmed_up(num_rows)]
    while clock() - began < probe_seconds:
        seconds.append(run(num_rows))
        progress(clock() - began)
    return statistics.median(seconds) * batch_size / num_rows
