"""An optimizer's update that can be left out without reading a value back from the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

Key = tuple[Tensor, str]
"""A parameter and the name of its state; the name is empty for the parameter itself."""


@torch.no_grad()
def update_unless(is_skipped: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Update the parameters, unless the flag is set.

    If it is set, parameters, moments and step counters keep their values, bit for bit. torch's
    fused AdamW looks at the flag in its kernels. With any other optimizer the update is computed,
    and the former values are put back; this takes a copy of parameters and moments.

    Args:
        is_skipped: Whether to leave the update out, a bool on the parameters' device. Gradients may
            then be NaN or infinite.
        optimizer: The optimizer, whose parameters have gradients.
    """
    if type(optimizer) is torch.optim.AdamW and optimizer.defaults["fused"]:
        optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]
        optimizer.step()
        return
    learning = [
        each
        for group in optimizer.param_groups
        for each in group["params"]
        if each.grad is not None
    ]
    before = {key: tensor.clone() for key, tensor in _tensors(optimizer, learning).items()}
    optimizer.step()
    for key, tensor in _tensors(optimizer, learning).items():
        former = before.get(key)  # the first update begins moments at 0
        former = torch.zeros_like(tensor) if former is None else former
        tensor.copy_(torch.where(is_skipped, former, tensor))


def _tensors(optimizer: torch.optim.Optimizer, learning: Sequence[Tensor]) -> dict[Key, Tensor]:
    tensors: dict[Key, Tensor] = {}
    for parameter in learning:
        tensors[parameter, ""] = parameter
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                tensors[parameter, name] = value
    return tensors
