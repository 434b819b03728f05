"""The encoder of both networks: BERT's post-norm transformer, as ELECTRA uses it.

Shape suffixes: B rows of the batch, L positions, T types of segment, E embedding size, H hidden
size, N heads, D size of a head (H = N * D), F feed-forward size, K layers read as features.

Parameters are float32. `compute_dtype` is the dtype of activations and matrix products: embeddings
are looked up and normalised in float32, cast once, and every weight is cast where it is used, so
that gradients reach the float32 parameters without an autocast context. Normalisation keeps its
statistics in float32 whatever the dtype.

Source: google-research/electra model/modeling.py.
"""

from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.config import EncoderConfig
from electra.model.dropout import Dropout, DropoutMasks
from electra.model.fused_layer import Shape, fused_layer


class Linear(nn.Linear):
    """A linear map whose float32 weights follow the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """Layer normalisation with float32 statistics and parameters, in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if x.dtype == torch.float32 or x.device.type == "cpu":  # the CPU kernel mixes dtypes itself
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


class Embeddings(nn.Module):
    """Token, position and segment embeddings, added and normalised: ids (B, L) to (B, L, E)."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.types = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None) -> Tensor:
        """Embed ids; `token_type_ids_BL` None means segment 0 throughout."""
        positions_LE = self.positions.weight[: input_ids_BL.shape[1]]
        if token_type_ids_BL is None:
            types_BLE = self.types.weight[0]
        else:  # a sum over two rows: a look-up's gradient would be a slow scatter
            type_T = torch.arange(self.types.num_embeddings, device=input_ids_BL.device)
            is_type_BLT = token_type_ids_BL[:, :, None] == type_T
            types_BLE = is_type_BLT.to(positions_LE.dtype) @ self.types.weight
        return self.norm(self.tokens(input_ids_BL) + positions_LE + types_BLE)


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention over all positions that are not padding."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Attend; `mask_BNLL`, or what broadcasts to it, is added to the scores."""
        B, L, H = x_BLH.shape
        q_BNLD, k_BNLD, v_BNLD = (
            self.qkv(x_BLH).view(B, L, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        )
        scale = q_BNLD.shape[-1] ** -0.5
        if x_BLH.device.type == "cpu":
            # Written out: the CPU's fused kernel has a backward pass several times slower than
            # these products, and none at all with dropout.
            scores_BNLL = (q_BNLD * scale) @ k_BNLD.transpose(-1, -2)
            if mask_BNLL is not None:
                scores_BNLL = scores_BNLL + mask_BNLL
            context_BNLD = self.dropout(scores_BNLL.softmax(dim=-1), masks) @ v_BNLD
        else:
            context_BNLD = F.scaled_dot_product_attention(
                q_BNLD,
                k_BNLD,
                v_BNLD,
                attn_mask=mask_BNLL,
                dropout_p=self.dropout.prob if self.training else 0.0,
                scale=scale,
            )
        return self.output(context_BNLD.transpose(1, 2).reshape(B, L, H))


class Layer(nn.Module):
    """One transformer layer: attention and feed-forward, each with residual, then normalised."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Transform hidden states (B, L, H).

        Args:
            x_BLH: They.
            mask_BNLL: Or what broadcasts to it, added to the attention's scores.
            masks: Dropout's; None: torch's own dropout.
        """
        if x_BLH.device.type != "cpu" or torch.compiler.is_compiling():
            return self.plain(x_BLH, mask_BNLL, masks)
        B, L, _ = x_BLH.shape
        attention = self.attention
        kept = (
            attention.dropout.draw((B * attention.num_heads, L, L), masks),
            self.dropout.draw((B * L, x_BLH.shape[2]), masks),
            self.dropout.draw((B * L, x_BLH.shape[2]), masks),
        )
        shape = Shape(
            attention.num_heads,
            self.output_norm.eps,
            1.0 if kept[0] is None else attention.dropout.scale,
            1.0 if kept[1] is None else self.dropout.scale,
        )
        maps = (
            *(attention.qkv, attention.output, self.attention_norm),
            *(self.intermediate, self.output, self.output_norm),
        )
        parameters = tuple(tensor for each in maps for tensor in (each.weight, each.bias))
        return fused_layer(x_BLH, mask_BNLL, kept, parameters, shape)

    def plain(self, x_BLH: Tensor, mask_BNLL: Tensor | None, masks: DropoutMasks | None) -> Tensor:
        """Do the same, written as the paper's figures read: the definition of a layer."""
        attended_BLH = self.attention(x_BLH, mask_BNLL, masks)
        x_BLH = self.attention_norm(x_BLH + self.dropout(attended_BLH, masks))
        inner_BLF = F.gelu(self.intermediate(x_BLH))
        return self.output_norm(x_BLH + self.dropout(self.output(inner_BLF), masks))

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations at each position of rows of this length, forward, by part."""
        size, inner_size = self.output.out_features, self.output.in_features
        return {
            "attention, projections": 8 * size * size,
            "attention, scores and sums": 4 * size * length,
            "feed-forward": 4 * size * inner_size,
        }


class Encoder(nn.Module):
    """Embeddings, a projection where E != H, and the layers: (B, L) ids to (B, L, H) states.

    Args:
        config: Sizes and dropout probabilities.
        embeddings: An embedding block to share with another encoder; None makes a new one.
        compute_dtype: Dtype of activations and matrix products.
        recompute_activations: Whether layers in training keep only their input, and compute the
            rest again on the way back, dropout's masks included.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        embeddings: Embeddings | None = None,
        compute_dtype: torch.dtype = torch.float32,
        recompute_activations: bool = False,
    ):
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.recompute_activations = recompute_activations
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        self.embeddings_project = (
            Linear(config.embedding_size, config.hidden_size)
            if config.embedding_size != config.hidden_size
            else None
        )
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.dropout = Dropout(config.hidden_dropout_prob)
        probs = {config.hidden_dropout_prob, config.attention_probs_dropout_prob}
        self.dropout_probs = sorted(probs - {0.0})

    def forward(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
        document_ids_BL: Tensor | None = None,
        sees: Literal["all", "before", "after"] = "all",
    ) -> Tensor:
        """Encode.

        Args:
            input_ids_BL: Token ids, int64.
            attention_mask_BL: True at tokens, False at padding; None: nothing is padding.
            token_type_ids_BL: Segment 0 or 1 of each token; None: all 0.
            document_ids_BL: Number of each token's document, 0 at padding; tokens attend within
                their document. None: within the row.
            sees: What a position attends to: all, itself and those before it, or those after it.

        Returns:
            Hidden states (B, L, H) in `compute_dtype`. Those at padding are meaningless.
        """
        x_BLH, mask_BNLL, masks = self._begin(
            input_ids_BL, attention_mask_BL, token_type_ids_BL, document_ids_BL, sees
        )
        for layer in self.layers:
            if self.recompute_activations and self.training:
                x_BLH = checkpoint(
                    layer,
                    *(x_BLH, mask_BNLL, masks),
                    use_reentrant=False,
                    preserve_rng_state=bool(self.dropout_probs),
                )
            else:
                x_BLH = layer(x_BLH, mask_BNLL, masks)
        return x_BLH

    def count_flops(self, length: int) -> dict[str, float]:
        """Return the operations at each position of rows of this length, forward, by part.

        They are those of the matrix products; a multiply-add is two, a look-up none.
        """
        parts: dict[str, float] = {}
        if self.embeddings_project is not None:
            parts["embeddings, projection"] = 2 * self.embeddings_project.weight.numel()
        for layer in self.layers:
            for name, flops in cast(Layer, layer).count_flops(length).items():
                parts[name] = parts.get(name, 0) + flops
        return parts

    @torch.no_grad()
    def layer_states(
        self,
        num_layers: int,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
    ) -> Tensor:
        """Return the states of the top K layers as features, which no gradient passes.

        Args:
            num_layers: K.
            input_ids_BL: As in `forward`.
            attention_mask_BL: Likewise.
            token_type_ids_BL: Likewise.

        Returns:
            (K, B, L, H) in `compute_dtype`; the last are what `forward` returns.
        """
        x_BLH, mask_BNLL, masks = self._begin(input_ids_BL, attention_mask_BL, token_type_ids_BL)
        states = []
        for layer in self.layers:
            x_BLH = layer(x_BLH, mask_BNLL, masks)
            states.append(x_BLH)
        return torch.stack(states[-num_layers:])

    def _begin(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None,
        token_type_ids_BL: Tensor | None,
        document_ids_BL: Tensor | None = None,
        sees: Literal["all", "before", "after"] = "all",
    ) -> tuple[Tensor, Tensor | None, DropoutMasks | None]:
        """Return what the first layer reads: states, what is added to scores, dropout's masks."""
        x_BLH = self.embeddings(input_ids_BL, token_type_ids_BL).to(self.compute_dtype)
        masks = self._draw_masks(x_BLH)
        x_BLH = self.dropout(x_BLH, masks)
        forbidden_BNLL = None
        if document_ids_BL is not None:  # which tell padding, too
            forbidden_BNLL = document_ids_BL[:, None, :, None] != document_ids_BL[:, None, None, :]
        elif attention_mask_BL is not None:
            forbidden_BNLL = ~attention_mask_BL[:, None, None, :]
        if sees != "all":
            length = input_ids_BL.shape[1]
            ones_LL = torch.ones(length, length, dtype=torch.bool, device=x_BLH.device)
            hidden_LL = ones_LL.triu(1) if sees == "before" else ones_LL.tril(-1)
            forbidden_BNLL = hidden_LL if forbidden_BNLL is None else forbidden_BNLL | hidden_LL
        mask_BNLL = None
        if forbidden_BNLL is not None:
            # Half of the least number: kernels multiply scores by log2(e), and a row in which all
            # is hidden, as one of padding before a tower that looks ahead, must stay finite.
            least = torch.finfo(self.compute_dtype).min / 2
            mask_BNLL = torch.zeros(
                forbidden_BNLL.shape, dtype=self.compute_dtype, device=x_BLH.device
            ).masked_fill_(forbidden_BNLL, least)
        if self.embeddings_project is not None:
            x_BLH = self.embeddings_project(x_BLH)
        return x_BLH, mask_BNLL, masks

    def _draw_masks(self, x_BLH: Tensor) -> DropoutMasks | None:
        """Return dropout's masks for one pass; None where torch's own dropout is as fast."""
        if not self.training or x_BLH.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        (B, L, E), sizes = x_BLH.shape, self.config
        widest = max(E, sizes.hidden_size, sizes.num_attention_heads * L)
        return DropoutMasks(B * L * widest, self.compute_dtype, self.dropout_probs)
