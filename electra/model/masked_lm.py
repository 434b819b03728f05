"""Predicting tokens from their context: an encoder under the tied softmax, and its stand-ins.

`MaskedLM` and `FixedDistribution` take the same arguments and return a Prediction.

Shape suffixes: B rows, L positions, S slots for chosen positions in a row, M = B * S of them,
E embedding size, H hidden size, N other tokens, V vocabulary.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.softmax import Prediction, loss_and_sample, loss_and_sample_plain


def states_at(index_BS: Tensor, hidden_BLH: Tensor) -> Tensor:
    """Return the states (B, S, H) at chosen positions."""
    return hidden_BLH.gather(1, index_BS[:, :, None].expand(-1, -1, hidden_BLH.shape[-1]))


class MaskedLM(nn.Module):
    """p(. | x_masked) at chosen positions: the generator, and the whole of MLM pre-training.

    Args:
        encoder: The encoder; its token embeddings are also the table of the softmax.
        head: The output layer.
        temperature: Divides the logits from which tokens are drawn; the loss has none.
        decay_steps: Steps in which its distance from 1 falls to 1 / e of itself; 0: it stays.
        disallow_correct: Whether the original token is never drawn.
    """

    temperature: float | Tensor

    def __init__(
        self,
        encoder: Encoder,
        head: GeneratorHead,
        *,
        temperature: float = 1.0,
        decay_steps: float = 0.0,
        disallow_correct: bool = False,
    ):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.first_temperature, self.decay_steps = temperature, decay_steps
        if decay_steps:  # a tensor, so that a captured step can be given another
            self.register_buffer("temperature", torch.tensor(temperature), persistent=False)
        else:
            self.temperature = temperature
        self.disallow_correct = disallow_correct
        self.is_frozen = False

    def cool(self, step: int) -> None:
        """Set the temperature of a step, which counts from 0. Source: Fast-ELECTRA."""
        if isinstance(self.temperature, Tensor):
            distance = (self.first_temperature - 1) * math.exp(-step / self.decay_steps)
            self.temperature.fill_(1 + distance)

    def freeze(self) -> None:
        """Exclude the parameters from training, and switch dropout off for good."""
        self.is_frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode as torch's; a frozen model stays in evaluation mode, without dropout."""
        return super().train(mode and not self.is_frozen)

    def features(self, batch: Batch, index_BS: Tensor) -> Tensor:
        """Return the features (M, E) at chosen positions of rows that the softmax reads."""
        return self.head(states_at(index_BS, self.encoder(*batch.inputs)).flatten(0, 1))

    @property
    def softmax(self) -> tuple[Tensor, Tensor]:
        """Table (V, E) and bias (V,) of the softmax."""
        return self.encoder.embeddings.tokens.table, self.head.bias

    def forward(
        self,
        batch: Batch,
        index_BS: Tensor,
        targets_BS: Tensor,
        weights_BS: Tensor,
        uniform_BS: Tensor,
    ) -> Prediction:
        """Return loss, drawn tokens and hits at the chosen positions; the latter two (B, S).

        Args:
            batch: Rows, corrupted at the chosen positions.
            index_BS: Chosen positions.
            targets_BS: Original ids at these positions.
            weights_BS: Weight of each position in the loss, 0 in unused slots.
            uniform_BS: Uniform numbers in [0, 1) that decide the draws; (B, S, 1 + N) for N others.
        """
        hidden_BLH = self.encoder(*batch.inputs)
        arguments = (
            self.head(states_at(index_BS, hidden_BLH).flatten(0, 1)),
            *self.softmax,
            targets_BS.flatten(),
            weights_BS.flatten(),
            uniform_BS.flatten(0, 1),
        )
        # Below 1, the other tokens' probabilities can underflow in the pass that computes the loss.
        predict = loss_and_sample if self.first_temperature >= 1 else loss_and_sample_plain
        prediction = predict(
            *arguments, temperature=self.temperature, disallow_correct=self.disallow_correct
        )
        return prediction.view_as(index_BS)._replace(first_BH=hidden_BLH[:, 0])
