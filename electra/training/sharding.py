"""A model divided among the processes of a step, by torch's FSDP2.

Each process keeps a part of every parameter, of its gradient and of the optimizer's moments. It
gathers the whole weights of a layer when it computes the layer. Gradients are summed, not averaged,
because the losses of the processes are shares of one sum (step.py).

Checkpoints hold whole tensors in the plain form: process 0 gathers one tensor at a time and writes.
So a run goes on with any number of processes, divided or not. torch.distributed.checkpoint would
write a file per process, faster, and with pickled metadata that would have to be trusted.

torch's modules for this take a second or more to import, so that only divided models import them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from electra.errors import require
from electra.processes import find_place
from electra.training.machine import Machine


def count_parts(sharding: Literal["none", "full", "hybrid"], machine: Machine) -> int:
    """Return the number of parts into which `train.sharding` divides the model; 1: it is whole.

    Raises:
        UserError: sharding is hybrid, and the machines have different numbers of processes.
    """
    if sharding != "hybrid":
        return machine.num_ranks if sharding == "full" else 1
    num_local = find_place().num_local
    require(
        machine.num_ranks % num_local == 0,
        f"train.sharding hybrid: {machine.num_ranks} processes are not a multiple of the "
        f"{num_local} on this machine; start the same number on each, or use train.sharding=full",
    )
    return num_local


def shard(model: nn.Module, layers: Iterable[nn.Module], machine: Machine, num_parts: int) -> None:
    """Divide the parameters of a model among processes, in place.

    Args:
        model: The model, with the same weights on every process. All computation starts with a call
            of this module, or inside `gathered`.
        layers: Modules whose weights are gathered one module at a time. Everything else, such as
            the embeddings, stays gathered during a step.
        machine: This process's place among the processes of a step.
        num_parts: From `count_parts`. If there are more processes, each part is held several times.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sizes = machine.num_ranks // num_parts, num_parts
    names = "copies", "parts"
    has_copies = sizes[0] > 1
    mesh = init_device_mesh(
        machine.device.type,
        sizes if has_copies else sizes[1:],
        mesh_dim_names=names if has_copies else names[1:],
    )
    for module in (*layers, model):
        fully_shard(module, mesh=mesh)
    for sharded in _sharded_modules(model):
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def is_sharded(model: nn.Module) -> bool:
    """Return whether the model is divided among processes."""
    return hasattr(model, "set_reshard_after_forward")  # of FSDPModule


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if is_sharded(module))


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Hold the whole weights on every process inside the context, so that one can compute alone.

    All processes enter and leave together. Without sharding nothing happens.
    """
    modules = list(_sharded_modules(model))
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    yield
    for module in modules:
        module.reshard()
        module.set_reshard_after_forward(module is not model, recurse=False)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with all its parts; all processes call this together for a divided one."""
    if not _is_divided(tensor):
        return tensor
    found: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return found


def _is_divided(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # of DTensor


@torch.no_grad()
def spread(source: Tensor | None, target: Tensor) -> None:
    """Copy process 0's source into the target of every process, each its part of a divided one.

    Args:
        source: A whole tensor of the target's shape; None on other processes than 0, or if process
            0 has the values in its target, which is not divided.
        target: Where the values go.
    """
    if _is_divided(target):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(target, DTensor)
        if source is None:
            source = torch.empty(target.shape, dtype=target.dtype)
        source = source.to(target.device, target.dtype)
        target.copy_(distribute_tensor(source, target.device_mesh, target.placements))
        return
    if source is not None:
        target.copy_(source)
    if dist.is_initialized():
        dist.broadcast(target, 0)
