"""The machine that a program runs on: chosen once, and handed to all that needs to know it."""

import ctypes
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from electra.config import UserError, require
from electra.model.fused_layer import FusedPostNormLayer
from electra.model.layer import PostNormLayer
from electra.processes import usable_cores

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Machine:
    """Device, dtype and place among the processes; a program makes it once (`prepare_machine`).

    As it is without arguments it is one process with float32 on one core, set up by nobody.
    """

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    """Of activations and matrix products."""
    threads: int = 1
    """Of the CPU."""
    rank: int = 0
    """Number of this process among those that compute a step together, from 0."""
    num_ranks: int = 1

    @property
    def name(self) -> str:
        """The device's own name, for manifests and results."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{_processor()}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def wait(self) -> None:
        """Return when the device has done all that it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def prepare_machine(
    device: Literal["auto", "cpu", "cuda"],
    precision: Literal["auto", "float32", "bfloat16"],
    threads: int,
) -> Machine:
    """Choose the device and its dtype, and set this process up for computing.

    Args:
        device: auto: a CUDA device if there is one.
        precision: auto: bfloat16 where the hardware multiplies it natively.
        threads: Of the CPU; 0: one for each core that the process may use.

    Raises:
        UserError: cuda was asked for and there is none.
    """
    chosen = choose_device(device)
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    _keep_freed_memory()
    return Machine(chosen, choose_dtype(precision, chosen), threads)


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device; "auto" is a CUDA device if there is one.

    Raises:
        UserError: cuda was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: this torch sees no CUDA device; use cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_dtype(
    precision: Literal["auto", "float32", "bfloat16"], device: torch.device
) -> torch.dtype:
    """Return the compute dtype; "auto" is bfloat16 where the hardware multiplies it natively."""
    if precision != "auto":
        return getattr(torch, precision)
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = _cpu_multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    """Return whether the CPU has instructions for products of bfloat16.

    On x86 oneDNN also says yes where it emulates them, at a quarter of float32's speed.
    """
    if not torch.backends.mkldnn.is_available():  # not in every build of torch
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_layers(
    setting: Literal["auto", "plain", "fused"], device: torch.device, *, compiled: bool
) -> type[PostNormLayer]:
    """Return the class that encoders are built of; "auto" is the fastest.

    Args:
        setting: `train.layers` of a pre-training, `layers` of a fine-tuning.
        device: Where the networks run.
        compiled: Whether torch.compile was asked for; it needs, and speeds up, the plain layers.

    Raises:
        UserError: Fused layers were asked for where they cannot run.
    """
    can_fuse = device.type == "cpu" and not compiled
    place = "a compiled step" if compiled else f"device {device.type}"
    require(
        can_fuse or setting != "fused",
        f"layers fused: they are for a CPU without torch.compile, not for {place}; use plain or "
        "auto",
    )
    return FusedPostNormLayer if can_fuse and setting != "plain" else PostNormLayer


def _keep_freed_memory() -> None:
    """Let the process keep the memory that it frees.

    glibc hands large blocks back to the system when they are freed, and every step then pays for
    mapping them in anew: on two cores a softmax over 302 x 30,522 logits took 14.3 ms, with the
    blocks kept 4.8 ms.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 2**31 - 1)


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
