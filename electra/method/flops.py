"""Floating-point operations of pre-training: the true count and the paper's count.

The true count covers the matrix products of a step. A multiply-add is two operations, the backward
pass costs twice the forward pass, and an embedding look-up costs nothing.

The paper's count follows the script of the released code. The script also counts additions, norms
and dropout, counts an embedding look-up as a product with a one-hot matrix (40% of the total for
Small), and lets the backward pass cost as much as the forward pass.

At the paper's sizes the two counts differ by less than a third. Comparisons at equal compute use
the true count.

Source: section 3.1 and flops_computation.py.
"""

from itertools import product
from typing import NamedTuple

from torch import nn

from electra.method.masking import count_slots
from electra.method.objective import Objective
from electra.model.config import EncoderConfig
from electra.model.heads import GeneratorHead

FORWARD_AND_BACKWARD = 3
DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5
"""Operations per element. Source: flops_computation.py."""
OUTPUT_FRACTION = 0.15625
"""Share of masked positions: 20 of 128. Source: flops_computation.py."""


class Part(NamedTuple):
    """One line of the true count."""

    name: str
    forward: float
    """Operations of the forward pass per token of the rows."""
    passes: float
    """Cost of a step in forward passes: 3 if the part is trained, 1 if it only runs."""

    @property
    def train(self) -> float:
        """Operations of a training step per token."""
        return self.forward * self.passes


def count_parts(objective: Objective, length: int) -> list[Part]:
    """Return the true count of an objective's networks, one entry per part of a network.

    Padding is counted like tokens. Recomputed activations and logits are counted once, the few
    products of states with states are not.
    """
    config = objective.masking.config
    chosen = count_slots(config.mask_prob, length, config.mode) / length
    shares = {"chosen": chosen, "all": 1.0, "followed": 1 - 1 / length, "first": 1 / length}
    parts = []
    for role, network in objective.networks.items():
        passes = FORWARD_AND_BACKWARD * network.trained + network.run - network.trained
        counts: dict[str, float] = {}
        lengths = [length] if network.crop_length is None else [length, network.crop_length(length)]
        for encoder, each in product(network.encoders, lengths):
            for name, flops in encoder.count_flops(each, network.first_layer).items():
                counts[name] = counts.get(name, 0) + flops * each / length
        head = "softmax" if network.predicts in ("tokens", "next") else "head"
        counts[head] = shares[network.at] * _count_head(network.head)
        parts += [Part(f"{role}: {name}", flops, passes) for name, flops in counts.items()]
    return parts


def _count_head(head: nn.Module) -> float:
    """Return the operations per position of a head: of its layers, and of a tied softmax."""
    products = sum(each.weight.numel() for each in head.modules() if isinstance(each, nn.Linear))
    if isinstance(head, GeneratorHead):
        products += head.dense.out_features * len(head.bias)
    return 2.0 * products


def count_true(objective: Objective, length: int) -> float:
    """Return the true count per token of a training step, averaged over all steps."""
    return sum(part.train for part in count_parts(objective, length))


def count_stages(objective: Objective, length: int) -> tuple[float, float]:
    """Return the true count per token of a step of the first and of the second stage.

    If no stage freezes the returned network, the first count is unused.
    """
    share, counts = objective.share_awake, []
    for objective.share_awake in (0.0, 1.0):
        counts.append(count_true(objective, length))
    objective.share_awake = share
    return counts[0], counts[1]


def count_run(
    objective: Objective, length: int, batch_size: int, num_steps: int
) -> dict[str, float]:
    """Return the "true" and the "paper" operations of a run with rows of `length` tokens."""
    true = count_true(objective, length) * num_steps * batch_size * length
    return {"true": true, "paper": count_as_the_paper(objective, length, batch_size, num_steps)}


def count_as_the_paper(objective: Objective, length: int, batch_size: int, num_steps: int) -> float:
    """Return the paper's count of a run; arguments as for `count_run`."""
    total = 0.0
    for network in objective.networks.values():
        if network.at == "first":
            continue  # the script leaves next-sentence prediction out
        share = (network.run + network.trained) / 2
        steps = num_steps * share  # a pass backward costs as much as one forward
        for encoder in network.encoders:
            total += count_training(
                encoder.config,
                length,
                batch_size,
                steps,
                judges=network.predicts not in ("tokens", "next"),
                first_layer=network.first_layer,
                # The two towers share one softmax, which is counted once.
                predicted=(OUTPUT_FRACTION if network.at == "chosen" else 1.0)
                / len(network.encoders),
            )
            if network.crop_length is not None:
                sizes, each = encoder.config, network.crop_length(length)
                total += count_training(sizes, each, batch_size, steps, predicted=0.0)
    return total


def count_training(
    sizes: EncoderConfig,
    length: int,
    batch_size: int,
    steps: float,
    *,
    judges: bool = False,
    predicted: float = OUTPUT_FRACTION,
    first_layer: int = 0,
) -> float:
    """Return the paper's count for training one transformer.

    Args:
        sizes: Sizes of the transformer.
        length: Row length, tokens.
        batch_size: Rows per step.
        steps: Number of steps.
        judges: Whether the head is a discriminator head instead of a softmax.
        predicted: Share of the positions at which the softmax predicts.
        first_layer: First layer that counts; without the layers below, the embeddings do not.

    The script does not cover ModernBERT. Here its layers are counted like ELECTRA's, plus the gate,
    with attention over the whole row.

    Source: flops_computation.py.
    """
    h, i, e, s = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size, length
    heads, v = sizes.num_attention_heads, sizes.vocab_size
    attention = (
        (6 * h * h + 3 * h + 2 * h * s)  # queries, keys, values; scores
        + (SOFTMAX + DROPOUT + 1) * s * heads
        + 2 * h * s  # weighted sum
        + (2 * h * h + h + DROPOUT * h + h + NORM)  # output; NORM, not NORM * h, as in the script
    )
    block = attention + 4 * h * i + ACTIVATION * i + i + h + DROPOUT * h + h + NORM * h
    if sizes.is_gated:
        block += 2 * h * i + i  # the gate
    embeddings = 2 * e * v + 2 * e * (s + 2) + 2 * e + NORM * e + DROPOUT * e
    if e != h:
        embeddings += 2 * h * e + h
    if judges:
        head: float = 2 * h * h + h + ACTIVATION * h + 2 * h
    else:
        head = 2 * e * v + 2 * h * e + e + ACTIVATION * e + NORM * e + SOFTMAX * v + 2 * v
        head *= predicted
    layers = sizes.num_hidden_layers - first_layer
    embeddings *= not first_layer
    return 2 * batch_size * steps * (layers * block * s + embeddings * s + head * s)
