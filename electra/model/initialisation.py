"""Initial weights: BERT's, or a start at which the first layer attends to neighbouring tokens.

With BERT's initial weights attention is nearly uniform, and the state at [MASK] says little about
its context. Masked language modelling then stays at the entropy of single tokens for thousands of
steps before attention learns that neighbours matter. The "neighbours" start skips these steps: the
first layer attends to the tokens beside, and the generator's bias is the logarithm of each token's
frequency. Only initial values differ; the networks and what they can learn are the same
(docs/PERFORMANCE.md has measurements).

Shape suffixes: H hidden size, E embedding size, D size of a head.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from electra.model.electra import Embeddings, PostNormLayer
from electra.model.encoder import Encoder
from electra.model.parts import TransformerLayer

SHARPNESS = 16.0
"""Expected score of the neighbour that a head looks at after `look_at_neighbours`, nats. The scores
of other positions have mean 0 and a deviation of about 4 at heads of 64, so that a head favours its
neighbour in half of all cases."""
OFFSETS = {"all": (1, -1), "before": (1, 1), "after": (-1, -1)}
"""From the tokens that heads look at, by turns, to the token itself, by what an encoder sees."""


class _DrawNothing(TorchFunctionMode):
    """Leaves embeddings on the meta device alone: to draw them, torch loads its compiler first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules with names and shapes, of which nothing is allocated or drawn."""
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


@torch.no_grad()
def look_at_neighbours(encoders: list[Encoder], std: float, rng: torch.Generator) -> None:
    """Let the first layer of encoders that share an embedding block attend to neighbouring tokens.

    Position embeddings become random Fourier features sqrt(2) std [sin(w t), cos(w t)] of position
    t, with w uniform in [0, pi): nearly orthogonal to one another, of the token embeddings' own
    deviation, and moved by an offset through a rotation. The keys of a head are its queries rotated
    by the offset, by turns one back and one ahead; of an encoder that sees one side, to that side.
    Value and output are an orthogonal matrix and its transpose, so that what is looked at is added
    as it is.

    Args:
        encoders: Encoders with one embedding block in common.
        std: Standard deviation of the token embeddings.
        rng: Source of all random numbers.
    """
    positions = cast(Embeddings, encoders[0].embeddings).positions.weight
    size = positions.shape[1]
    frequencies = math.pi * torch.rand(size // 2, generator=rng)
    phases = torch.arange(len(positions))[:, None] * frequencies
    positions.copy_(math.sqrt(2) * std * torch.cat([phases.sin(), phases.cos()], dim=1))
    for encoder in encoders:
        project_HE = torch.eye(encoder.config.hidden_size, size)
        if encoder.embeddings_project is not None:
            nn.init.orthogonal_(encoder.embeddings_project.weight, generator=rng)
            project_HE = encoder.embeddings_project.weight
        attention = cast(PostNormLayer, encoder.layers[0]).attention
        query_HH, key_HH, value_HH = attention.qkv.weight.chunk(3)
        for head, rows in enumerate(torch.arange(len(query_HH)).chunk(attention.num_heads)):
            looks_DE = torch.randn(len(rows), size, generator=rng)
            looks_DE *= math.sqrt(2 * SHARPNESS / (size * math.sqrt(len(rows))))
            query_HH[rows] = looks_DE @ project_HE.T
            offset = OFFSETS[encoder.sees][head % 2]
            key_HH[rows] = looks_DE @ _rotation(frequencies, offset) @ project_HE.T
        nn.init.orthogonal_(value_HH, generator=rng)
        attention.output.weight.copy_(2 * value_HH.T)


def _rotation(frequencies: Tensor, offset: int) -> Tensor:
    """Return the (E, E) matrix that turns the features of position t into those of t + offset."""
    cos, sin = (torch.diag(f(offset * frequencies)) for f in (torch.cos, torch.sin))
    return torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])
