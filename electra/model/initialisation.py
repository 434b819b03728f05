"""How weights begin: as BERT's, or so that a short run does not waste its first half.

With BERT's weights attention is uniform at first and [MASK] hears nothing in particular of its
context; masked language modelling then stands at the entropy of single tokens for thousands of
steps before attention finds out that neighbours matter. The "neighbours" start skips that: the
first layer looks at the tokens beside, and the generator's bias is the frequency of each token. It
sets initial values only; the networks and what they can learn are the same (docs/PERFORMANCE.md has
what it gives).
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from electra.model.encoder import Encoder, Layer, Linear
from electra.model.heads import DiscriminatorHead
from electra.model.span_heads import BeamSpanHead, SpanHead

SHARPNESS = 16.0
"""Expected score of the position looked at, in nats; that of the others is 0, with a deviation of
about 4 at heads of 64, so that a head favours its neighbour in half of all cases."""


@torch.no_grad()
def init_weights(module: nn.Module, std: float, rng: torch.Generator) -> None:
    """Draw every weight below `module` from BERT's normal cut at two deviations; biases become 0.

    A module shared by two parents is drawn once; an LSTM begins as torch's, uniform. Source:
    modeling.py create_initializer. The released code leaves some layers at its framework's default
    (`draw_glorot`); the paper does not mention it.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std, generator=rng)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()
        if isinstance(part, nn.LSTM):
            for weight in part.parameters():
                bound = part.hidden_size**-0.5
                nn.init.uniform_(weight, -bound, bound, generator=rng)


@torch.no_grad()
def draw_glorot(module: nn.Module, rng: torch.Generator) -> None:
    """Draw again, Glorot uniform, what the released code names no initialiser for.

    These are the projections behind the embeddings, the discriminator's last layer and the heads
    that answer questions.
    """
    for part in module.modules():
        if isinstance(part, Encoder) and part.embeddings_project is not None:
            nn.init.xavier_uniform_(part.embeddings_project.weight, generator=rng)
        if isinstance(part, DiscriminatorHead):
            nn.init.xavier_uniform_(part.dense_prediction.weight, generator=rng)
        if isinstance(part, SpanHead | BeamSpanHead):
            for layer in part.children():
                nn.init.xavier_uniform_(cast(Linear, layer).weight, generator=rng)


@torch.no_grad()
def look_at_neighbours(encoders: list[Encoder], std: float, rng: torch.Generator) -> None:
    """Let the first layer of encoders that share an embedding block attend to the tokens beside.

    Positions become random Fourier features sqrt(2) std [sin(w t), cos(w t)] with w uniform in
    [0, pi): nearly orthogonal to one another, of the tokens' own deviation, and moved by an offset
    through a rotation. Heads look by turns one token back and one ahead: their keys are their
    queries rotated by that offset. Values and outputs are an orthogonal matrix and its transpose,
    so that what is looked at is added as it is.
    """
    positions = encoders[0].embeddings.positions.weight
    size = positions.shape[1]
    frequencies = math.pi * torch.rand(size // 2, generator=rng)
    phases = torch.arange(len(positions))[:, None] * frequencies
    positions.copy_(math.sqrt(2) * std * torch.cat([phases.sin(), phases.cos()], dim=1))
    for encoder in encoders:
        project = torch.eye(encoder.config.hidden_size, size)
        if encoder.embeddings_project is not None:
            nn.init.orthogonal_(encoder.embeddings_project.weight, generator=rng)
            project = encoder.embeddings_project.weight
        attention = cast(Layer, encoder.layers[0]).attention
        query, key, value = attention.qkv.weight.chunk(3)
        head_size = len(query) // attention.num_heads
        for head in range(attention.num_heads):
            rows = slice(head * head_size, (head + 1) * head_size)
            looks = torch.randn(head_size, size, generator=rng)
            looks *= math.sqrt(2 * SHARPNESS / (size * math.sqrt(head_size)))
            query[rows] = looks @ project.T
            key[rows] = looks @ _rotation(frequencies, -1 if head % 2 else 1) @ project.T
        nn.init.orthogonal_(value, generator=rng)
        attention.output.weight.copy_(2 * value.T)


def _rotation(frequencies: Tensor, offset: int) -> Tensor:
    """Return the matrix that turns the features of position t into those of t + offset."""
    cos, sin = (torch.diag(f(offset * frequencies)) for f in (torch.cos, torch.sin))
    return torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])
