"""Evaluation on held-out rows during pre-training: measures, and sample rows to look at."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from electra.config import PretrainConfig
from electra.method.masking import Counts, Draw
from electra.method.measures import Measures
from electra.method.objective import Judgement, Objective, Output
from electra.model.batch import Batch, find_real
from electra.shards.examples import Examples, permute
from electra.shards.store import Shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.optimizer import step_seed

NUM_SAMPLES = 8
"""Held-out rows shown token by token in samples.json."""


@torch.no_grad()
def view_rows(
    model: Objective,
    batch: Batch,
    tokenizer: Tokenizer,
    device: torch.device,
    micro_batch_size: int,
) -> list[list[dict[str, Any]]]:
    """Return the first NUM_SAMPLES rows of a held-out batch, token by token.

    Args:
        model: The objective, on the device.
        batch: The first batch of `heldout_batches`.
        tokenizer: The run's tokenizer.
        device: Device of the objective.
        micro_batch_size: Rows per micro-batch.

    Returns:
        A list of tokens for each row. A token is a dict of token, original, is_replaced and
        prob_replaced. The list is empty if the objective has no discriminator.
    """
    model.eval()
    outputs = compute_heldout(model, batch, 0, device, micro_batch_size)
    enough = islice(outputs, -(-NUM_SAMPLES // micro_batch_size))
    judgements = [output.judgement for output in enough if output.judgement]
    rows: list[list[dict[str, Any]]] = []
    if not judgements:
        return rows
    judgement = Judgement(*map(torch.cat, zip(*judgements, strict=True)))
    real_BL = find_real(batch)
    for row in range(min(NUM_SAMPLES, len(judgement.logits_BL))):
        length = int(real_BL[row].sum())
        columns = zip(
            tokenizer.tokens(judgement.corrupt_ids_BL[row, :length].tolist()),
            tokenizer.tokens(batch.input_ids_BL[row, :length].tolist()),
            judgement.is_replaced_BL[row, :length].tolist(),
            judgement.logits_BL[row, :length].sigmoid().tolist(),
            strict=True,
        )
        names = ("token", "original", "is_replaced", "prob_replaced")
        rows.append([dict(zip(names, column, strict=True)) for column in columns])
    return rows


def heldout_batches(shards: Shards, config: PretrainConfig) -> list[Batch]:
    """Return the held-out rows of an evaluation, the same rows in every call.

    The list is empty if `train.evaluate_rows` is 0.
    """
    if config.train.evaluate_rows == 0:
        return []
    examples = Examples(shards.heldout, shards.tokenizer, config.examples, seed=0)
    count = min(len(examples), config.train.evaluate_rows)
    rows = permute(torch.arange(count).numpy(), len(examples), seed=0, epoch=0)
    size = config.train.batch_size
    return [examples.rows(rows[start : start + size]) for start in range(0, count, size)]


@torch.no_grad()
def evaluate(
    model: Objective, batches: list[Batch], device: torch.device, micro_batch_size: int
) -> dict[str, Any]:
    """Return the measures on held-out rows, without dropout.

    Masked positions and uniform numbers are the same in every evaluation.

    Args:
        model: The objective, on the device.
        batches: The batches of `heldout_batches`.
        device: Device of the objective.
        micro_batch_size: Rows per micro-batch, as in a step. Masked positions and uniform numbers
            do not depend on the micro-batch size.
    """
    model.eval()
    measures = Measures(model.loss_weights)
    for number, batch in enumerate(batches):
        for output in compute_heldout(model, batch, number, device, micro_batch_size):
            measures.add(output)
    model.train()
    return measures.record()


def compute_heldout(
    model: Objective, batch: Batch, number: int, device: torch.device, micro_batch_size: int
) -> Iterator[Output]:
    """Yield the output of each micro-batch of a held-out batch."""
    for parts in split_heldout(model, batch, number, device, micro_batch_size):
        yield model(*parts)


def split_heldout(
    model: Objective, batch: Batch, number: int, device: torch.device, micro_batch_size: int
) -> Iterator[tuple[Batch, Draw, Counts]]:
    """Yield the micro-batches of a held-out batch, with their draw and the counts of the batch."""
    rng = torch.Generator(device).manual_seed(step_seed(0, "heldout", number))
    batch = batch.to(device)
    draw = model.masking.draw(batch, rng)
    counts = model.masking.count(batch, draw)
    for first in range(0, len(batch.input_ids_BL), micro_batch_size):
        rows = slice(first, first + micro_batch_size)
        yield batch.rows(rows), draw.rows(rows), counts
