"""ModernBERT's body with normalised queries and keys; the entry point is `query_key_norm:BODY`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from electra.model.modernbert import PreNormLayer, RotaryPlaces
from electra.model.modernbert_config import ModernBertConfig
from electra.model.parts import Body, LayerNorm, Linear, TokenEmbeddings


@dataclass(frozen=True, kw_only=True)
class NormedConfig(ModernBertConfig):
    """Settings of `model.architecture=normed`."""

    query_key_eps: float = 1e-6
    """Epsilon of the norms of queries and keys."""


class NormedProjection(Linear):
    """Queries, keys and values side by side; each head's queries and keys are normalised."""

    def __init__(self, config: NormedConfig):
        size = config.hidden_size
        super().__init__(size, 3 * size, bias=config.attention_bias)
        self.num_heads = config.num_attention_heads
        eps = config.query_key_eps
        self.query_norm = LayerNorm(config.head_size, eps=eps, bias=False)
        self.key_norm = LayerNorm(config.head_size, eps=eps, bias=False)

    def forward(self, x_BLH: Tensor) -> Tensor:
        """Map hidden states (B, L, H) to (B, L, 3H)."""
        q, k, v = super().forward(x_BLH).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        return torch.stack([self.query_norm(q), self.key_norm(k), v], dim=2).flatten(2)


class NormedLayer(PreNormLayer):
    """ModernBERT's layer with that projection."""

    def __init__(self, config: NormedConfig, number: int):
        super().__init__(config, number)
        self.attention.qkv = NormedProjection(config)


BODY = Body(NormedConfig, TokenEmbeddings, RotaryPlaces, NormedLayer, ends_with_norm=True)
