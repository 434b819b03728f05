"""Predicting tokens from their context: an encoder under the tied softmax, and its stand-ins.

`MaskedLM` and `FixedDistribution` take the same arguments and return a Prediction.

Shape suffixes: B rows, L positions, S slots for chosen positions in a row, M = B * S of them,
E embedding size, H hidden size, K = L - 1 neighbours in a row, V vocabulary.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.softmax import Prediction, loss_and_sample, loss_and_sample_plain


class MaskedLM(nn.Module):
    """p(. | x_masked) at chosen positions: the generator, and the whole of MLM pre-training.

    Args:
        encoder: The encoder; its token embeddings are also the table of the softmax.
        head: The output layer.
        temperature: Divides the logits from which tokens are drawn; the loss has none.
        disallow_correct: Whether the original token is never drawn.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: GeneratorHead,
        *,
        temperature: float = 1.0,
        disallow_correct: bool = False,
    ):
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.temperature = temperature
        self.disallow_correct = disallow_correct
        self.is_frozen = False

    def freeze(self) -> None:
        """Exclude the parameters from training, and switch dropout off for good."""
        self.is_frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode as torch's; a frozen model stays in evaluation mode, without dropout."""
        return super().train(mode and not self.is_frozen)

    def features(self, batch: Batch, index_BS: Tensor) -> Tensor:
        """Return the features (M, E) at chosen positions that the softmax reads.

        Args:
            batch: Rows as the encoder is to see them.
            index_BS: Chosen positions.
        """
        hidden_BLH = self.encoder(*batch)
        index_BSH = index_BS[:, :, None].expand(-1, -1, hidden_BLH.shape[-1])
        return self.head(hidden_BLH.gather(1, index_BSH).flatten(0, 1))

    @property
    def softmax(self) -> tuple[Tensor, Tensor]:
        """Table (V, E) and bias (V,) of the softmax."""
        return self.encoder.embeddings.tokens.weight, self.head.bias

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
            uniform_BS: Uniform numbers in [0, 1) that decide the draws.
        """
        features_ME = self.features(batch, index_BS)
        arguments = (
            features_ME,
            *self.softmax,
            targets_BS.flatten(),
            weights_BS.flatten(),
            uniform_BS.flatten(),
        )
        if self.temperature == 1.0 and not self.disallow_correct:
            prediction = loss_and_sample(*arguments)
        else:
            prediction = loss_and_sample_plain(
                *arguments, temperature=self.temperature, disallow_correct=self.disallow_correct
            )
        return prediction.view_as(index_BS)


class TwoTowers(nn.Module):
    """p(x_t | all tokens but x_t) at every position of an unmasked row, in one pass.

    One transformer reads from the left, one from the right. The prediction at t reads the states at
    t - 1 of the first and at t + 1 of the second. At the first and the last position of a row one
    side is zero; where tokens attend within their document, also at those of a document.

    Args:
        before: The tower that attends to earlier positions; its token embeddings are also the table
            of the softmax.
        after: The tower that attends to later positions.
        head: The output layer; its input is twice as wide as a tower.

    Source: run_pretraining.py, two_tower_generator, where the ends wrap around.
    """

    def __init__(self, before: Encoder, after: Encoder, head: GeneratorHead):
        super().__init__()
        self.before = before
        self.after = after
        self.head = head

    @property
    def softmax(self) -> tuple[Tensor, Tensor]:
        """Table (V, E) and bias (V,) of the softmax."""
        return self.before.embeddings.tokens.weight, self.head.bias

    def forward(self, batch: Batch) -> Tensor:
        """Return the features (B, L, E) that the softmax reads."""
        before_BLH = self.before(*batch, sees="before")
        after_BLH = self.after(*batch, sees="after")
        earlier_BKH, later_BKH = before_BLH[:, :-1], after_BLH[:, 1:]
        numbers_BL = batch.document_ids_BL  # 0 at padding
        if numbers_BL is None:
            numbers_BL = batch.attention_mask_BL
        if numbers_BL is not None:
            is_border_BK1 = (numbers_BL[:, 1:] != numbers_BL[:, :-1])[:, :, None]
            earlier_BKH = earlier_BKH.masked_fill(is_border_BK1, 0.0)
            later_BKH = later_BKH.masked_fill(is_border_BK1, 0.0)
        return self.head(
            torch.cat(
                [
                    nn.functional.pad(earlier_BKH, (0, 0, 1, 0)),
                    nn.functional.pad(later_BKH, (0, 0, 0, 1)),
                ],
                dim=-1,
            )
        )


class FixedDistribution(nn.Module):
    """A generator without context: every position has the same distribution.

    Args:
        probs_V: The distribution, up to a factor: uniform, or the number of times that each token
            occurs in the corpus (unigram).
        disallow_correct: Whether the original token is never drawn.

    Source: run_pretraining.py, uniform_generator.
    """

    probs_V: Tensor

    def __init__(self, probs_V: Tensor, *, disallow_correct: bool = False):
        super().__init__()
        self.register_buffer("probs_V", probs_V.double() / probs_V.double().sum(), persistent=False)
        self.disallow_correct = disallow_correct

    def forward(
        self,
        batch: Batch,
        index_BS: Tensor,
        targets_BS: Tensor,
        weights_BS: Tensor,
        uniform_BS: Tensor,
    ) -> Prediction:
        """Return what `MaskedLM.forward` returns; same arguments, a loss without gradient."""
        last = len(self.probs_V) - 1
        cumulative_V = self.probs_V.cumsum(0)
        threshold_BS = uniform_BS.double() * cumulative_V[-1]
        if self.disallow_correct:  # draw from what is left, and step over the original's stretch
            prob_BS = self.probs_V[targets_BS]
            threshold_BS = uniform_BS.double() * (cumulative_V[-1] - prob_BS)
            is_behind_BS = threshold_BS >= cumulative_V[targets_BS] - prob_BS
            threshold_BS = threshold_BS + is_behind_BS * prob_BS
        sampled_BS = torch.searchsorted(cumulative_V, threshold_BS, right=True).clamp_(max=last)
        nll_BS = -self.probs_V[targets_BS].clamp(min=math.exp(-100)).log().float()
        correct_BS = self.probs_V[targets_BS] == self.probs_V.max()
        return Prediction((nll_BS * weights_BS).sum(), sampled_BS, correct_BS)
