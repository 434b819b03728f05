"""The encoder of both networks: BERT's post-norm transformer, as ELECTRA uses it.

Shape suffixes: B rows of the batch, L positions, E embedding size, H hidden size, N heads,
D size of a head (H = N * D), F feed-forward size.

Parameters are float32. `compute_dtype` is the dtype of activations and matrix products: embeddings
are looked up and normalised in float32, cast once, and every weight is cast where it is used, so
that gradients reach the float32 parameters without an autocast context. Normalisation keeps its
statistics in float32 whatever the dtype.

Source: google-research/electra model/modeling.py.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import EncoderConfig


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


class Dropout(nn.Module):
    """Dropout that takes less than half of torch's time on a CPU.

    A CPU draws 16 random bits per element, in blocks of 64, and keeps the element if they are below
    round((1 - prob) * 65536): the kept share is exact to 1/131072 and is what the survivors are
    scaled by. Elsewhere torch's kernel is used.
    """

    def __init__(self, prob: float):
        super().__init__()
        self.prob = prob
        self.kept = round((1 - prob) * 65536)

    def forward(self, x: Tensor) -> Tensor:
        """Zero elements of x with probability `prob` and scale the others up, in training only."""
        if not self.training or self.prob == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.prob)
        count = x.numel()
        bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), 2**63 - 1)
        keep = bits.view(torch.int16)[:count].view(x.shape) < self.kept - 32768
        return x * keep.to(x.dtype).mul_(65536 / self.kept)


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
            types_BLE = (
                F.one_hot(token_type_ids_BL, self.types.num_embeddings).to(positions_LE.dtype)
                @ self.types.weight
            )
        return self.norm(self.tokens(input_ids_BL) + positions_LE + types_BLE)


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention over all positions that are not padding."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, x_BLH: Tensor, mask_BNLL: Tensor | None) -> Tensor:
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
            context_BNLD = self.dropout(scores_BNLL.softmax(dim=-1)) @ v_BNLD
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

    def forward(self, x_BLH: Tensor, mask_BNLL: Tensor | None) -> Tensor:
        """Transform hidden states."""
        x_BLH = self.attention_norm(x_BLH + self.dropout(self.attention(x_BLH, mask_BNLL)))
        inner_BLF = F.gelu(self.intermediate(x_BLH))
        return self.output_norm(x_BLH + self.dropout(self.output(inner_BLF)))


class Encoder(nn.Module):
    """Embeddings, a projection where E != H, and the layers: (B, L) ids to (B, L, H) states.

    Args:
        config: Sizes and dropout probabilities.
        embeddings: An embedding block to share with another encoder; None makes a new one.
        compute_dtype: Dtype of activations and matrix products.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        embeddings: Embeddings | None = None,
        compute_dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        self.embeddings_project = (
            Linear(config.embedding_size, config.hidden_size)
            if config.embedding_size != config.hidden_size
            else None
        )
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor | None = None,
        token_type_ids_BL: Tensor | None = None,
        sees: Literal["all", "before", "after"] = "all",
    ) -> Tensor:
        """Encode.

        Args:
            input_ids_BL: Token ids, int64.
            attention_mask_BL: 1 (or True) at real tokens, 0 at padding; None: nothing is padding.
            token_type_ids_BL: Segment 0 or 1 of each token; None: all 0.
            sees: What a position attends to: all, itself and those before it, or those after it.

        Returns:
            Hidden states (B, L, H) in `compute_dtype`. Those at padding are meaningless.
        """
        x_BLH = self.dropout(self.embeddings(input_ids_BL, token_type_ids_BL)).to(
            self.compute_dtype
        )
        forbidden_BNLL = None
        if attention_mask_BL is not None:
            forbidden_BNLL = ~attention_mask_BL.bool()[:, None, None, :]
        if sees != "all":
            length = input_ids_BL.shape[1]
            ones_LL = torch.ones(length, length, dtype=torch.bool, device=x_BLH.device)
            hidden_LL = ones_LL.triu(1) if sees == "before" else ones_LL.tril(-1)
            forbidden_BNLL = hidden_LL if forbidden_BNLL is None else forbidden_BNLL | hidden_LL
        mask_BNLL = None
        if forbidden_BNLL is not None:
            mask_BNLL = torch.zeros(
                forbidden_BNLL.shape, dtype=self.compute_dtype, device=x_BLH.device
            ).masked_fill_(forbidden_BNLL, torch.finfo(self.compute_dtype).min)
        if self.embeddings_project is not None:
            x_BLH = self.embeddings_project(x_BLH)
        for layer in self.layers:
            x_BLH = layer(x_BLH, mask_BNLL)
        return x_BLH
