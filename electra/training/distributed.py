"""The processes that compute one step together: their collectives, and a model divided among them.

torchrun starts the processes. Each holds the whole model, and reads and computes its own rows of a
step; counts and gradients are summed, each in one all-reduce. Process 0 decides and writes.
Without torchrun there is one process, and every function here returns what it was given. On a CPU
the processes use gloo. On CUDA devices they use NCCL for tensors on the device, and gloo for values
that the host needs.

`shard` divides the model by torch's FSDP2. Each process then keeps a part of every parameter, of
its gradient and of the optimizer's moments, and gathers the whole weights of a layer when it
computes the layer. Gradients are summed, not averaged, because the losses of the processes are
shares of one sum (step.py). Checkpoints hold whole tensors in the plain form: process 0 gathers one
tensor at a time and writes, so that a run continues with any number of processes, divided or not.
torch.distributed.checkpoint would write a file per process, faster, and with pickled metadata that
would have to be trusted. torch's modules for this take a second or more to import, so that only
divided models import them.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from electra.errors import UserError, require
from electra.processes import Interrupted, find_place, follow_launcher
from electra.training.machine import Machine

TIMEOUT = timedelta(hours=6)
"""Longest time that one process waits for the others, for example for process 0 that compares the
hashes of all shards. torchrun ends them at once if a process has ended."""
LONG = 1 << 20
"""Tensors of at least this many numbers are summed alone, not in a bucket."""
SETTLE_SECONDS = 0.5
"""Time in which the threads of gloo let the last tensors go."""


@contextmanager
def joined(
    machine: Machine, timeout: timedelta = TIMEOUT, *, on_host: bool = False
) -> Iterator[None]:
    """Join the processes of a machine's step into one group, inside the context.

    The processes end when torchrun, which started them, ends. If another process has ended, this
    one raises a UserError. `on_host`: whether they exchange only values on the host, so that NCCL
    takes no time and no memory.
    """
    follow_launcher()
    if machine.num_ranks == 1:
        yield
        return
    # A gloo thread that releases a tensor while the interpreter exits aborts the process, so the
    # threads must end before. If these modules were imported while a group exists, they would keep
    # the group and its threads in the defaults of functions.
    import torch.distributed.fsdp
    import torch.distributed.nn.functional  # noqa: F401

    on_cuda = machine.device.type == "cuda" and not on_host
    store, rank, num_ranks = next(dist.rendezvous("env://", timeout=timeout))
    if find_place().num_local == num_ranks:
        # torchrun keeps its store when it starts the processes anew, with the addresses of the
        # former ones in it, and gloo would wait for these. On several machines the number of starts
        # differs; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun begin with a new store.
        store = dist.PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=num_ranks,
        timeout=timeout,
        device_id=machine.device if on_cuda else None,
    )
    try:
        yield
    except RuntimeError as error:  # keep the group: ending it may need processes that are gone
        if not _is_about_a_peer(error):
            raise
        raise UserError(
            f"process {machine.rank} of {machine.num_ranks}: another process of the run has "
            "ended, or did not answer"
        ) from error
    except Exception as error:
        # Ending NCCL is a collective: after an error of this process alone, it would wait for the
        # others, which do not know of it. The exit status makes torchrun end them.
        if not on_cuda or isinstance(error, Interrupted):
            _leave()
        raise
    _leave()


def _leave() -> None:
    """End the group. Caches of a divided model keep it and its threads, which need a moment."""
    dist.destroy_process_group()
    time.sleep(SETTLE_SECONDS)


def _is_about_a_peer(error: RuntimeError) -> bool:
    """Return whether a collective failed because another process is gone."""
    words = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def sum_over_ranks(tensors: Sequence[Tensor]) -> None:
    """Replace the tensors by their sums over all processes.

    Small tensors share one all-reduce of a flat bucket, long ones have one each. Every process gets
    the same bits. torch's DistributedDataParallel would do the same, but it binds gradients to
    nodes that a CUDA graph of the whole step cannot have.
    """
    if not dist.is_initialized():
        return
    small = []
    for each in tensors:
        if each.numel() >= LONG and each.is_contiguous():
            dist.all_reduce(each)
        else:
            small.append(each)
    if small:
        bucket = torch.cat([each.flatten() for each in small])
        dist.all_reduce(bucket)
        parts = bucket.split([each.numel() for each in small])
        sums = [part.view_as(each) for part, each in zip(parts, small, strict=True)]
        torch._foreach_copy_(small, sums)


def gather_over_ranks(numbers: Tensor) -> Tensor:
    """Return the numbers (N,) of every process, on the CPU: (processes, N)."""
    if not dist.is_initialized():
        return numbers[None]
    found = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    dist.all_gather(found, numbers)
    return torch.stack(found)


def find_odd_weights(model: nn.Module) -> dict[int, str]:
    """Return the processes whose weights differ from process 0, and the first weight that differs.

    Equal sums lead to equal updates only if all processes decide alike: a kernel that rounds in
    another order may reach another verdict on a step, and no loss would show it. The weights' bits
    are added as integers, so that the order does not matter. All processes get the same answer.
    """
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    weights = {name: each.detach() for name, each in model.named_parameters()}
    bits = [
        each.view(kinds[each.element_size()]).sum(dtype=torch.int64) for each in weights.values()
    ]
    sums = gather_over_ranks(torch.stack(bits).cpu())
    return {
        rank: next(name for name, is_odd in zip(weights, odd, strict=True) if is_odd)
        for rank, odd in enumerate((sums != sums[0]).tolist())
        if any(odd)
    }


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is set on any process."""
    return ask_any_rank(*flags)()


def ask_any_rank(*flags: bool) -> Callable[[], tuple[bool, ...]]:
    """Ask for each flag whether it is set on any process, and return a function that waits for it.

    Each process calls it once, at the latest before the group ends.
    """
    if not dist.is_initialized():
        return lambda: flags
    numbers = torch.tensor(flags, dtype=torch.int32)
    found = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    work = dist.all_gather(found, numbers, async_op=True)

    def answer() -> tuple[bool, ...]:
        work.wait()
        return tuple(torch.stack(found).bool().any(0).tolist())

    return answer


def wait_for_all(machine: Machine) -> None:
    """Wait until every process of a machine's step has come here."""
    if machine.num_ranks > 1:
        any_rank(True)


def from_rank_0(value: Any) -> Any:
    """Return the value of process 0, which can be pickled; ignore that of other processes."""
    values = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(values, 0)
    return values[0]


def count_parts(sharding: Literal["none", "full", "hybrid"], machine: Machine) -> int:
    """Return the number of parts into which `train.sharding` divides the model; 1: it is whole.

    With sharding hybrid, machines of different numbers of processes are refused.
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

    sizes: tuple[int, ...] = (num_parts,)
    names: tuple[str, ...] = ("parts",)
    if machine.num_ranks > num_parts:
        sizes, names = (machine.num_ranks // num_parts, num_parts), ("copies", "parts")
    mesh = init_device_mesh(machine.device.type, sizes, mesh_dim_names=names)
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
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # of DTensor


@torch.no_grad()
def spread(source: Tensor | None, target: Tensor) -> None:
    """Copy process 0's source into the target of every process, each its part of a divided one.

    The source is a whole tensor of the target's shape. None: this is another process, or process 0
    has the values in its target, which is not divided.
    """
    if hasattr(target, "full_tensor"):
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
