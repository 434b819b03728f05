"""Losses, accuracies and AUC over many outputs of an objective.

Shape suffixes: B rows, L positions, N measures, K intervals of the logit.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from electra.method.masking import Means
from electra.method.objective import Judgement, Output

LARGEST_LOGIT = 16.0
"""Logits are clamped to [-LARGEST_LOGIT, LARGEST_LOGIT] before they are counted."""
NUM_INTERVALS = 1 << 16
"""Number of intervals in which logits are counted, each of width 1 / 2048."""


class Measures:
    """Sums of the outputs of several steps; `record` returns the measures.

    All sums stay on the device until `record` is called, so a step never waits for the device.
    Means are over the positions of all steps, not means of step means. Memory does not grow with
    the number of rows, because logits are counted in intervals and not stored.

    Args:
        loss_weights: Weight of each loss in the loss that is minimised.

    Attributes:
        tally: Adds an output to the sums: `tally` or its compiled form.
    """

    def __init__(self, loss_weights: dict[str, float]):
        self.loss_weights = loss_weights
        self.names: list[str] = []
        self.sums_N2: Tensor | None = None
        self.counts_2K: Tensor | None = None
        """Row 0 for original tokens, row 1 for replaced ones; None: there is no discriminator."""
        self.tally = tally

    def add(self, output: Output, is_skipped: Tensor | None = None) -> None:
        """Add the output of one micro-batch, without gradients; all outputs have the same measures.

        `is_skipped`: whether the step was skipped, a bool on the device; the output is then
        ignored. None: the step was not skipped.
        """
        if self.sums_N2 is None:
            self.names = list(output.means)
            device = output.loss.device
            self.sums_N2 = torch.zeros(len(self.names), 2, dtype=torch.float64, device=device)
            if output.judgement:
                self.counts_2K = torch.zeros(2, NUM_INTERVALS, dtype=torch.int64, device=device)
        self.tally(self.sums_N2, self.counts_2K, output.means, output.judgement, is_skipped)

    def record(
        self, add_others: Callable[[Sequence[Tensor]], None] | None = None
    ) -> dict[str, Any]:
        """Return the measures by name (docs/ARTEFACTS.md), and reset the sums in place.

        Means of no terms are NaN, for example if all steps were skipped. With several processes,
        `add_others` adds their sums, in place.
        """
        assert self.sums_N2 is not None
        if add_others:
            add_others([self.sums_N2])
        record: dict[str, Any] = {
            name: total / number if number else math.nan
            for name, (total, number) in zip(self.names, self.sums_N2.tolist(), strict=True)
        }
        self.sums_N2.zero_()
        if self.counts_2K is not None:
            if add_others:
                add_others([self.counts_2K])
            record["constant_disc_loss"] = entropy(record["replaced_rate"])
            record["disc_auc"] = area_under_curve(self.counts_2K)
            self.counts_2K.zero_()
        record["loss"] = sum(weight * record[name] for name, weight in self.loss_weights.items())
        return record


def tally(
    sums_N2: Tensor,
    counts_2K: Tensor | None,
    means: Means,
    judgement: Judgement | None,
    is_skipped: Tensor | None = None,
) -> None:
    """Add measures to the sums, in the order of `means`, and judged tokens to the counts.

    The measures of a skipped step (see `Measures.add`) may be NaN.
    """
    terms_N2 = torch.stack([torch.stack(pair) for pair in means.values()])
    if is_skipped is not None:
        terms_N2 = terms_N2.masked_fill(is_skipped, 0)
        if judgement:
            judgement = judgement._replace(judged_BL=judgement.judged_BL & ~is_skipped)
    sums_N2 += terms_N2
    if judgement and counts_2K is not None:
        count_logits(counts_2K, judgement)


def entropy(prob: float) -> float:
    """Return the entropy of a Bernoulli variable, nats: the least loss of a constant prediction."""
    return -sum(p * math.log(p) for p in (prob, 1 - prob) if p != 0)


def count_logits(counts_2K: Tensor, judgement: Judgement) -> None:
    """Count each judged token in the interval of its logit; `counts_2K` is changed in place.

    Reads nothing back from the device.
    """
    scale = NUM_INTERVALS / (2 * LARGEST_LOGIT)
    logits_BL = judgement.logits_BL.float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT).nan_to_num_(0.0)
    place_BL = logits_BL.add_(LARGEST_LOGIT).mul_(scale).long().clamp_(max=NUM_INTERVALS - 1)
    place_BL += NUM_INTERVALS * judgement.is_replaced_BL
    counts_2K.view(-1).scatter_add_(0, place_BL.flatten(), judgement.judged_BL.long().flatten())


def area_under_curve(counts_2K: Tensor) -> float:
    """Return the AUC: the probability that a replaced token's logit exceeds an original token's.

    Ties count half, and two logits in one interval are a tie. The error is at most half the share
    of (replaced, original) pairs whose logits fall into one interval. This share is at most the
    largest share of the original tokens in any interval. If the density of the logits never
    exceeds 1, the error is less than 0.00025.
    Without original or without replaced tokens it is NaN.
    """
    original_K, replaced_K = counts_2K.cpu().double()
    pairs = (original_K.sum() * replaced_K.sum()).item()
    if not pairs:
        return math.nan
    below_K = original_K.cumsum(0) - original_K / 2
    return (replaced_K * below_K).sum().item() / pairs
