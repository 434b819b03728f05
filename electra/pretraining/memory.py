"""What a step of pre-training needs of memory, and whether it is there."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from electra.config import PretrainConfig, require
from electra.corpus.tokenizer import SPECIAL_TOKENS
from electra.method.objective import Objective
from electra.model.batch import Batch
from electra.model.encoder import Encoder

BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, float32."""
GIB = 2**30


def estimate_step(model: Objective, config: PretrainConfig, device: torch.device) -> float:
    """Return the estimated peak of a step, bytes; what the framework takes comes on top.

    It is 16 for each parameter, and what a piece of a step (train.accumulation) takes for its
    backward pass.
    """
    a_row = measure_activations(model, config, device)
    return _fixed(model) + a_row * config.train.micro_batch_size


def require_memory(model: Objective, config: PretrainConfig, device: torch.device) -> None:
    """Refuse a run whose steps would not fit into what is free, unless train.check_memory is false.

    Raises:
        UserError: They would not; it names the accumulation with which they would, or, where not
            even one row fits, train.recompute_activations if that is still to be tried.
    """
    free = free_memory(device) if config.train.check_memory else None
    if free is None:
        return
    train = config.train
    free += sum(tensor.nbytes for tensor in model.parameters())  # they are there already
    a_row = measure_activations(model, config, device)
    room = int((free - _fixed(model)) // a_row)
    pieces = -(-train.batch_size // room) if room > 0 else 0
    can_recompute = free > _fixed(model) and not train.recompute_activations
    smaller = "choose a smaller model, or a shorter examples.sequence_length"
    need = _fixed(model) + a_row * train.micro_batch_size
    require(
        need <= free,
        f"a step needs about {need / GIB:.1f} GiB, and {max(free, 0) / GIB:.1f} GiB are free: "
        + (
            f"set train.accumulation={pieces}"
            if pieces
            else f"set train.recompute_activations=true, or {smaller}"
            if can_recompute
            else smaller
        )
        + "; train.check_memory=false begins without this estimate",
    )


def free_memory(device: torch.device) -> float | None:
    """Return the bytes that a process may still take; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    facts = Path("/proc/meminfo")
    if not facts.is_file():
        return None
    free = int(facts.read_text("ascii").partition("MemAvailable:")[2].split()[0]) * 1024
    return min([free, *free_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def free_in_groups(membership: Path, mount: Path) -> list[int]:
    """Return the bytes left in each control group with a limit that the process belongs to.

    A group is charged for the page cache of every file its processes read, which the system gives
    back before it refuses memory: that counts as free.

    Args:
        membership: The process's /proc/PID/cgroup. Inside a container its paths may be those of the
            host; the container's own group is then what is mounted.
        mount: Where control groups are mounted, version 2, or 1 with the folder `memory`.
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
    """Return the bytes charged to a control group that it gives back when asked for others."""
    lines = (group / "memory.stat").read_text().splitlines()
    stat = {name: int(value) for name, value in (line.split() for line in lines)}
    names = ("inactive_file", "active_file", "slab_reclaimable")
    return sum(stat.get(prefix + name, 0) for name in names)


def make_rows(config: PretrainConfig, num_rows: int, seed: int) -> Batch:
    """Return full rows of random tokens between [CLS] and [SEP], of two segments and documents."""
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
    """Return the bytes that one more row takes in a step.

    That is what the forward pass keeps, and on the way back a gradient of each activation of the
    widest layer. Where layers recompute, little more than their inputs is kept, and on the way back
    one layer's activations are there again beside their gradients.
    """

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
    """Return the bytes of one layer's activations."""
    x_BLH = torch.zeros(
        (*input_ids_BL.shape, encoder.config.hidden_size),
        dtype=encoder.compute_dtype,
        device=input_ids_BL.device,
        requires_grad=True,
    )
    return _saved_bytes(encoder, lambda: encoder.layers[0](x_BLH, None, None))


def _fixed(model: Objective) -> float:
    return BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())


def _saved_bytes(module: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes of all tensors, each storage once, that a forward pass saves."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    del output
    return sum(storages.values())
