"""Evaluation on held-out rows during pre-training: measures, sample rows.

Masked positions and uniform numbers of a row are the same in every evaluation. They are a function
of its place among the held-out rows alone, so runs of any train.batch_size are measured alike.
"""

from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import torch

from electra.errors import require
from electra.method.masking import Counts, Draw
from electra.method.measures import Measures
from electra.method.objective import Judgement, Objective
from electra.model.batch import Batch, find_real
from electra.shards.examples import Rows
from electra.shards.order import permute
from electra.shards.store import Shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.training.optimizer import step_seed

NUM_SAMPLES = 8
"""Held-out rows shown token by token in samples.json."""
Domains = dict[str, Shards]
"""Shards of the `new` text, and of the `old` one if there are any; empty for a run that is not
continued."""


def heldout_rows(shards: Shards, config: PretrainConfig) -> Batch | None:
    """Return the held-out rows of an evaluation, the same rows in every call.

    None if `train.evaluate_rows` is 0.
    """
    if config.train.evaluate_rows == 0:
        return None
    examples = Rows(shards.heldout, shards.tokenizer, config.examples, seed=0)
    count = min(len(examples), config.train.evaluate_rows)
    size = config.train.batch_size
    if config.method.contrasts and count > size:  # its loss depends on the number of rows
        count -= count % size
    return examples.rows(permute(torch.arange(count).numpy(), len(examples), seed=0, epoch=0))


@torch.no_grad()
def evaluate(model: Objective, heldout: Batch, micro_batch_size: int) -> dict[str, Any]:
    """Return the measures on held-out rows, without dropout."""
    model.eval()
    measures = Measures(model.loss_weights)
    for parts in split_heldout(model, heldout, micro_batch_size):
        measures.add(model(*parts))
    model.train()
    return measures.record()


def split_heldout(
    model: Objective, heldout: Batch, micro_batch_size: int
) -> Iterator[tuple[Batch, Draw, Counts]]:
    """Yield the micro-batches of held-out rows, each with its draw, and the counts of all rows."""
    device = next(model.parameters()).device
    seeds = [step_seed(0, "heldout", row) for row in range(len(heldout.input_ids_BL))]
    parts = []
    for first in range(0, len(seeds), micro_batch_size):
        places = slice(first, first + micro_batch_size)
        rows = heldout.rows(places)
        parts.append((rows, *model.masking.draw_rows(rows.to(device), seeds[places])))
    counts = Counts(
        *(torch.stack(each).sum() for each in zip(*(c for _, _, c in parts), strict=True))
    )
    for rows, draw, _ in parts:
        yield rows.to(device), draw, counts


@torch.no_grad()
def view_rows(
    model: Objective, heldout: Batch, tokenizer: Tokenizer, micro_batch_size: int
) -> list[list[dict[str, Any]]]:
    """Return the first NUM_SAMPLES held-out rows, token by token.

    A token is a dict of token, original, is_replaced and prob_replaced. The list is empty if the
    objective has no discriminator.
    """
    model.eval()
    first = heldout.rows(slice(0, NUM_SAMPLES))
    enough = starmap(model, split_heldout(model, first, micro_batch_size))
    judgements = [output.judgement for output in enough if output.judgement]
    rows: list[list[dict[str, Any]]] = []
    if not judgements:
        return rows
    judgement = Judgement(*map(torch.cat, zip(*judgements, strict=True)))
    real_BL = find_real(first)
    for row in range(len(judgement.logits_BL)):
        length = int(real_BL[row].sum())
        columns = zip(
            tokenizer.tokens(judgement.corrupt_ids_BL[row, :length].tolist()),
            tokenizer.tokens(first.input_ids_BL[row, :length].tolist()),
            judgement.is_replaced_BL[row, :length].tolist(),
            judgement.logits_BL[row, :length].sigmoid().tolist(),
            strict=True,
        )
        names = ("token", "original", "is_replaced", "prob_replaced")
        rows.append([dict(zip(names, column, strict=True)) for column in columns])
    return rows


def open_domains(shards: Shards, config: PretrainConfig, *, verify: bool) -> Domains:
    """Return the shards whose held-out parts show whether a continued run makes a model worse.

    With `verify`, old shards are read whole, and their hashes compared.
    """
    train = config.train
    if not train.init_from or not train.evaluate_rows:
        return {}
    if not train.also_evaluate:
        return {"new": shards}
    old = open_shards(Path(train.also_evaluate), verify=verify)
    require(bool(old.heldout), f"{old.folder} has no held-out part; prepare it with one")
    require(
        old.tokenizer.digest == shards.tokenizer.digest,
        f"train.also_evaluate {old.folder} has another vocabulary than {shards.folder}",
    )
    return {"new": shards, "old": old}
