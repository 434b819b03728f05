"""What pre-training costs in floating-point operations: the true count, and the paper's.

The true count is that of the matrix products a step needs: a multiply-add is two operations, the
backward pass costs twice the forward pass, a look-up costs nothing. The paper's follows the script
of the released code, which also counts additions, norms and dropout, takes a look-up for a product
with a one-hot matrix (40% of all it counts for Small), and lets backward cost as much as forward.
Both end within a third of one another; comparisons "at equal compute" use the true one.

Source: section 3.1 and flops_computation.py.
"""

from typing import NamedTuple

from electra.config import EncoderConfig, PretrainConfig
from electra.method.objective import Objective

FORWARD_AND_BACKWARD = 3
DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5
"""The script's operations for each element."""
OUTPUT_FRACTION = 0.15625
"""The script's share of positions that are predicted: 20 of 128."""


class Part(NamedTuple):
    """One line of the true count."""

    name: str
    forward: float
    """Operations for each token of the rows, forward pass."""
    passes: float
    """Forward passes that it costs in all: 3 if trained, 1 if only run."""

    @property
    def train(self) -> float:
        """Operations for each token of a training step."""
        return self.forward * self.passes


def count_parts(objective: Objective, length: int) -> list[Part]:
    """Return the true count of an objective's networks for rows of this length, part by part.

    Padding counts as tokens do. A gradient that is recomputed to save memory is counted once.
    """
    chosen = max(1, round(objective.masking.config.mask_prob * length)) / length
    parts = []
    for role, network in objective.networks.items():
        passes = FORWARD_AND_BACKWARD * network.trained + network.run - network.trained
        counts: dict[str, float] = {}
        for encoder in network.encoders:
            for name, flops in encoder.count_flops(length).items():
                counts[name] = counts.get(name, 0) + flops
        share = chosen if network.at == "chosen" else 1.0
        counts["softmax" if network.predicts == "tokens" else "head"] = share * network.head.flops
        parts += [Part(f"{role}: {name}", flops, passes) for name, flops in counts.items()]
    return parts


def count_true(objective: Objective, length: int) -> float:
    """Return the true count for each token of a training step, the mean over all steps."""
    return sum(part.train for part in count_parts(objective, length))


def count_run(objective: Objective, config: PretrainConfig) -> dict[str, float]:
    """Return what a whole run costs, by either count."""
    train, length = config.train, config.examples.sequence_length
    true = count_true(objective, length) * train.steps * train.batch_size * length
    return {"true": true, "paper": count_as_the_paper(objective, config)}


def count_as_the_paper(objective: Objective, config: PretrainConfig) -> float:
    """Return the paper's count of a whole run."""
    total = 0.0
    for network in objective.networks.values():
        for encoder in network.encoders:
            total += count_training(
                encoder.config,
                config.examples.sequence_length,
                config.train.batch_size,
                config.train.steps * network.run,
                judges=network.predicts != "tokens",
                # Two towers stand under one softmax.
                predicted=(OUTPUT_FRACTION if network.at == "chosen" else 1.0)
                / len(network.encoders),
            )
    return total


def count_training(
    sizes: EncoderConfig,
    length: int,
    batch_size: int,
    steps: float,
    *,
    judges: bool = False,
    predicted: float = OUTPUT_FRACTION,
    attention_size: int = 0,
    is_decoder: bool = False,
) -> float:
    """Return the script's count of training one transformer.

    Args:
        sizes: Its sizes.
        length: Positions of a row.
        batch_size: Rows of a step.
        steps: Steps.
        judges: A discriminator's head instead of a softmax.
        predicted: Share of the positions at which the softmax predicts.
        attention_size: Width of all heads together; 0: the hidden size.
        is_decoder: Whether there is attention to an encoder, too.
    """
    h, i, e, s = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size, length
    heads, v, k = sizes.num_attention_heads, sizes.vocab_size, attention_size or h
    attention = (
        (6 * h * k + 3 * k + 2 * k * s)  # queries, keys, values; scores
        + (SOFTMAX + DROPOUT + 1) * s * heads
        + 2 * h * s  # weighted sum
        + (2 * h * h + h + DROPOUT * h + h + NORM)  # output; NORM, not NORM * h, as in the script
    )
    feed_forward = 4 * h * i + ACTIVATION * i + i + h + DROPOUT * h + h + NORM * h
    block = (2 if is_decoder else 1) * attention + feed_forward
    embeddings = 2 * e * v + 2 * e * (s + 2) + 2 * e + NORM * e + DROPOUT * e
    if e != h:
        embeddings += 2 * h * e + h
    if judges:
        head: float = 2 * h * h + h + ACTIVATION * h + 2 * h
    else:
        head = 2 * e * v + 2 * h * e + e + ACTIVATION * e + NORM * e + SOFTMAX * v + 2 * v
        head *= predicted
    layers = sizes.num_hidden_layers
    return 2 * batch_size * steps * (layers * block * s + embeddings * s + head * s)
