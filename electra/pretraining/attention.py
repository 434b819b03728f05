"""Which of torch's attention kernels is the fastest here, by measurement."""

import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

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


def rank_attention(config: PretrainConfig, machine: Machine, *, masked: bool) -> list[SDPBackend]:
    """Return torch's attention kernels that can do a layer of the discriminator, fastest first.

    Forward and backward are timed with the run's sizes and dropout, with a mask or without; what
    it takes to launch them is not, since a replay does not launch them one by one.
    """
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
        context_BNLD.backward(torch.ones_like(context_BNLD))  # laid out as a layer's gradient is

    seconds = {}
    for kernel in KERNELS:
        with warnings.catch_warnings(), sdpa_kernel(kernel), suppress(RuntimeError):
            warnings.simplefilter("ignore")  # why a kernel cannot
            seconds[kernel] = statistics.median(_time(attend, device) for _ in range(7))
    return sorted(seconds, key=seconds.__getitem__)


def _time(work: Callable[[], None], device: torch.device) -> float:
    """Return the seconds that some work takes on its device, its launch left out."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1 << 25)  # cycles, some 20 ms, in which all that follows is launched
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1000
