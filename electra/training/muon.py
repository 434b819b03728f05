"""Muon: momentum updates of matrices, made orthogonal; AdamW for all other parameters.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the scale of
an update is that of Liu et al. 2025, "Muon is scalable for LLM training" (section 2.2), which
gives an update the root mean square of AdamW's. One learning rate then serves both.
torch.optim.Muon lacks `found_inf` and `grad_scale`, the blocks of a joint qkv matrix and updates of
all matrices of one shape at once.
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""In the quintic a X + b (X X') X + c (X X')^2 X. Five iterations bring every singular value
between 0.002 and 1 into [0.7, 1.2]."""
UPDATE_RMS = 0.2
"""Root mean square of an update's elements at learning rate 1; about that of AdamW's updates."""


class Muon(torch.optim.AdamW):
    """Muon for the parameter groups with "num_blocks" above 0, and AdamW for the others.

    The parameters of a group with "num_blocks" n consist of n matrices of equal size, one below the
    other (3 for query, key and value), each of which is made orthogonal by itself.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if group["num_blocks"]:
                self._update_matrices(group)
        super().step()

    def _update_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
        rate, num_blocks = group["lr"], group["num_blocks"]
        is_skipped, divisor = read_flags(self, group["params"][0].device)
        rate = rate * ~is_skipped
        for (num_rows, num_columns), matrices in by_shape.items():
            for each in matrices:
                if not self.state[each]:
                    self.state[each]["momentum"] = torch.zeros_like(each)
            grads = [each.grad for each in matrices if each.grad is not None]
            momenta = [self.state[each]["momentum"] for each in matrices]
            grads = [  # the momentum in place of its gradient changes nothing
                torch.where(is_skipped, momentum, grad / divisor)
                for momentum, grad in zip(momenta, grads, strict=True)
            ]
            torch._foreach_lerp_(momenta, grads, 1 - MOMENTUM)
            nesterov = torch.stack(torch._foreach_lerp(grads, momenta, MOMENTUM))
            size = num_rows // num_blocks
            updates = orthogonalise(nesterov.view(-1, size, num_columns)).reshape(nesterov.shape)
            updates = updates * (rate * UPDATE_RMS * math.sqrt(max(size, num_columns)))
            torch._foreach_mul_(matrices, 1 - rate * group["weight_decay"])
            torch._foreach_sub_(matrices, list(updates.unbind()))
            for each in matrices:
                each.grad = None  # AdamW passes over parameters without a gradient


def read_flags(optimizer: torch.optim.Optimizer, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return whether an update is left out, and what its gradients are divided by, on the device.

    torch's fused optimizers read the same two attributes; without them nothing is changed.
    """
    found_inf = getattr(optimizer, "found_inf", torch.zeros((), device=device))
    return found_inf.bool(), getattr(optimizer, "grad_scale", torch.ones((), device=device))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices (N, rows, columns) with all singular values brought near 1.

    The computation is in bfloat16 on a CUDA device, as published, else in the dtype of `matrices`.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if not x.is_cuda and x.shape[2] >= 2 * x.shape[1]:
        x = _iterate_gram(x @ x.mT) @ x
    else:
        x = x.bfloat16() if x.is_cuda else x
        for _ in range(ITERATIONS):
            gram = x @ x.mT
            x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)


def _iterate_gram(gram: Tensor) -> Tensor:
    """Return the matrices (N, rows, rows) with which all iterations together multiply X."""
    # An iteration multiplies X by a polynomial Q of G = X X', and G becomes Q G Q: a wide X is
    # not touched before the end. In bfloat16 G would lose the small singular values.
    factor = product = _find_factor(gram)
    for _ in range(ITERATIONS - 1):
        gram = factor @ gram @ factor
        factor = _find_factor(gram)
        product = factor @ product
    return product


def _find_factor(gram: Tensor) -> Tensor:
    """Return Q of one iteration, (N, rows, rows)."""
    a, b, c = COEFFICIENTS
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor
