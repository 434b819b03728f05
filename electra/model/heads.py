"""Output layers on an encoder: those of generator, discriminator and classifier.

Shape suffixes: B rows of the batch, L positions, E embedding size, H hidden size, M chosen
positions of all rows together, C classes, S width of the states of a token, F of those of a pair.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import EncoderConfig
from electra.model.dropout import Dropout
from electra.model.mixed_precision import LayerNorm, Linear


class GeneratorHead(nn.Module):
    """The generator's output layer: hidden states to the features that the tied softmax reads.

    logits = forward(h) @ table.T + bias. The product itself is left to the loss (softmax.py), which
    needs it at the chosen positions only. Source: run_pretraining.py _get_masked_lm_output; in the
    architecture modernbert, transformers' ModernBertForMaskedLM.

    Args:
        config: Sizes of the encoder.
        num_towers: Number of encoders whose states stand side by side in the input.
    """

    def __init__(self, config: EncoderConfig, num_towers: int = 1):
        super().__init__()
        size, has_bias, norm_has_bias = config.embedding_size, *_biases(config)
        self.dense = Linear(num_towers * config.hidden_size, size, bias=has_bias)
        self.norm = LayerNorm(size, eps=config.layer_norm_eps, bias=norm_has_bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    @property
    def flops(self) -> float:
        """Operations per position of the forward pass, product with the token table included."""
        size = self.dense.out_features
        return 2 * size * (self.dense.in_features + len(self.bias))

    def forward(self, hidden_MH: Tensor) -> Tensor:
        """Map hidden states (M, H) to features (M, E)."""
        return self.norm(F.gelu(self.dense(hidden_MH)))


class DiscriminatorHead(nn.Module):
    """One float32 logit per position: positive means replaced.

    Source: run_pretraining.py _get_discriminator_output.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dense_prediction = Linear(config.hidden_size, 1)

    @property
    def flops(self) -> float:
        """Operations per position of the forward pass."""
        return 2 * self.dense.in_features * (self.dense.out_features + 1)

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        """Map hidden states (B, L, H) to logits (B, L)."""
        inner_BLH = F.gelu(self.dense(hidden_BLH)).float()  # one column: float32 costs nothing here
        return self.dense_prediction(inner_BLH).squeeze(-1)


class PredictionHead(nn.Module):
    """The layers before the last one in ModernBERT's heads of fine-tuning: (..., H) to (..., H).

    Source: transformers' ModernBertPredictionHead.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        size, has_bias, norm_has_bias = config.hidden_size, *_biases(config)
        self.dense = Linear(size, size, bias=has_bias)
        self.norm = LayerNorm(size, eps=config.layer_norm_eps, bias=norm_has_bias)

    def forward(self, state: Tensor) -> Tensor:
        """Return the features that the last layer of a head reads."""
        return self.norm(F.gelu(self.dense(state)))


def build_inner(config: EncoderConfig) -> nn.Module:
    """Return what stands before the last layer of a head that transformers has: ELECTRA nothing."""
    return PredictionHead(config) if config.architecture == "modernbert" else nn.Identity()


def _biases(config: EncoderConfig) -> tuple[bool, bool]:
    """Return whether the inner linear map of a head has a bias, and whether its norm has one."""
    is_modern = config.architecture == "modernbert"
    return not is_modern or config.classifier_bias, not is_modern or config.norm_bias


class ClassifierHead(nn.Module):
    """Dropout and one linear layer on a row's state: (B, L, H) to float32 (B, C).

    The state is that of [CLS] (paper; classification_tasks.py get_prediction_module), or the mean
    over the row's tokens: nothing in replaced token detection teaches [CLS] to sum up its row, and
    what fine-tuning has to teach it, a small or short-trained encoder does not learn in a few
    epochs.

    Args:
        hidden_size: H.
        num_classes: C; 1 for a regression.
        dropout_prob: Dropout on the row's state.
        pooling: The row's state: that of [CLS], or the mean over the row's tokens.
        inner: From `build_inner`; None: nothing.
    """

    def __init__(
        self,
        hidden_size: int,
        num_classes: int,
        dropout_prob: float,
        pooling: Literal["cls", "mean"],
        inner: nn.Module | None = None,
    ):
        super().__init__()
        self.pooling = pooling
        self.inner = inner or nn.Identity()
        self.dropout = Dropout(dropout_prob)
        self.dense = Linear(hidden_size, num_classes)

    def forward(self, hidden_BLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return float32 logits (B, C).

        Args:
            hidden_BLH: Hidden states of the encoder's last layer.
            attention_mask_BL: False at padding; None: nothing is padding.
        """
        if self.pooling == "cls":
            state_BH = hidden_BLH[:, 0].float()
        elif attention_mask_BL is None:
            state_BH = hidden_BLH.float().mean(dim=1)
        else:
            state_BH = _mean(hidden_BLH, attention_mask_BL)
        return self.dense(self.dropout(self.inner(state_BH)))


class PairHead(nn.Module):
    """Dropout and one linear layer on the states of two texts: (B, L, S) to float32 (B, C).

    The layer reads the mean u over the first text's tokens, that of the second, v, |u - v| and
    u * v. Source: Conneau et al. 2017, "Supervised Learning of Universal Sentence Representations"
    (section 3.1), which encodes the two texts apart; here one row holds both. A token's state is
    that of the last layer and its embedding, side by side: the last layer of a discriminator tells
    how plausible a token is rather than what it means.

    Args:
        state_size: S, the width of hidden states and embeddings together.
        num_classes: C; 1 for a regression.
        dropout_prob: Dropout on what the layer reads.
    """

    def __init__(self, state_size: int, num_classes: int, dropout_prob: float):
        super().__init__()
        self.dropout = Dropout(dropout_prob)
        self.dense = Linear(4 * state_size, num_classes)

    def forward(
        self, state_BLS: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor
    ) -> Tensor:
        """Return float32 logits (B, C).

        Args:
            state_BLS: Hidden states of the encoder's last layer, and embeddings.
            attention_mask_BL: False at padding; None: nothing is padding.
            token_type_ids_BL: 0 in the first text, 1 in the second. [CLS] and the first [SEP]
                belong to the first text.
        """
        is_second_BL = token_type_ids_BL.bool()
        is_first_BL = ~is_second_BL
        if attention_mask_BL is not None:
            is_first_BL = is_first_BL & attention_mask_BL.bool()
        u_BS, v_BS = _mean(state_BLS, is_first_BL), _mean(state_BLS, is_second_BL)
        pair_BF = torch.cat([u_BS, v_BS, (u_BS - v_BS).abs(), u_BS * v_BS], dim=1)
        return self.dense(self.dropout(pair_BF))


def _mean(hidden_BLH: Tensor, is_counted_BL: Tensor) -> Tensor:
    """Return the mean (B, H), float32, over the positions that count, of which there are some."""
    share_BL = is_counted_BL / is_counted_BL.sum(dim=1, keepdim=True)
    return (hidden_BLH.float() * share_BL[:, :, None]).sum(dim=1)
