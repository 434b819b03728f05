"""Which device, dtype, threads and layers a run uses."""

import ctypes
import platform
import sys
from pathlib import Path
from typing import Literal

import torch

from electra.config import UserError, require
from electra.model.fused_layer import FusedPostNormLayer
from electra.model.layer import PostNormLayer
from electra.processes import usable_cores


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
        onednn = torch.backends.mkldnn.is_available()  # not in every build of torch
        native = onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


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


def prepare_process(threads: int) -> None:
    """Set the CPU threads (0: one per usable core) and keep freed memory in the process.

    glibc hands large blocks back to the system when they are freed, and every step then pays for
    mapping them in anew: on two cores a softmax over 302 x 30,522 logits took 14.3 ms, with the
    blocks kept 4.8 ms.
    """
    torch.set_num_threads(threads or usable_cores())
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 2**31 - 1)


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe_device(device: torch.device) -> str:
    """Return the device's own name, for manifests and results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"
