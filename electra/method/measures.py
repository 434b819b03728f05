"""What the networks are worth, summed over many outputs of an objective."""

import math
from typing import Any

import torch
from torch import Tensor

from electra.method.objective import Output


class Measures:
    """Sums of the outputs of several steps; `record` turns them into the numbers one looks at.

    Everything stays on the device until `record` is called, so that a step never waits for it.
    Means are over positions and tokens of all steps together, not means of means.
    """

    def __init__(self, loss_weights: dict[str, float]):
        self.loss_weights = loss_weights
        self.sums: list[dict[str, Tensor]] = []
        self.judged: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, output: Output) -> None:
        """Take one output in."""
        self.sums.append({name: torch.stack(pair) for name, pair in output.means.items()})
        if judgement := output.judgement:
            masks = judgement.judged_BL & judgement.is_replaced_BL, judgement.judged_BL
            # Copies, as the sums are: the next step may write its outputs to the same place.
            self.judged.append((judgement.logits_BL.clone(), masks[0], judgement.judged_BL.clone()))

    def record(self) -> dict[str, Any]:
        """Return the measures by name (docs/ARTEFACTS.md) and forget the outputs."""
        record: dict[str, Any] = {}
        for name in self.sums[-1]:
            pairs = torch.stack([sums[name] for sums in self.sums if name in sums])
            total, number = pairs.double().sum(dim=0).tolist()
            record[name] = total / number
        if self.judged:
            record["constant_disc_loss"] = entropy(record["replaced_rate"])
            record["disc_auc"] = area_under_curve(
                torch.cat([logits[replaced] for logits, replaced, _ in self.judged]),
                torch.cat([logits[judged & ~replaced] for logits, replaced, judged in self.judged]),
            )
        record["loss"] = sum(
            weight * record[name] for name, weight in self.loss_weights.items() if name in record
        )
        self.sums, self.judged = [], []
        return record


def entropy(prob: float) -> float:
    """Return the entropy of a coin, nats: the least loss of a predictor that sees no input."""
    return -sum(p * math.log(p) for p in (prob, 1 - prob) if p > 0)


def area_under_curve(positive: Tensor, negative: Tensor) -> float:
    """Return the probability that a positive's score exceeds a negative's, ties counting half.

    Not a number where one of the two is empty.
    """
    if not len(positive) or not len(negative):
        return math.nan
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive) + torch.searchsorted(
        ordered, positive, right=True
    )
    return (below.double().sum() / (2 * len(positive) * len(negative))).item()
