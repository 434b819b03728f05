"""Working copies: the weights in the compute dtype, for the duration of a micro-batch.

Without working copies each layer casts its float32 weights and biases to the compute dtype, and the
gradients back to float32. These are sixteen small operations per layer, 384 in a step of
ELECTRA-Small, which cost noticeable time on a GPU, but not on a CPU. With working copies one
operation casts all weights before the forward pass, and one operation casts all gradients after the
backward pass.

The results are the same, except if a layer is used twice (method.sharing=all): the two gradients of
the layer are then added in the compute dtype.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from electra.model.encoder import Encoder
from electra.model.mixed_precision import Linear


class WorkingCopies:
    """Copies of the weights and biases of a model's encoders, except the embedding block.

    Args:
        model: The objective. Its parameters are replaced by the copies inside `at_work` only.
        dtype: Dtype of the copies: the encoders' compute_dtype.
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
        """Let the model compute with the copies; on exit add their gradients to the parameters'."""
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
        """Add the copies' gradients to the parameters' gradients, in float32."""
        learnt = [
            (master, copy.grad)
            for master, copy in zip(self.masters, self.copies, strict=True)
            if copy.grad is not None
        ]
        gradients: list[Tensor] = [torch.empty_like(master) for master, _ in learnt]
        torch._foreach_copy_(gradients, [gradient for _, gradient in learnt])
        earlier = [master.grad for master, _ in learnt if master.grad is not None]
        if earlier:  # from earlier micro-batches of the step
            torch._foreach_add_(gradients, earlier)
        for (master, _), gradient in zip(learnt, gradients, strict=True):
            master.grad = gradient
        for copy in self.copies:
            copy.grad = None
