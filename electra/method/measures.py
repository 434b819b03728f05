"""What generator and discriminator are worth, summed over many outputs of the method."""

import math
from typing import Any

import torch
from torch import Tensor

from electra.method.replaced_token_detection import Output


class Measures:
    """Sums of the outputs of several steps; `record` turns them into the numbers one looks at.

    Everything stays on the device until `record` is called, so that a step never waits for it.
    Means are over positions and tokens of all steps together, not means of means.
    """

    def __init__(self, disc_weight: float):
        self.disc_weight = disc_weight
        self.outputs: list[dict[str, Tensor]] = []

    def add(self, output: Output) -> None:
        """Take one output in."""
        self.outputs.append(
            {
                "mlm_sum": output.mlm_loss * output.num_chosen,
                "num_chosen": output.num_chosen,
                "num_correct": output.num_correct,
                "num_sampled_correct": output.num_sampled_correct,
                "num_real": output.real_BL.sum(),
                "num_replaced": output.is_replaced_BL.sum(),
                "disc_sum": output.disc_loss * output.real_BL.sum(),
                "real_logits": output.disc_logits_BL[output.real_BL & ~output.is_replaced_BL],
                "replaced_logits": output.disc_logits_BL[output.is_replaced_BL],
            }
        )

    def record(self) -> dict[str, Any]:
        """Return the measures by name (docs/ARTEFACTS.md) and forget the outputs."""
        names = [name for name in self.outputs[0] if not name.endswith("logits")]
        total = {
            name: torch.stack([output[name] for output in self.outputs]).double().sum().item()
            for name in names
        }
        real, replaced = (
            torch.cat([output[name] for output in self.outputs])
            for name in ("real_logits", "replaced_logits")
        )
        self.outputs = []
        mlm_loss = total["mlm_sum"] / total["num_chosen"]
        disc_loss = total["disc_sum"] / total["num_real"]
        replaced_rate = total["num_replaced"] / total["num_real"]
        return {
            "mlm_loss": mlm_loss,
            "mlm_accuracy": total["num_correct"] / total["num_chosen"],
            "sampled_accuracy": total["num_sampled_correct"] / total["num_chosen"],
            "replaced_rate": replaced_rate,
            "disc_loss": disc_loss,
            "constant_disc_loss": entropy(replaced_rate),
            "disc_auc": area_under_curve(replaced, real),
            "loss": mlm_loss + self.disc_weight * disc_loss,
        }


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
