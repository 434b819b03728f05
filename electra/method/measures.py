"""What the networks are worth, summed over many outputs of an objective.

Shape suffixes: B rows, L positions, K intervals of the logit.
"""

import math
from typing import Any

import torch
from torch import Tensor

from electra.method.objective import Judgement, Output

LARGEST_LOGIT = 16.0
"""Logits beyond it, in either direction, are counted as equal to it."""
NUM_INTERVALS = 1 << 16
"""Intervals of equal width, 1 / 2048, in which logits are counted."""


class Measures:
    """Sums of the outputs of several steps; `record` turns them into the numbers one looks at.

    Everything stays on the device until `record` is called, so that a step never waits for it.
    Means are over positions and tokens of all steps together, not means of means. Memory does not
    grow with the rows: logits are counted, not kept.
    """

    def __init__(self, loss_weights: dict[str, float]):
        self.loss_weights = loss_weights
        self.sums: list[dict[str, Tensor]] = []
        self.counts_2K: Tensor | None = None

    def add(self, output: Output) -> None:
        """Take one output in."""
        self.sums.append({name: torch.stack(pair) for name, pair in output.means.items()})
        if output.judgement:
            if self.counts_2K is None:
                self.counts_2K = no_logits(output.judgement.logits_BL.device)
            count_logits(self.counts_2K, output.judgement)

    def record(self) -> dict[str, Any]:
        """Return the measures by name (docs/ARTEFACTS.md) and forget the outputs."""
        record: dict[str, Any] = {}
        for name in self.sums[-1]:
            pairs = torch.stack([sums[name] for sums in self.sums if name in sums])
            total, number = pairs.double().sum(dim=0).tolist()
            record[name] = total / number
        if self.counts_2K is not None:
            record["constant_disc_loss"] = entropy(record["replaced_rate"])
            record["disc_auc"] = area_under_curve(self.counts_2K)
        record["loss"] = sum(
            weight * record[name] for name, weight in self.loss_weights.items() if name in record
        )
        self.sums, self.counts_2K = [], None
        return record


def entropy(prob: float) -> float:
    """Return the entropy of a coin, nats: the least loss of a predictor that sees no input."""
    return -sum(p * math.log(p) for p in (prob, 1 - prob) if p > 0)


def no_logits(device: torch.device) -> Tensor:
    """Return counts_2K before anything is counted: row 0 of original tokens, 1 of replaced ones."""
    return torch.zeros((2, NUM_INTERVALS), dtype=torch.int64, device=device)


def count_logits(counts_2K: Tensor, judgement: Judgement) -> None:
    """Add to the counts each judged token, in the interval of its logit.

    Nothing is read back from the device.
    """
    scale = NUM_INTERVALS / (2 * LARGEST_LOGIT)
    logits_BL = judgement.logits_BL.float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT).nan_to_num_(0.0)
    place_BL = logits_BL.add_(LARGEST_LOGIT).mul_(scale).long().clamp_(max=NUM_INTERVALS - 1)
    place_BL += NUM_INTERVALS * judgement.is_replaced_BL
    counts_2K.view(-1).scatter_add_(0, place_BL.flatten(), judgement.judged_BL.long().flatten())


def area_under_curve(counts_2K: Tensor) -> float:
    """Return the probability that a replaced token's logit exceeds an original one's.

    Ties count half, and two logits in one interval are a tie. The error is therefore at most half
    the share of the pairs (a replaced token, an original one) that fall into one interval, and thus
    at most half the largest share of all original tokens that any interval holds: for logits whose
    density nowhere exceeds 1, less than 0.00025. Not a number where one of the two is missing.

    Args:
        counts_2K: As `count_logits` leaves them.
    """
    original_K, replaced_K = counts_2K.cpu().double()
    pairs = (original_K.sum() * replaced_K.sum()).item()
    if not pairs:
        return math.nan
    below_K = original_K.cumsum(0) - original_K / 2
    return (replaced_K * below_K).sum().item() / pairs
