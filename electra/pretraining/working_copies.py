"""Weights in the dtype they are multiplied in, for the length of a step.

A layer casts its float32 weights and biases where it uses them, and casts their gradients back:
sixteen small operations, 384 in a step of ELECTRA-Small, which a CPU does not notice; a GPU does.
With working copies all are cast by one operation before the losses, and all gradients by one after
them. The numbers are the same but where a layer is used twice (method.sharing=all): its two
gradients are then added in the lower precision.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from electra.model.encoder import Encoder
from electra.model.mixed_precision import Linear


class WorkingCopies:
    """Copies of the weights and biases inside a model's encoders, the embedding block excepted.

    Args:
        model: Its parameters stay where and what they are, but for the time of `at_work`.
        dtype: Of the copies: the encoders' compute_dtype.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        maps = {
            part: None
            for encoder in model.modules()
            if isinstance(encoder, Encoder)
            for part in encoder.modules()
            if isinstance(part, Linear)
        }
        self.places = [(part, name) for part in maps for name in dict(part.named_parameters())]
        self.masters = [part.get_parameter(name) for part, name in self.places]
        self.copies = [
            nn.Parameter(master.detach().to(dtype), requires_grad=master.requires_grad)
            for master in self.masters
        ]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the model compute with the copies, whose gradients become those of its parameters."""
        with torch.no_grad():
            torch._foreach_copy_(list[Tensor](self.copies), list[Tensor](self.masters))
        self._install(self.copies)
        try:
            yield
            self._hand_over()
        finally:
            self._install(self.masters)

    def _install(self, parameters: list[nn.Parameter]) -> None:
        for (part, name), parameter in zip(self.places, parameters, strict=True):
            part._parameters[name] = parameter

    @torch.no_grad()
    def _hand_over(self) -> None:
        """Add the copies' gradients to those of the parameters, in float32."""
        learnt = [
            (master, copy.grad)
            for master, copy in zip(self.masters, self.copies, strict=True)
            if copy.grad is not None
        ]
        gradients: list[Tensor] = [torch.empty_like(master) for master, _ in learnt]
        torch._foreach_copy_(gradients, [gradient for _, gradient in learnt])
        earlier = [master.grad for master, _ in learnt if master.grad is not None]
        if earlier:  # of another piece of the step
            torch._foreach_add_(gradients, earlier)
        for (master, _), gradient in zip(learnt, gradients, strict=True):
            master.grad = gradient
        for copy in self.copies:
            copy.grad = None
