"""What pre-training costs in floating-point operations: the true count, and the paper's.

The true count is that of the matrix products a step needs: a multiply-add is two operations, the
backward pass costs twice the forward pass, a look-up costs nothing. The paper's follows the script
of the released code, which also counts additions, norms and dropout, takes a look-up for a product
with a one-hot matrix (40% of all it counts for Small), and lets backward cost as much as forward.
Both end within a third of one another; comparisons "at equal compute" use the true one.

Source: section 3.1 and flops_computation.py.
"""

import dataclasses
from typing import NamedTuple

from electra.config import EncoderConfig, PretrainConfig

FORWARD_AND_BACKWARD = 3
DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5
"""The script's operations for each element."""
JUDGES = ("rtd", "rtd_masked_only", "electric")
"""Objectives that keep a discriminator."""
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


def count_parts(config: PretrainConfig) -> list[Part]:
    """Return the true count of a configuration, part by part.

    Padding counts as tokens do. A gradient that is recomputed to save memory is counted once.
    """
    method, sizes = config.method, config.model
    length = config.examples.sequence_length
    share = max(1, round(method.mask_prob * length)) / length
    predicted = 1.0 if method.objective == "all_tokens_mlm" else share
    parts = []
    if method.objective != "mlm" and config.generator.kind in ("network", "frozen"):
        # Of two stages, the first trains the generator and the second only runs it.
        first = config.second_stage / config.train.steps if config.second_stage else 1.0
        if config.generator.kind == "frozen":
            first = 0.0
        passes = FORWARD_AND_BACKWARD * first + (1 - first)
        generator = config.generator.encoder(sizes)
        networks = [*_encoder(generator, length), _softmax(generator, share)]
        if method.objective == "electric":  # two towers, and a softmax everywhere
            both = dataclasses.replace(generator, hidden_size=2 * generator.hidden_size)
            towers = [part._replace(forward=2 * part.forward) for part in networks[:-1]]
            networks = [*towers, _softmax(both, 1.0)]
        parts += [part._replace(name=f"generator: {part.name}", passes=passes) for part in networks]
    kept = [*_encoder(sizes, length)]
    if method.objective in JUDGES:
        kept.append(Part("head", 2 * sizes.hidden_size * (sizes.hidden_size + 1), 0))
        name = "discriminator"
    else:
        kept.append(_softmax(sizes, predicted))
        name = "encoder"
    second = 1 - config.second_stage / config.train.steps
    parts += [
        part._replace(name=f"{name}: {part.name}", passes=FORWARD_AND_BACKWARD * second)
        for part in kept
    ]
    return parts


def _encoder(sizes: EncoderConfig, length: int) -> list[Part]:
    h, e, layers = sizes.hidden_size, sizes.embedding_size, sizes.num_hidden_layers
    parts = [
        Part("attention, projections", layers * 8 * h * h, 0),
        Part("attention, scores and sums", layers * 4 * h * length, 0),
        Part("feed-forward", layers * 4 * h * sizes.intermediate_size, 0),
    ]
    return [Part("embeddings, projection", 2 * e * h, 0), *parts] if e != h else parts


def _softmax(sizes: EncoderConfig, share: float) -> Part:
    e = sizes.embedding_size
    return Part("softmax", share * 2 * e * (sizes.hidden_size + sizes.vocab_size), 0)


def count_true(config: PretrainConfig) -> float:
    """Return the true count for each token of a training step."""
    return sum(part.train for part in count_parts(config))


def count_run(config: PretrainConfig) -> dict[str, float]:
    """Return what a whole run costs, by either count."""
    train = config.train
    num_tokens = train.steps * train.batch_size * config.examples.sequence_length
    return {"true": count_true(config) * num_tokens, "paper": count_as_the_paper(config)}


def count_as_the_paper(config: PretrainConfig) -> float:
    """Return the paper's count of a whole run."""
    method, train, length = config.method, config.train, config.examples.sequence_length
    judges = method.objective in JUDGES
    predicted = 1.0 if method.objective == "all_tokens_mlm" else OUTPUT_FRACTION
    kept_steps = train.steps - config.second_stage
    total = count_training(
        config.model, length, train.batch_size, kept_steps, judges=judges, predicted=predicted
    )
    if method.objective != "mlm" and config.generator.kind in ("network", "frozen"):
        generator = config.generator.encoder(config.model)
        # Electric has two towers under one softmax, which predicts everywhere.
        towers, share = (2, 0.5) if method.objective == "electric" else (1, OUTPUT_FRACTION)
        total += towers * count_training(
            generator, length, train.batch_size, train.steps, predicted=share
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
