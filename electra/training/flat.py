"""The weights of a model in one long tensor, and so its gradients and the moments of AdamW.

The results are the same. An update of 300 small tensors takes nine kernels, each of which uses a
fifth of a GPU; an update of long ones is limited by memory alone. Working copies are one cast of
one tensor, and a sum over processes needs no copies.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import and_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Parameters begin at multiples of this: their 16-bit copies then at multiples of 128 bytes."""


class _Run(NamedTuple):
    """Neighbours that are updated as one tensor, which is a part of the buffer."""

    weights: nn.Parameter
    members: list[int]
    group: dict[str, Any]


class _Plan(NamedTuple):
    """The tensors that are updated where certain parameters have gradients."""

    runs: list[_Run]
    gradients: list[Tensor]
    """The parts of the gradients' buffer that are in use."""


class FlatBuffers:
    """The parameters of an optimizer in one buffer, and their gradients in another.

    The parameters stay those of the model, as views. The optimizer updates runs of neighbours,
    which belong to one group, have gradients and were updated equally often; a matrix of Muon is
    updated by itself. In the optimizer's `state` each parameter has its part of the moments, so
    that checkpoints are the same.

    Attributes:
        parameters: The optimizer's parameters, in the order of the buffers.
        weights: The buffer of the weights, with one dimension; 0 between two parameters.
        slots: The part of the gradients' buffer that belongs to each parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        members = [(each, group) for group in optimizer.param_groups for each in group["params"]]
        self.parameters: list[nn.Parameter] = [each for each, _ in members]
        self.groups: list[dict[str, Any]] = [group for _, group in members]
        lengths = (-(-each.numel() // ALIGNMENT) * ALIGNMENT for each in self.parameters)
        self.borders = [0, *accumulate(lengths)]
        self.weights = torch.zeros(self.borders[-1], device=self.parameters[0].device)
        self.gradients = torch.zeros_like(self.weights)
        for parameter, view in zip(self.parameters, self.view(self.weights), strict=True):
            parameter.data = view.copy_(parameter.detach())
        self.slots = dict(zip(self.parameters, self.view(self.gradients), strict=True))
        self.plans: dict[tuple[bool, ...], _Plan] = {}
        self.new_runs: list[_Run] = []
        """Runs of which the parameters do not have their parts of the moments yet."""
        optimizer.register_step_post_hook(lambda *_: self._show_moments())

    def view(self, buffer: Tensor, numbers: Sequence[int] | None = None) -> list[Tensor]:
        """Return the parts of a buffer that belong to neighbours, in the parameters' shapes.

        The buffer begins with the first of them; None: all parameters.
        """
        numbers = range(len(self.parameters)) if numbers is None else numbers
        parts = []
        for number in numbers:
            start, each = self.borders[number] - self.borders[numbers[0]], self.parameters[number]
            parts.append(buffer[start : start + each.numel()].view_as(each))
        return parts

    def gather(self) -> list[Tensor]:
        """Move the gradients into their buffer, and return its parts that are in use.

        The next update of the optimizer will be that of the parameters that have gradients.
        """
        has_gradient = tuple(each.grad is not None for each in self.parameters)
        if has_gradient not in self.plans:
            self.plans[has_gradient] = self._make_plan(has_gradient)
        plan = self.plans[has_gradient]
        moved = {
            each: each.grad
            for each in self.parameters
            if each.grad is not None and each.grad is not self.slots[each]
        }
        if moved:
            torch._foreach_copy_([self.slots[each] for each in moved], list(moved.values()))
        for each in moved:
            each.grad = self.slots[each]
        for group in self.optimizer.param_groups:
            if not group["num_blocks"]:
                group["params"] = [run.weights for run in plan.runs if run.group is group]
        return plan.gradients

    def _make_plan(self, has_gradient: tuple[bool, ...]) -> _Plan:
        """Return what is updated where these parameters have gradients, with its moments."""
        for other in [each for each in self.plans if any(map(and_, each, has_gradient))]:
            for run in self.plans.pop(other).runs:
                self.optimizer.state.pop(run.weights, None)
        keys = [self._find_key(number) for number in range(len(self.parameters))]
        runs, gradients = [], []
        for is_learnt, numbers in groupby(range(len(keys)), has_gradient.__getitem__):
            if is_learnt:
                stretch = list(numbers)
                gradients.append(self.gradients[self._locate(stretch)])
                for key, members in groupby(stretch, keys.__getitem__):
                    if key is not None:
                        runs.append(self._make_run(list(members)))
        self.new_runs += runs
        return _Plan(runs, gradients)

    def _find_key(self, number: int) -> tuple[int, float] | None:
        """Return what the members of a run have in common; None for a matrix of Muon."""
        group, state = self.groups[number], self.optimizer.state.get(self.parameters[number])
        if group["num_blocks"]:
            return None
        return id(group), state["step"].item() if state else -1

    def _make_run(self, numbers: list[int]) -> _Run:
        """Return a run of some parameters, with their moments if they have been updated."""
        place = self._locate(numbers)
        run = _Run(nn.Parameter(self.weights[place]), numbers, self.groups[numbers[0]])
        run.weights.grad = self.gradients[place]
        state = self.optimizer.state
        states = [state[self.parameters[number]] for number in numbers]
        for name, value in states[0].items():
            moments = value.clone()
            if value.dim():
                moments = torch.zeros_like(run.weights)
                parts = self.view(moments, numbers)
                torch._foreach_copy_(parts, [each[name] for each in states])
            state[run.weights][name] = moments
        return run

    def _show_moments(self) -> None:
        """Let each parameter's state be its part of the state of its run."""
        state = self.optimizer.state
        for run in self.new_runs:
            for name, value in state[run.weights].items():
                same = [value] * len(run.members)
                parts = self.view(value, run.members) if value.dim() else same
                for number, part in zip(run.members, parts, strict=True):
                    state[self.parameters[number]][name] = part
        self.new_runs = []

    def _locate(self, numbers: list[int]) -> slice:
        """Return the place of neighbours in a buffer."""
        return slice(self.borders[numbers[0]], self.borders[numbers[-1] + 1])
