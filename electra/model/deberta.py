"""DeBERTaV3's body: ELECTRA's layers with disentangled attention.

The graph is that of transformers' DebertaV2Model with version 3's settings, parameter by parameter.
There are no absolute positions and no segments. The distance of two positions selects a bucket, and
each bucket has a row in one table for all layers. The score of a pair of positions is

    (q_i . k_j + q_i . K[row(i - j)] + Q[row(i - j)] . k_j) / sqrt(3 D)

where Q and K are the rows of the table, normalised, under the layer's own query and key maps. Near
distances have a bucket each, far ones share buckets whose width grows with the distance.

Shape suffixes: B rows of the batch, L positions, H hidden size, N heads, D size of a head, R rows
of the table, T = 2 L - 1 distances from -(L - 1) to L - 1.

Source: He et al. 2020, "DeBERTa", section 3; He et al. 2021, "DeBERTaV3"; transformers
models/deberta_v2/modeling_deberta_v2.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra.model.deberta_config import DebertaConfig
from electra.model.electra import PostNormLayer, SelfAttention
from electra.model.parts import (
    Body,
    Dropout,
    DropoutMasks,
    LayerNorm,
    Sight,
    TokenEmbeddings,
    is_any_length,
)


class RelativePlaces(NamedTuple):
    """How far the positions of a batch are from each other, and which of them attend to which."""

    mask: Tensor | None
    """Added to the attention scores: broadcasts to (B, N, L, L). None: every position is seen."""
    table_RH: Tensor
    """The normalised table, in the compute dtype."""
    rows_T: Tensor
    """The row of each distance in the table, int64."""

    @property
    def rows_LL(self) -> Tensor:
        """The row of each pair's distance, query less key."""
        length = (self.rows_T.shape[0] + 1) // 2
        place_L = torch.arange(length, device=self.rows_T.device)
        return self.rows_T[place_L[:, None] - place_L + length - 1]


class RelativePositions(nn.Module):
    """Position information for DeBERTa's layers: a table of distances, and its rows."""

    rows_T: Tensor

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(2 * config.position_buckets, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        # Constants: another device's or runtime's logarithm may round to another bucket.
        rows_T = find_rows(config, config.max_position_embeddings)
        self.register_buffer("rows_T", rows_T, persistent=False)
        self.rows = rows_T.tolist()  # a compiler reads numbers from a list alone

    def forward(self, sight: Sight) -> list[RelativePlaces]:
        """Return the places of each layer, the same for all."""
        zero = len(self.rows) // 2
        rows_T = self.rows_T[zero - sight.length + 1 : zero + sight.length]
        table_RH = self.embeddings.weight
        if not is_any_length():
            first, last = (self.rows[zero + way * (sight.length - 1)] for way in (-1, 1))
            table_RH, rows_T = table_RH[first : last + 1], rows_T - first
        mask = sight.make_mask(sight.find_forbidden())
        places = RelativePlaces(mask, self.norm(table_RH).to(sight.dtype), rows_T)
        return [places] * self.config.num_hidden_layers


def find_rows(config: DebertaConfig, length: int) -> Tensor:
    """Return the row (T,) in the table of each distance between positions of a row, int64.

    Distances of at most half of `position_buckets` have a bucket each. Beyond, buckets grow with
    the logarithm up to `max_relative_positions` - 1; all larger distances share the outermost.
    """
    middle, num_buckets = config.position_buckets // 2, config.position_buckets
    distance_T = torch.arange(1 - length, length, device="cpu")
    share_T = torch.log(distance_T.abs().clamp(min=middle) / middle)
    longest = torch.tensor((config.max_relative_positions - 1) / middle, device="cpu")
    share_T = share_T / torch.log(longest)
    far_T = torch.ceil(share_T * (middle - 1)) + middle
    bucket_T = torch.where(distance_T.abs() <= middle, distance_T, distance_T.sign() * far_T)
    return (bucket_T.long() + num_buckets).clamp(0, 2 * num_buckets - 1)


class DisentangledAttention(SelfAttention):
    """Attention by content, by the key's distance to the query, and by the query's to the key."""

    def __init__(self, config: DebertaConfig):
        super().__init__(config)
        self.relative_dropout = Dropout(config.hidden_dropout_prob)

    def forward(  # type: ignore[override]  # the encoder hands each layer its own kind of places
        self,
        x_BLH: Tensor,
        places: RelativePlaces,
        masks: DropoutMasks | None,
        queries_BLH: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output (B, L, H); arguments as in `DisentangledLayer.forward`."""
        q_BNLD, k_BNLD, v_BNLD = self.map_heads(x_BLH)
        if queries_BLH is not None:
            q_BNLD, _, _ = self.map_heads(queries_BLH)
        relative_RH = self.relative_dropout(places.table_RH, masks)
        q_1NRD, k_1NRD, _ = self.map_heads(relative_RH[None])
        scores_BNLL = q_BNLD @ k_BNLD.transpose(-1, -2)
        rows_BNLL = places.rows_LL.expand(scores_BNLL.shape)
        by_key_BNLR = q_BNLD @ k_1NRD.transpose(-1, -2)
        by_query_BNLR = k_BNLD @ q_1NRD.transpose(-1, -2)
        scores_BNLL = scores_BNLL + by_key_BNLR.gather(-1, rows_BNLL)
        by_query_BNLL = by_query_BNLR.gather(-1, rows_BNLL.transpose(-1, -2))
        scores_BNLL = scores_BNLL + by_query_BNLL.transpose(-1, -2)
        scores_BNLL = scores_BNLL * (3 * q_BNLD.shape[-1]) ** -0.5
        if places.mask is not None:
            scores_BNLL = scores_BNLL + places.mask
        context_BNLD = self.dropout(scores_BNLL.softmax(dim=-1), masks) @ v_BNLD
        return self.output(context_BNLD.transpose(1, 2).flatten(2))


class DisentangledLayer(PostNormLayer):
    """`PostNormLayer` with disentangled attention: the definition of a layer of DeBERTaV3."""

    attention_type = DisentangledAttention
    attention: DisentangledAttention

    def __init__(self, config: DebertaConfig, number: int = 0):
        super().__init__(config, number)
        self.config = config

    def forward(  # type: ignore[override]
        self,
        x_BLH: Tensor,
        places: RelativePlaces,
        masks: DropoutMasks | None,
        queries_BLH: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states (B, L, H) after this layer, as `PostNormLayer.forward`.

        In an enhanced mask decoder, queries are made of `queries_BLH`, which results are added to;
        keys and values are made of `x_BLH`.
        """
        attended_BLH = self.attention(x_BLH, places, masks, queries_BLH)
        return self.finish(x_BLH if queries_BLH is None else queries_BLH, attended_BLH, masks)

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations per position of the forward pass on rows of `length`, by part.

        The queries and keys of the table, computed once for all rows of a pass, do not count.
        """
        rows_T = find_rows(self.config, length)
        by_distance = 4 * self.output.out_features * (rows_T[-1] - rows_T[0] + 1).item()
        return {**super().count_flops(length), "attention, scores by distance": by_distance}


BODY = Body(
    DebertaConfig,
    TokenEmbeddings,
    RelativePositions,
    DisentangledLayer,
    "disentangled:FusedDisentangledLayer",
    "TritonDisentangledLayer",
)
