"""Collectives of the processes that compute one step together, by torch.distributed.

torchrun starts the processes. Each holds the whole model, draws and counts over all rows of a step,
and computes its own rows; gradients are summed in one all-reduce (sharding.py divides the model
instead). Process 0 decides and writes. Without torchrun there is one process, and every function
here returns what it was given.

On a CPU the processes speak gloo; on CUDA devices NCCL for what is on the device, and gloo for what
the host has to know.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from electra.errors import UserError
from electra.processes import find_place
from electra.training.machine import Machine

TIMEOUT = timedelta(minutes=30)
"""Longest time that one process waits for the others, for example for an evaluation by process
0."""
SETTLE_SECONDS = 0.5
"""Time in which the threads of gloo let the last tensors go."""


@contextmanager
def joined(machine: Machine, timeout: timedelta = TIMEOUT) -> Iterator[None]:
    """Join the processes of a machine's step into one group, inside the context.

    Args:
        machine: The machine; nothing is joined if its process is alone.
        timeout: Longest time that one process waits for the others.

    Raises:
        UserError: Another process has ended, so that this one cannot go on.
    """
    if machine.num_ranks == 1:
        yield
        return
    # A thread of gloo that lets a tensor go while the interpreter ends aborts the process, so the
    # threads have to end before. These modules would keep them: imported while there is a group,
    # they bind it to the defaults of functions.
    import torch.distributed.fsdp
    import torch.distributed.nn.functional  # noqa: F401

    on_cuda = machine.device.type == "cuda"
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
    except RuntimeError as error:  # the group stays: nobody may be left to agree on its end
        if not _is_about_a_peer(error):
            raise
        raise UserError(
            f"process {machine.rank} of {machine.num_ranks}: another process of the run has ended"
        ) from error
    except Exception:
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
    """Replace the tensors by their sums over all processes, in one all-reduce of a flat bucket.

    Every process gets the same bits. torch's DistributedDataParallel would do the same, but it
    binds gradients to nodes that a CUDA graph of the whole step cannot have.
    """
    if not dist.is_initialized():
        return
    bucket = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(bucket)
    parts = bucket.split([tensor.numel() for tensor in tensors])
    sums = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(list(tensors), sums)


def gather_over_ranks(numbers: Tensor) -> Tensor:
    """Return the numbers (N,) of every process, on the CPU: (processes, N)."""
    if not dist.is_initialized():
        return numbers[None]
    found = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    dist.all_gather(found, numbers)
    return torch.stack(found)


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is set on any process."""
    if not dist.is_initialized():
        return flags
    numbers = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return tuple(bool(number) for number in numbers.tolist())


def wait_for_all(machine: Machine) -> None:
    """Wait until every process of a machine's step has come here."""
    if machine.num_ranks > 1:
        any_rank(True)


def from_rank_0(value: Any) -> Any:
    """Return the value of process 0, which JSON can hold; other processes give anything."""
    if not dist.is_initialized():
        return value
    is_first = dist.get_rank() == 0
    text = bytearray(json.dumps(value).encode()) if is_first else bytearray()
    length = torch.tensor([len(text)])
    dist.broadcast(length, 0)
    content = (
        torch.frombuffer(text, dtype=torch.uint8)
        if is_first
        else torch.empty(int(length), dtype=torch.uint8)
    )
    dist.broadcast(content, 0)
    return json.loads(bytes(content.tolist()))
