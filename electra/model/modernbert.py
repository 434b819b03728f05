"""ModernBERT's body: pre-norm layers, rotary positions, a gated feed-forward, local attention.

The graph is that of transformers' ModernBertModel, parameter for parameter. `PreNormLayer` is the
definition of a layer. `fused/` computes the same faster on a CPU. An encoder can use either
class; both have the same parameters under the same names.

A layer with local attention attends to a window. In short rows all scores are computed, and the
mask hides those outside the window. In long rows the positions are cut into blocks as long as half
a window, and the queries of a block meet the keys of their own block and of the two beside it: the
cost then grows with the length of a row, not with its square.

Shape suffixes: B rows of the batch, L positions, H hidden size, N heads, D size of a head
(H = N * D), F feed-forward size, C positions of a block, J = ceil(L / C) blocks, K = 3C keys that
a block meets.

Source: Warner et al. 2024, "Smarter, Better, Faster, Longer" (ModernBERT); transformers
models/modernbert/modeling_modernbert.py.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.electra import SelfAttention
from electra.model.modernbert_config import ModernBertConfig
from electra.model.parts import (
    Body,
    Dropout,
    DropoutMasks,
    Linear,
    Sight,
    TokenEmbeddings,
    TransformerLayer,
    attend,
    is_any_length,
    make_norm,
)


class Places(NamedTuple):
    """Where the positions of a batch are, and which of them attend to which."""

    mask: Tensor | None
    """Added to the attention scores: broadcasts to (B, N, L, L), or in blocks to (B, N, J, C, K).
    None: every position is seen."""
    cos_LD: Tensor
    """Cosine of a position's angles. Both halves of a head have the same angles."""
    sin_LD: Tensor
    """Sine of the angles; its first half has the opposite sign."""
    block: int
    """Positions of a block, C, half a window; 0: no blocks."""
    has_rows: bool = False
    """In blocks: whether nothing but the window and padding behind a row hides a position."""
    lengths_B: Tensor | None = None
    """With `has_rows`: positions before the padding; None: nothing is padding."""

    def rotate(self, x: Tensor) -> Tensor:
        """Return queries or keys (..., L, D) turned by the angles of their positions."""
        turned = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)
        return (x.float() * self.cos_LD + turned.float() * self.sin_LD).to(x.dtype)

    def cut(self, x_BNLD: Tensor) -> Tensor:
        """Return positions in blocks (B, N, J, C, D), zeros behind the last one."""
        missing = -x_BNLD.shape[2] % self.block
        return F.pad(x_BNLD, (0, 0, 0, missing)).unflatten(2, (-1, self.block))

    def cut_with_neighbours(self, x_BNLD: Tensor) -> Tensor:
        """Return each block between the two beside it (B, N, J, K, D), zeros outside the row."""
        missing = -x_BNLD.shape[2] % self.block
        x = F.pad(x_BNLD, (0, 0, self.block, missing + self.block))
        return x.unfold(2, 3 * self.block, self.block).transpose(-1, -2)


class RotaryPlaces(nn.Module):
    """Position information for ModernBERT's layers: a `Places` for each kind of attention.

    Documents need no rotary positions of their own: the score of two rotated vectors depends on the
    difference of their positions only.
    """

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.config = config

    def forward(self, sight: Sight) -> list[Places]:
        """Return the places of each layer."""
        kinds = [self.config.is_local(each) for each in range(self.config.num_hidden_layers)]
        places = {is_local: self._find(sight, is_local) for is_local in sorted(set(kinds))}
        return [places[is_local] for is_local in kinds]

    def _find(self, sight: Sight, is_local: bool) -> Places:
        config, length = self.config, sight.length
        theta = config.local_rope_theta if is_local else config.global_rope_theta
        places = Places(None, *_find_angles(length, config.head_size, theta, sight.device), 0)
        forbidden, half = sight.find_forbidden(), config.local_attention // 2
        # An exported graph is for rows of any length, so its local layers always have a mask.
        any_length = is_any_length()
        if is_local and (any_length or half < length - 1):
            block = 0 if any_length else find_block(length, half)
            if block:
                has_rows = sight.documents_BL is None and sight.sees == "all"
                lengths_B = None if sight.real_BL is None else sight.real_BL.sum(dim=1)
                places = places._replace(block=block, has_rows=has_rows, lengths_B=lengths_B)
                forbidden = _forbid_in_blocks(places, sight)
            else:
                position_L = torch.arange(length, device=sight.device)
                is_far_LL = (position_L[:, None] - position_L).abs() > half
                forbidden = is_far_LL[None, None] if forbidden is None else forbidden | is_far_LL
        return places._replace(mask=sight.make_mask(forbidden))


def find_block(length: int, half_window: int) -> int:
    """Return the length of a block of local attention; 0 if the scores of all pairs are fewer."""
    num_blocks = math.ceil(length / half_window)
    return half_window if num_blocks * 3 * half_window**2 < length**2 else 0


