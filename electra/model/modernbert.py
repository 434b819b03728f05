"""One layer of ModernBERT: pre-norm, rotary positions, a gated feed-forward, local attention.

The graph is that of transformers' ModernBertModel, parameter for parameter. `PreNormLayer` is the
definition of a layer. `fused.py` computes the same faster on a CPU; an encoder is
built of either class, which have the same parameters under the same names.

A layer with local attention attends to a window. In short rows all scores are computed, and the
mask hides those outside the window. In long rows the positions are cut into blocks as long as half
a window, and the queries of a block meet the keys of their own block and of the two beside it: the
cost then grows with the length of a row, not with its square.

Shape suffixes: B rows of the batch, L positions, H hidden size, N heads, D size of a head
(H = N * D), F feed-forward size, C positions of a block, J = ceil(L / C) blocks, K = 3C keys that
a block meets, X keys of a query: L, or K in blocks.

Source: Warner et al. 2024, "Smarter, Better, Faster, Longer" (ModernBERT); transformers
models/modernbert/modeling_modernbert.py.
"""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import EncoderConfig
from electra.model.parts import Dropout, DropoutMasks, LayerNorm, Linear

Sees = Literal["all", "before", "after"]


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
    """Positions of a block; 0: no blocks."""


class ModernEmbeddings(nn.Module):
    """Token embeddings, normalised: ids (B, L) to (B, L, H). Positions are the layers' business."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = make_norm(config)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, L, H), float32; there are no segments."""
        return self.norm(self.tokens(input_ids_BL))


def make_norm(config: EncoderConfig) -> LayerNorm:
    """Return a layer norm of the hidden size, with a bias if the config has it."""
    return LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


class RotaryAttention(nn.Module):
    """Multi-head attention whose queries and keys are rotated by their position.

    `qkv` maps to query, key and value side by side (3H); `output` maps the heads' results back.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        size, has_bias = config.hidden_size, config.attention_bias
        self.num_heads = config.num_attention_heads
        self.qkv = Linear(size, 3 * size, bias=has_bias)
        self.output = Linear(size, size, bias=has_bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None) -> Tensor:
        """Return the attention output (B, L, H); arguments as in `PreNormLayer.forward`."""
        B, L, H = x_BLH.shape
        qkv_3BNLD = self.qkv(x_BLH).view(B, L, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q_BNLD, k_BNLD = rotate(qkv_3BNLD[:2], places.cos_LD, places.sin_LD).unbind(0)
        v_BNLD = qkv_3BNLD[2]
        if places.block:
            q = cut(q_BNLD, places.block)
            k, v = (cut_with_neighbours(each, places.block) for each in (k_BNLD, v_BNLD))
            context_BNLD = self._attend(q, k, v, places.mask, masks).flatten(2, 3)[:, :, :L]
        else:
            context_BNLD = self._attend(q_BNLD, k_BNLD, v_BNLD, places.mask, masks)
        attended_BLH = self.output(context_BNLD.transpose(1, 2).reshape(B, L, H))
        return self.dropout(attended_BLH, masks)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return softmax(q k^T + mask) v, (..., queries, D)."""
        scale = q.shape[-1] ** -0.5
        if q.device.type == "cpu":  # as in SelfAttention, faster than torch's kernel
            scores = (q * scale) @ k.transpose(-1, -2)
            if mask is not None:
                scores = scores + mask
            return self.dropout(scores.softmax(dim=-1), masks) @ v
        shape = q.shape
        if q.ndim == 5:  # kernels take four dimensions
            assert mask is not None
            heads_last = (0, 2, 1, 3, 4)
            q, k, v = (each.permute(heads_last).flatten(0, 1) for each in (q, k, v))
            mask = mask.expand(shape[0], 1, *mask.shape[2:]).permute(heads_last).flatten(0, 1)
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout.prob if self.training else 0.0,
            scale=scale,
        )  # fmt: skip
        if len(shape) == 5:
            context = context.unflatten(0, (shape[0], shape[2])).transpose(1, 2)
        return context


class PreNormLayer(nn.Module):
    """Attention and feed-forward, each of normalised states and added to them: the definition.

    Every sub-module is called, so that forward hooks see its input and output and a replaced one
    (an adapter) takes part.

    Args:
        config: Sizes, biases and dropout probabilities.
        number: The layer's number, from 0. The first has no norm before the attention, since the
            embeddings are normalised. The number also decides whether attention is local.
    """

    def __init__(self, config: EncoderConfig, number: int):
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

    @classmethod
    def draw_masks(
        cls, config: EncoderConfig, num_rows: int, length: int, dtype: torch.dtype
    ) -> DropoutMasks | None:
        """Return the dropout masks of one pass, as `PostNormLayer.draw_masks`."""
        return None

    def forward(self, x_BLH: Tensor, places: Places, masks: DropoutMasks | None) -> Tensor:
        """Return the hidden states (B, L, H) after this layer, in the dtype of `x_BLH`.

        Args:
            x_BLH: Hidden states before this layer.
            places: From `find_places`, for this layer's kind of attention.
            masks: From `draw_masks`; None: torch's own dropout, which drops in training only.
        """
        normed_BLH = x_BLH if self.attention_norm is None else self.attention_norm(x_BLH)
        x_BLH = x_BLH + self.attention(normed_BLH, places, masks)
        inner_BLF, gate_BLF = self.intermediate_and_gate(self.feed_forward_norm(x_BLH)).chunk(2, -1)
        return x_BLH + self.output(self.dropout(F.gelu(inner_BLF) * gate_BLF, masks))

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

    @torch.no_grad()
    def shrink_outputs(self) -> None:
        """Divide the weights that write to the hidden states by sqrt(2 num_hidden_layers).

        2 num_hidden_layers results are added to the hidden states. Source: transformers'
        ModernBertPreTrainedModel, after Megatron-LM.
        """
        for linear in (self.attention.output, self.output):
            linear.weight.div_(math.sqrt(2 * self.num_layers))


