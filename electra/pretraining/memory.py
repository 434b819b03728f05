"""The memory that a step needs, and that is free."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra.errors import UserError
from electra.method.objective import Objective
from electra.model.batch import Batch
from electra.model.encoder import Encoder, find_layers
from electra.processes import GROUPS, OWN_GROUPS, control_groups, find_place
from electra.tokenizing.tokenizer import SPECIAL_TOKENS
from electra.training.config import PretrainConfig
from electra.training.distributed import count_parts
from electra.training.machine import Machine

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, each float32."""
GIB = 2**30
"""Bytes."""


def require_memory(model: Objective, config: PretrainConfig, machine: Machine) -> None:
    """Refuse a run whose steps do not fit into free memory, unless train.check_memory is false.

    A step takes the bytes of parameters, and those of one micro-batch of this process's rows. The
    message names the train.accumulation that fits, or else train.recompute_activations or a smaller
    model.
    """
    train = config.train
    free = free_memory(machine.device) if train.check_memory else None
    if free is None:
        return
    if machine.device.type == "cpu":
        free /= find_place().num_local
    free += sum(tensor.nbytes for tensor in model.parameters())  # already allocated
    num_rows = train.batch_size // machine.num_ranks
    a_row = measure_activations(model, config, machine.device)
    fixed = count_bytes(model, count_parts(train.sharding, machine))
    need = fixed + a_row * -(-num_rows // train.accumulation)
    if need <= free:
        return
    room = int((free - fixed) // a_row) if fixed <= free else 0
    advice = "choose a smaller model, or a shorter examples.sequence_length"
    if room > 1 and config.method.contrasts:
        advice = f"set train.batch_size={room}, or method.contrast_weight=0"
    elif room > 0 and not config.method.contrasts:
        enough = range(-(-num_rows // room), num_rows + 1)
        fits = (each for each in enough if machine.num_ranks == 1 or num_rows % each == 0)
        advice = f"set train.accumulation={next(fits)}"
    elif fixed < free and not train.recompute_activations:
        advice = f"set train.recompute_activations=true, or {advice}"
    raise UserError(
        f"a step needs about {need / GIB:.1f} GiB, and {max(free, 0) / GIB:.1f} GiB are free: "
        f"{advice}; train.check_memory=false begins without this estimate"
    )


def free_memory(device: torch.device) -> float | None:
    """Return the memory that this process can still allocate, bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    facts = Path("/proc/meminfo")
    if not facts.is_file():
        return None
    free = int(facts.read_text("ascii").partition("MemAvailable:")[2].split()[0]) * 1024
    return min([free, *free_in_groups(OWN_GROUPS, GROUPS)])


def free_in_groups(membership: Path, mount: Path) -> list[int]:
    """Return the free bytes of each control group that limits the process.

    A group is charged for the page cache of every file that its processes read. The system reclaims
    the page cache before it refuses memory, so the page cache counts as free.
    """
    free = []
    for group, is_version_1 in control_groups("memory", membership, mount):
        version_1 = "limit_in_bytes", "usage_in_bytes", "total_"
        limit, used, prefix = version_1 if is_version_1 else ("max", "current", "")
        limits = group / f"memory.{limit}", group / f"memory.{used}"
        if all(file.is_file() for file in limits):
            most, taken = (file.read_text().strip() for file in limits)
            if most != "max":
                stat = (group / "memory.stat").read_text().split()
                sizes = dict(zip(stat[::2], map(int, stat[1::2]), strict=True))
                cache = ("inactive_file", "active_file", "slab_reclaimable")
                reclaimable = sum(sizes.get(prefix + name, 0) for name in cache)
                free.append(int(most) - int(taken) + reclaimable)
    return free


def make_rows(config: PretrainConfig, num_rows: int, seed: int) -> Batch:
    """Return full rows of random tokens between [CLS] and [SEP], for estimates and timings.

    Each row has two segments, and two documents if examples.attend is document. With
    examples.next_sentence, every other row has a second segment that follows.
    """
    length = config.examples.sequence_length
    rng = torch.Generator().manual_seed(seed)
    first = len(SPECIAL_TOKENS)
    ids_BL = torch.randint(first, config.model.vocab_size, (num_rows, length), generator=rng)
    ids_BL[:, 0], ids_BL[:, -1] = 2, 3
    types_BL = (torch.arange(length) >= length // 2).long().repeat(num_rows, 1)
    documents_BL = types_BL + 1 if config.examples.attend == "document" else None
    is_next_B = torch.arange(num_rows) % 2 == 0 if config.examples.next_sentence else None
    return Batch(ids_BL, None, types_BL, documents_BL, is_next_B)


def measure_activations(model: Objective, config: PretrainConfig, device: torch.device) -> float:
    """Return the bytes that one more row of a micro-batch takes, in the stage that takes most.

    A row takes the activations that the forward pass saves. In the backward pass it also takes the
    gradients of the activations of the widest layer. With train.recompute_activations the forward
    pass saves little more than the layers' inputs, and the backward pass holds the recomputed
    activations of one layer and their gradients.
    """

    def compute_loss(*arguments: Any) -> Tensor:
        return model(*arguments).loss

    def measure(num_rows: int) -> int:
        batch = make_rows(config, num_rows, seed=0).to(device)
        rng = torch.Generator(device).manual_seed(0)
        arguments = batch, *model.masking.draw(batch, rng)
        halves: list[list[Any]] = [[]]
        if config.train.updates == "apart":
            halves = [["first"], [model(*arguments, "first")]]
        kept = max(_saved_bytes(model, partial(compute_loss, *arguments, *half)) for half in halves)
        encoders = (each for each in model.modules() if isinstance(each, Encoder))
        widest = max(_layer_bytes(encoder, batch.input_ids_BL) for encoder in encoders)
        return kept + widest * (2 if config.train.recompute_activations else 1)

    if len(model.stages) > 1:
        model = copy.deepcopy(model)  # a stage that has begun does not end
    of_stages = []
    for stage in range(len(model.stages)):
        if stage:
            model.begin_stage(stage)
        of_stages.append(measure(2) - measure(1))
    return max(of_stages)


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


def count_bytes(model: Objective, num_parts: int) -> float:
    """Return the bytes of weights, gradients and moments on a process."""
    number = count_parameters(model)
    fixed = BYTES_PER_PARAMETER * number / num_parts
    if num_parts > 1:
        # Whole outside the layers, and two layers: one is computed, one is being gathered.
        layers = [count_parameters(layer) for layer in find_layers(model)]
        fixed += 8 * (number - sum(layers) + 2 * max(layers))
    return fixed


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters below a module."""
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
