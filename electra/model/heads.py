"""Output layers of pre-training on an encoder; those of fine-tuning are in task_heads.py.

Shape suffixes: B rows of the batch, L positions, E embedding size, H hidden size, M chosen
positions of all rows together, K tokens to choose from.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.config import EncoderConfig
from electra.model.parts import LayerNorm, Linear

Kind = Literal[
    "", "PreTraining", "MaskedLM", "CausalLM",
    "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice",
]  # fmt: skip
"""A network's kind of output, as the suffix of transformers' classes; empty: hidden states."""


class PredictionHead(nn.Module):
    """The part of a head before its last layer: states to features, equally wide by default.

    Source: transformers' ModernBertPredictionHead; run_pretraining.py _get_masked_lm_output.
    """

    def __init__(self, config: EncoderConfig, in_size: int = 0, out_size: int = 0):
        super().__init__()
        size = out_size or config.hidden_size
        self.dense = Linear(in_size or config.hidden_size, size, bias=config.has_head_bias)
        self.norm = LayerNorm(size, eps=config.layer_norm_eps, bias=config.has_norm_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the features that the last layer of a head reads."""
        return self.norm(F.gelu(self.dense(hidden)))


class GeneratorHead(PredictionHead):
    """The generator's output layer: hidden states to the features that the tied softmax reads.

    logits = forward(h) @ table.T + bias. The product itself is left to the loss
    (masked_lm.py), which needs it at the chosen positions only. The states of `num_towers` encoders
    are side by side in the input.
    """

    def __init__(self, config: EncoderConfig, num_towers: int = 1):
        super().__init__(config, num_towers * config.hidden_size, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class DiscriminatorHead(nn.Module):
    """One float32 logit per position: positive means replaced.

    Source: run_pretraining.py _get_discriminator_output. With `judges_by_row` the state of [CLS]
    is added to every other, and the sum normalised: microsoft/DeBERTa LMMaskPredictionHead.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        has_norm = config.judges_by_row
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps) if has_norm else None
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dense_prediction = Linear(config.hidden_size, 1)

    @property
    def without_initialiser(self) -> list[nn.Module]:
        """Maps for which the released code names no initialiser."""
        return [self.dense_prediction]

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        """Map hidden states (B, L, H) to logits (B, L)."""
        if self.norm is not None:
            hidden_BLH = self.norm(hidden_BLH + hidden_BLH[..., :1, :])
        inner_BLH = F.gelu(self.dense(hidden_BLH)).float()  # one column: float32 costs nothing here
        return self.dense_prediction(inner_BLH).squeeze(-1)
