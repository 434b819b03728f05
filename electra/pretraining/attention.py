"""The fastest of torch's attention kernels for a run, by measurement.

Shape suffixes: B rows, L positions, N heads, D head size.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from electra.config import PretrainConfig
from electra.training.machine import Machine

KERNELS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)

Ranking = dict[str, list[str]]
"""Names of attention kernels, fastest first, for "masked" and "unmasked" rows."""


def rank_attention(config: PretrainConfig, machine: Machine) -> Ranking:
    """Return torch's attention kernels that support the discriminator's layers, fastest first.

    The timing covers forward and backward pass with the run's sizes and dropout. It leaves out the
    launches, because the replay of a CUDA graph does not launch kernels one by one.

    Args:
        config: Sizes, dropout and micro-batch size of the run.
        machine: Device and dtype.
    """
    return {
        name: [kernel.name for kernel in _rank(config, machine, masked=name == "masked")]
        for name in ("unmasked", "masked")
    }


def recorded_ranking(manifest: dict[str, Any], device: str) -> Ranking | None:
    """Return the ranking of the run's first session on a device; None if there was none.

    Kernels round differently. With the ranking of its first session, a resumed run goes on with the
    kernels that it began with.

    Args:
        manifest: From `read_manifest`.
        device: Name of the device.
    """
    for session in manifest["sessions"]:
        ranking: Ranking = session.get("step", {}).get("attention", {})
        if ranking and session.get("device") == device:
            return ranking
    return None


def find_kernels(ranking: Ranking, *, masked: bool) -> list[SDPBackend]:
    """Return the kernels of a ranking for rows with or without a mask, fastest first."""
    return [SDPBackend.__members__[name] for name in ranking["masked" if masked else "unmasked"]]


def exact_kernels(dropout_prob: float) -> list[SDPBackend]:
    """Return the kernels that drop exactly this share of the attention probabilities.

    cuDNN's kernels round the share to sixteenths. Source: pytorch issue 174245.
    """
    is_sixteenths = (16 * dropout_prob).is_integer()
    return [each for each in KERNELS if is_sixteenths or each != SDPBackend.CUDNN_ATTENTION]


def _rank(config: PretrainConfig, machine: Machine, *, masked: bool) -> list[SDPBackend]:
    sizes, train = config.model, config.train
    rows, length = train.micro_batch_size, config.examples.sequence_length
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