def rotate(x: Tensor, cos_LD: Tensor, sin_LD: Tensor) -> Tensor:
    """Return queries or keys (..., L, D) turned by the angles of their positions, in float32."""
    turned = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)
    return (x.float() * cos_LD + turned.float() * sin_LD).to(x.dtype)


def cut(x_BNLD: Tensor, block: int) -> Tensor:
    """Return positions in blocks (B, N, J, C, D), zeros behind the last one."""
    missing = -x_BNLD.shape[2] % block
    return F.pad(x_BNLD, (0, 0, 0, missing)).unflatten(2, (-1, block))


def cut_with_neighbours(x_BNLD: Tensor, block: int) -> Tensor:
    """Return each block between the two beside it (B, N, J, K, D), zeros outside the row."""
    missing = -x_BNLD.shape[2] % block
    x = F.pad(x_BNLD, (0, 0, block, missing + block))
    return x.unfold(2, 3 * block, block).transpose(-1, -2)


def find_block(length: int, half_window: int) -> int:
    """Return the length of a block of local attention; 0 if the scores of all pairs are fewer."""
    num_blocks = math.ceil(length / half_window)
    return half_window if num_blocks * 3 * half_window**2 < length**2 else 0


def find_places(
    config: EncoderConfig,
    *,
    is_local: bool,
    length: int,
    forbidden: Tensor | None,
    real_BL: Tensor | None,
    documents_BL: Tensor | None,
    sees: Sees,
    dtype: torch.dtype,
    device: torch.device,
) -> Places:
    """Return the places of a batch for layers of one kind.

    Documents need no rotary positions of their own: the score of two rotated vectors depends on the
    difference of their positions only.

    Args:
        config: Window, bases of the rotary positions.
        is_local: Whether the layers have local attention.
        length: L.
        forbidden: True where the score of a pair must not count, whatever the distance; broadcasts
            to (B, N, L, L). None: nowhere.
        real_BL: False at padding; None: nothing is padding.
        documents_BL: Number of each token's document, 0 at padding; None: as `real_BL`.
        sees: As in `Encoder.forward`.
        dtype: Of the mask.
        device: Of all tensors.
    """
    theta = config.local_rope_theta if is_local else config.global_rope_theta
    cos_LD, sin_LD = _find_angles(length, config.head_size, theta, device)
    half, block = config.local_attention // 2, 0
    # An exported graph is for rows of any length: its local layers hide what is far in all of them.
    is_any_length = torch.compiler.is_exporting()
    if is_local and (is_any_length or half < length - 1):
        block = 0 if is_any_length else find_block(length, half)
        if block:
            forbidden = _forbid_in_blocks(length, block, real_BL, documents_BL, sees, device)
        else:
            position_L = torch.arange(length, device=device)
            is_far_LL = (position_L[:, None] - position_L).abs() > half
            forbidden = is_far_LL[None, None] if forbidden is None else forbidden | is_far_LL
    return Places(make_mask(forbidden, dtype), cos_LD, sin_LD, block)


def make_mask(forbidden: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to attention scores: 0, or nearly the least number where forbidden."""
    if forbidden is None:
        return None
    # Half of the least number: kernels multiply scores by log2(e), and a row in which all is
    # hidden, as one of padding before a tower that looks ahead, must stay finite.
    least = torch.finfo(dtype).min / 2
    zeros = torch.zeros(forbidden.shape, dtype=dtype, device=forbidden.device)
    return zeros.masked_fill_(forbidden, least)


def _find_angles(
    length: int, head_size: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine of the angles of all positions (L, D), float32.

    Source: Su et al. 2021, "RoFormer"; the halves of a head are paired, as in transformers.
    """
    pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / theta ** (pairs / head_size)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = positions[:, None] * frequencies
    sin = angles.sin()
    return angles.cos().repeat(1, 2), torch.cat([-sin, sin], dim=1)


def _forbid_in_blocks(
    length: int,
    block: int,
    real_BL: Tensor | None,
    documents_BL: Tensor | None,
    sees: Sees,
    device: torch.device,
) -> Tensor:
    """Return True where a score of local attention in blocks does not count.

    The shape is (1, 1, J, C, K), or (B, 1, J, C, K) if rows differ.
    """
    num_blocks = math.ceil(length / block)
    starts_J11 = block * torch.arange(num_blocks, device=device)[:, None, None]
    query_JC1 = starts_J11 + torch.arange(block, device=device)[:, None]
    key_J1K = starts_J11 + torch.arange(-block, 2 * block, device=device)
    forbidden_JCK = (query_JC1 - key_J1K).abs() > block
    forbidden_JCK = forbidden_JCK | (key_J1K < 0) | (key_J1K >= length)
    if sees == "before":
        forbidden_JCK = forbidden_JCK | (key_J1K > query_JC1)
    if sees == "after":
        forbidden_JCK = forbidden_JCK | (key_J1K < query_JC1)
    forbidden = forbidden_JCK[None, None]
    numbers_BL = documents_BL if documents_BL is not None else real_BL
    if numbers_BL is not None:
        numbers_B1L1 = numbers_BL.long()[:, None, :, None]
        of_key = cut_with_neighbours(numbers_B1L1, block).transpose(-1, -2)  # (B, 1, J, 1, K)
        of_query = cut(numbers_B1L1, block)  # (B, 1, J, C, 1)
        is_other = of_query != of_key if documents_BL is not None else of_key == 0
        forbidden = forbidden | is_other
    return forbidden
