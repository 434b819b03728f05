"""The machine that a program runs on: device, dtype, threads and rank, chosen once per program."""

import ctypes
import os
import platform
import sys
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import torch

from electra.errors import require
from electra.processes import find_place, read_processor, usable_cores

CPU = torch.device("cpu")
Precision = Literal["auto", "float32", "bfloat16"]
PEAK_SECONDS = 0.1
"""Time in which the peak is measured, at least."""


@dataclass(frozen=True)
class Machine:
    """Device, dtype, threads and rank of a process; a program calls `prepare_machine` once.

    The defaults describe one process with float32 on one CPU core, and change no setting of torch.
    """

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    """Dtype of activations and matrix products."""
    threads: int = 1
    """CPU threads."""
    rank: int = 0
    """Number of this process among the processes of a step, from 0."""
    num_ranks: int = 1
    """Number of processes that compute a step together."""

    @property
    def name(self) -> str:
        """Name of the GPU, or of the CPU with the number of threads, for manifests and results."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{read_processor()[0]}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def peak_memory(self) -> int:
        """Most memory so far, bytes: that of tensors on a GPU, else that of the process.

        0 on Windows.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if sys.platform == "win32":
            return 0
        if sys.platform == "linux":  # where getrusage begins with the peak of the parent
            status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
            _, name, rest = status.partition("VmHWM:")
            if name:
                return 1024 * int(rest.split()[0])
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def measure_peak(self) -> float:
        """Return the FLOP/s of the fastest of large matrix products in the machine's dtype.

        Products of three layouts are repeated for PEAK_SECONDS: the first ones run at a low clock.
        Numbers are random, because a GPU uses less power for equal ones.
        """
        size = 8192 if self.device.type == "cuda" else 1024
        rng = torch.Generator(self.device).manual_seed(0)
        options: dict[str, Any] = {"device": self.device, "generator": rng}
        a, b = torch.rand(2, size, size, **options).to(self.dtype).unbind()
        best, end = 0.0, time.perf_counter() + PEAK_SECONDS
        for left, right in cycle(((a, b.T), (a, b), (a.T, b))):
            self.wait()
            began = time.perf_counter()
            left @ right
            self.wait()
            ended = time.perf_counter()
            best = max(best, 2 * size**3 / (ended - began))
            if ended > end:
                break
        return best

    def seed_dropout(self, seed: int) -> None:
        """Seed what dropout draws from."""
        # torch.manual_seed formats the stack once for each kind of device that is not there.
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(seed)

    def wait(self) -> None:
        """Wait until the device has finished all queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def prepare_machine(
    device: Literal["auto", "cpu", "cuda"], precision: Precision, threads: int
) -> Machine:
    """Return the machine, and set this process's threads, memory allocator and kernel cache.

    Under torchrun each process has a CUDA device of its own, or its share of the cores. A device is
    "auto" as in `choose_device`; precision is bfloat16 if the hardware multiplies it natively, else
    float32; 0 threads are one per available core. Missing devices are refused.
    """
    place = find_place()
    chosen = choose_device(device)
    if chosen.type == "cuda" and place.num_ranks > 1:
        found = torch.cuda.device_count()
        require(
            place.num_local <= found,
            f"torchrun started {place.num_local} processes for {found} CUDA devices: give it "
            f"--nproc-per-node {found}",
        )
        chosen = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(chosen)
    threads = threads or max(1, usable_cores() // place.num_local)
    torch.set_num_threads(threads)
    _keep_freed_memory()
    # Read by oneDNN at its first product: each length of a batch needs some 20 kernels of its own.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    dtype = choose_dtype(precision, chosen)
    return Machine(chosen, dtype, threads, place.rank, place.num_ranks)


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device; "auto" is cuda if a CUDA device is available, else cpu."""
    has_cuda = torch.cuda.is_available()
    require(
        has_cuda or name != "cuda", "device cuda: this torch sees no CUDA device; use cpu or auto"
    )
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the compute dtype; "auto" is bfloat16 where the hardware multiplies it natively."""
    if precision != "auto":
        return getattr(torch, precision)
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = _cpu_multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16; on x86 oneDNN may emulate it, more slowly."""
    if not torch.backends.mkldnn.is_available():  # not in every build of torch
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory: a softmax over 302 x 30,522 takes 4.8 ms, not 14.3."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 2**31 - 1)
