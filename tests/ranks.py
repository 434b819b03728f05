"""A program for torchrun: the first steps of some objectives, and what each process computed.

A name that is a setting, as train.compile=yes, is RTD with this setting.

    torchrun --nproc-per-node 2 tests/ranks.py OUT STEPS SHARDING NAME ...

Each process writes OUT/<name>-<rank>.json: the losses, the gradient norms, of each of its rows in
every step a hash of its tokens, positions and draws, and how many graphs it found in the compiler's
cache.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from test_step import OBJECTIVES, make_config, make_model, padded
from torch._dynamo.utils import counters

from electra.assignments import override
from electra.pretraining.memory import make_rows
from electra.pretraining.start import prepare_step
from electra.training.distributed import joined, sum_over_ranks
from electra.training.machine import Machine, prepare_machine

MODERN = [
    *("model.architecture=modernbert", "model.embedding_size=256", "model.local_attention=8"),
    "generator.hidden_fraction=1",
]
STEPS = {**OBJECTIVES, "modernbert": MODERN}
"""Settings by name."""
del STEPS["cocolm"]  # which compares the rows of one process
PIECES = 4
"""Micro-batches of a step, over all processes."""


def compute(name, steps, machine, sharding="none"):
    """Return losses, norms and hashes of the first steps of an objective."""
    settings = [*STEPS.get(name, [name]), f"train.accumulation={PIECES // machine.num_ranks}"]
    more = [f"train.sharding={sharding}", f"model.num_hidden_layers={1 + (name == 'teams')}"]
    config = override(make_config(*settings), [*more, "train.steps=50"])
    step = prepare_step(make_model(config).train(), config, machine)
    choose, seen = step.choose, []

    def note(batch, uniform):
        draw, counts = choose(batch, uniform)
        tensors = [batch.input_ids_BL, *draw[:5]]
        rows = (
            b"".join(each.numpy().tobytes() for each in row) for row in zip(*tensors, strict=True)
        )
        seen.append([hashlib.sha256(row).hexdigest() for row in rows])
        return draw, counts

    step.choose = note
    losses, norms = [], []
    size = 8 // machine.num_ranks
    own = slice(size * machine.rank, size * (machine.rank + 1))
    for number in range(steps):
        batch = padded(make_rows(config, 8, number)).rows(own).each(torch.clone)
        outcome = step(number, batch, 1e-3)
        loss = torch.stack([output.loss for output in outcome.outputs]).sum()
        sum_over_ranks([loss])
        losses.append(loss.item())
        norms.append(outcome.grad_norm.item())
    num_found = counters["inductor"]["fxgraph_cache_hit"]
    return {"losses": losses, "norms": norms, "draws": seen, "found": num_found}


def main():
    out, steps, sharding, *names = sys.argv[1:]
    if sharding == "hybrid":  # as on machines of two processes
        os.environ["LOCAL_WORLD_SIZE"] = "2"
    machine: Machine = prepare_machine("cpu", "float32", 1)
    with joined(machine):
        for name in names:
            found = compute(name, int(steps), machine, sharding)
            Path(out, f"{name}-{machine.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