def _find_angles(
    length: int, head_size: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine of the angles of all positions (L, D), float32."""
    # Su et al. 2021, "RoFormer"; the halves of a head are paired, as in transformers.
    pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / theta ** (pairs / head_size)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = positions[:, None] * frequencies
    sin = angles.sin()
    return angles.cos().repeat(1, 2), torch.cat([-sin, sin], dim=1)


def _forbid_in_blocks(places: Places, sight: Sight) -> Tensor:
    """Return True where a score in blocks does not count: (1, 1, J, C, K), or with B rows."""
    length, block, device = sight.length, places.block, sight.device
    starts_J11 = block * torch.arange(math.ceil(length / block), device=device)[:, None, None]
    query_JC1 = starts_J11 + torch.arange(block, device=device)[:, None]
    key_J1K = starts_J11 + torch.arange(-block, 2 * block, device=device)
    forbidden_JCK = (query_JC1 - key_J1K).abs() > block
    forbidden_JCK = forbidden_JCK | (key_J1K < 0) | (key_J1K >= length)
    if sight.sees == "before":
        forbidden_JCK = forbidden_JCK | (key_J1K > query_JC1)
    if sight.sees == "after":
        forbidden_JCK = forbidden_JCK | (key_J1K < query_JC1)
    forbidden = forbidden_JCK[None, None]
    numbers_BL = sight.real_BL if sight.documents_BL is None else sight.documents_BL
    if numbers_BL is not None:
        numbers_B1L1 = numbers_BL.long()[:, None, :, None]
        of_key = places.cut_with_neighbours(numbers_B1L1).transpose(-1, -2)  # (B, 1, J, 1, K)
        of_query = places.cut(numbers_B1L1)  # (B, 1, J, C, 1)
        forbidden = forbidden | (of_key == 0 if sight.documents_BL is None else of_query != of_key)
    return forbidden


class RotaryAttention(SelfAttention):
    """Multi-head attention whose queries and keys are rotated by their position."""

    def __init__(self, config: ModernBertConfig):
        super().__init__(config, has_bias=config.attention_bias)

    def forward(  # type: ignore[override]  # the encoder hands each layer its own kind of places
        self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None
    ) -> Tensor:
        """Return the attention output (B, L, H); arguments as in `PreNormLayer.forward`."""
        B, L, H = x_BLH.shape
        qkv_3BNLD = self.qkv(x_BLH).view(B, L, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        (q, k), v = places.rotate(qkv_3BNLD[:2]).unbind(0), qkv_3BNLD[2]
        if places.block:
            q, k, v = places.cut(q), places.cut_with_neighbours(k), places.cut_with_neighbours(v)
        context_BNLD = attend(q, k, v, places.mask, self.dropout, masks)
        if places.block:
            context_BNLD = context_BNLD.flatten(2, 3)[:, :, :L]
        attended_BLH = self.output(context_BNLD.transpose(1, 2).reshape(B, L, H))
        return self.dropout(attended_BLH, masks)


class PreNormLayer(TransformerLayer):
    """Attention and feed-forward, each on normalised states, with a residual: the definition.

    Every sub-module is called, so that forward hooks see its input and output and a replaced one
    (an adapter) takes part. Layer 0 has no norm before the attention, since the embeddings are
    normalised. The number also decides whether attention is local.
    """

    def __init__(self, config: ModernBertConfig, number: int):
        super().__init__()
        self.half_window = config.local_attention // 2 if config.is_local(number) else 0
        self.num_layers = config.num_hidden_layers
        inner_size, has_bias = config.intermediate_size, config.mlp_bias
        self.attention_norm = make_norm(config) if number else None
        self.attention = RotaryAttention(config)
        self.feed_forward_norm = make_norm(config)
        self.intermediate_and_gate = Linear(config.hidden_size, 2 * inner_size, bias=has_bias)
        self.output = Linear(inner_size, config.hidden_size, bias=has_bias)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None) -> Tensor:
        """Return the hidden states (B, L, H) after this layer, as `PostNormLayer.forward`.

        The places are from `RotaryPlaces`, for this layer's kind of attention.
        """
        normed_BLH = x_BLH if self.attention_norm is None else self.attention_norm(x_BLH)
        x_BLH = x_BLH + self.attention(normed_BLH, places, masks)
        inner_BLF, gate_BLF = self.intermediate_and_gate(self.feed_forward_norm(x_BLH)).chunk(2, -1)
        return x_BLH + self.output(self.dropout(F.gelu(inner_BLF) * gate_BLF, masks))

    @torch.no_grad()
    def scale_outputs(self) -> None:
        """Divide what writes to the hidden states by sqrt(2 num_hidden_layers).

        Source: transformers' ModernBertPreTrainedModel, after Megatron-LM.
        """
        for linear in (self.attention.output, self.output):
            linear.weight.div_(math.sqrt(2 * self.num_layers))

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations per position of the forward pass on rows of `length`, by part."""
        size, inner_size = self.output.out_features, self.output.in_features
        name, num_keys = "attention, scores and sums", float(length)
        if self.half_window:
            name = "local attention, scores and sums"
            if block := find_block(length, self.half_window):
                num_keys = 3 * block * math.ceil(length / block) * block / length
        return {
            "attention, projections": 8 * size * size,
            name: 4 * size * num_keys,
            "feed-forward": 6 * size * inner_size,
        }


BODY = Body(
    ModernBertConfig,
    TokenEmbeddings,
    RotaryPlaces,
    PreNormLayer,
    "pre_norm:FusedPreNormLayer",
    "TritonPreNormLayer",
    ends_with_norm=True,
)
