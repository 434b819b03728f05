"""ELECTRA's body: BERT's embeddings and its post-norm transformer layer.

Shape suffixes: B rows of the batch, L positions, T types of segment, E embedding size, H hidden
size, N heads, D size of a head (H = N * D), F feed-forward size.

`PostNormLayer` is the definition of a layer. `fused/` computes the same faster on a CPU. An
encoder can use either class; both have the same parameters under the same names.

Source: google-research/electra model/modeling.py transformer_model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.config import ElectraConfig, EncoderConfig
from electra.model.parts import (
    Body,
    Dropout,
    DropoutMasks,
    EmbeddingBlock,
    LayerNorm,
    Linear,
    Sight,
    TokenTable,
    TransformerLayer,
    attend,
    runs_operations,
)


class Embeddings(EmbeddingBlock):
    """Token, position and segment embeddings, added and normalised: ids (B, L) to (B, L, E)."""

    def __init__(self, config: ElectraConfig):
        super().__init__()
        self.tokens = TokenTable(config.vocab_size, config.embedding_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.types = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None) -> Tensor:
        """Return the embeddings (B, L, E), float32."""
        positions_LE = self.positions.weight[: input_ids_BL.shape[1]]
        if token_type_ids_BL is None:
            types_BLE = self.types.weight[0]
        elif runs_operations(input_ids_BL.device):  # a look-up's gradient would be a slow scatter
            type_T = torch.arange(self.types.num_embeddings, device=input_ids_BL.device)
            is_type_BLT = token_type_ids_BL[:, :, None] == type_T
            types_BLE = is_type_BLT.to(positions_LE.dtype) @ self.types.weight
        else:  # equal to a selection, and a compiler fuses it with the sum below
            types_BLE = self.types.weight[0]
            for number, type_E in enumerate(self.types.weight[1:], 1):
                is_type_BL1 = token_type_ids_BL[:, :, None] == number
                types_BLE = torch.where(is_type_BL1, type_E, types_BLE)
        return self.norm(self.tokens(input_ids_BL) + positions_LE + types_BLE)


class AttentionMask(nn.Module):
    """Position information for ELECTRA's layers: the mask added to attention scores."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_layers = config.num_hidden_layers

    def forward(self, sight: Sight) -> list[Tensor | None]:
        """Return the mask of each layer, which broadcasts to (B, N, L, L); None: nothing."""
        return [sight.make_mask(sight.find_forbidden())] * self.num_layers


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention over all positions that the mask does not hide.

    `qkv` maps to query, key and value side by side (3H); `output` maps the heads' results back.
    """

    def __init__(self, config: EncoderConfig, *, has_bias: bool = True):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=has_bias)
        self.output = Linear(config.hidden_size, config.hidden_size, bias=has_bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return the attention output (B, L, H); arguments as in `PostNormLayer.forward`."""
        context_BNLD = attend(*self.map_heads(x_BLH), mask_BNLL, self.dropout, masks)
        return self.output(context_BNLD.transpose(1, 2).flatten(2))

    def map_heads(self, x_BLH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (B, N, L, D) each."""
        B, L, _ = x_BLH.shape
        qkv_BL3ND = self.qkv(x_BLH).view(B, L, 3, self.num_heads, -1)
        q_BNLD, k_BNLD, v_BNLD = qkv_BL3ND.permute(2, 0, 3, 1, 4).unbind(0)
        return q_BNLD, k_BNLD, v_BNLD


class PostNormLayer(TransformerLayer):
    """Attention and feed-forward, each with a residual, then normalised: the definition of a layer.

    Every sub-module is called, so that forward hooks see its input and output and a replaced one
    (an adapter) takes part. All layers are alike, whatever their `number`.
    """

    attention_type: type[SelfAttention] = SelfAttention

    def __init__(self, config: EncoderConfig, number: int = 0):
        super().__init__()
        self.attention = self.attention_type(config)
        self.attention_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Return the hidden states (B, L, H) after this layer, in the dtype of `x_BLH`.

        Args:
            x_BLH: Hidden states before this layer.
            mask_BNLL: Added to the attention scores; any shape that broadcasts to (B, N, L, L).
                None: every position is seen.
            masks: Those of the pass; None: torch's own dropout, which drops in training only.
        """
        return self.finish(x_BLH, self.attention(x_BLH, mask_BNLL, masks), masks)

    def finish(self, x_BLH: Tensor, attended_BLH: Tensor, masks: DropoutMasks | None) -> Tensor:
        """Return the hidden states after this layer, given its attention's output."""
        x_BLH = self.attention_norm(x_BLH + self.dropout(attended_BLH, masks))
        inner_BLF = F.gelu(self.intermediate(x_BLH))
        return self.output_norm(x_BLH + self.dropout(self.output(inner_BLF), masks))

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations per position of the forward pass on rows of `length`, by part."""
        size, inner_size = self.output.out_features, self.output.in_features
        return {
            "attention, projections": 8 * size * size,
            "attention, scores and sums": 4 * size * length,
            "feed-forward": 4 * size * inner_size,
        }


BODY = Body(
    ElectraConfig,
    Embeddings,
    AttentionMask,
    PostNormLayer,
    "post_norm:FusedPostNormLayer",
    "TritonPostNormLayer",
)
