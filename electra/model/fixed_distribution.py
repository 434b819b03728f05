"""A generator without context: every position has the same distribution."""

import math

import torch
from torch import Tensor, nn

from electra.model.batch import Batch
from electra.model.softmax import Prediction


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
        if self.disallow_correct:  # draw from the other tokens, skipping the original's interval
            prob_BS = self.probs_V[targets_BS]
            threshold_BS = uniform_BS.double() * (cumulative_V[-1] - prob_BS)
            is_behind_BS = threshold_BS >= cumulative_V[targets_BS] - prob_BS
            threshold_BS = threshold_BS + is_behind_BS * prob_BS
        sampled_BS = torch.searchsorted(cumulative_V, threshold_BS, right=True).clamp_(max=last)
        nll_BS = -self.probs_V[targets_BS].clamp(min=math.exp(-100)).log().float()
        correct_BS = targets_BS == self.probs_V.argmax()
        return Prediction((nll_BS * weights_BS).sum(), sampled_BS, correct_BS)
