"""Initial weights: BERT's, and those that the released code leaves to its framework."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from electra.model.parts import TransformerLayer


class _DrawNothing(TorchFunctionMode):
    """Skips drawing embeddings on the meta device, for which torch would load its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules with names and shapes only; no weights are allocated or drawn."""
    with torch.device("meta"), _DrawNothing():
        yield


@torch.no_grad()
def init_weights(module: nn.Module, std: float, rng: torch.Generator) -> None:
    """Draw every weight below `module` from BERT's truncated normal; set biases to 0.

    A module shared by two parents is drawn once. An LSTM has torch's uniform start. ModernBERT's
    weights that write to the hidden states are then divided by sqrt(2 num_hidden_layers).

    Args:
        module: Linear maps, embeddings and LSTMs below it are drawn; norms stay as they are.
        std: Standard deviation of the normal, which is cut at two of them.
        rng: Source of all random numbers.

    Source: modeling.py create_initializer. The released code leaves some layers at its framework's
    default (`draw_glorot`); the paper does not mention it.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            _draw_truncated_normal(part.weight, std, rng)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()
        if isinstance(part, nn.LSTM):
            for weight in part.parameters():
                bound = part.hidden_size**-0.5
                nn.init.uniform_(weight, -bound, bound, generator=rng)
    for part in module.modules():
        if isinstance(part, TransformerLayer):
            part.scale_outputs()


def _draw_truncated_normal(weight: Tensor, std: float, rng: torch.Generator) -> None:
    """Draw a normal cut at two deviations; torch 2.11's own draws others than torch 2.13's."""
    weight.normal_(std=std, generator=rng)
    while (is_outside := weight.abs() > 2 * std).any():
        again = torch.empty_like(weight).normal_(std=std, generator=rng)
        weight.copy_(torch.where(is_outside, again, weight))


@torch.no_grad()
def draw_glorot(module: nn.Module, rng: torch.Generator) -> None:
    """Draw again, Glorot uniform, the weights for which the released code names no initialiser.

    These are the projections behind the embeddings, the discriminator's last layer and the heads
    of question answering below `module`.
    """
    for part in module.modules():
        for layer in getattr(part, "without_initialiser", ()):
            nn.init.xavier_uniform_(layer.weight, generator=rng)
