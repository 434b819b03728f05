"""What the hidden states of pre-trained encoders are made of, layer by layer.

    python -m benchmarks.states SHARDS RUN [RUN ...] --out results/states.json

A RUN is a run's folder, or that of one of its checkpoints. Every encoder reads the same original
rows of the held-out part, in float32.

- directions: participation ratio of the states after a layer less their mean, (sum of v)^2 / sum of
  v^2 over the variances v of their principal components. 1: they differ in one direction only.
- common: the mean's share of the states' squared norm.
- attention, feed-forward: norm of what the branch adds, divided by the norm of the state that it
  is added to. The norm that follows shrinks the state by as much as the branch outgrows it.

A discriminator needs one direction of its last states, to say "replaced". Fine-tuning needs more.
"""

import argparse
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters, run_of
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.manifest import find_commit
from electra.errors import UserError, require
from electra.files import write_json, write_text
from electra.model.batch import Batch, find_real
from electra.model.electra import PostNormLayer
from electra.model.encoder import Encoder
from electra.reports.rendering import Table, to_markdown
from electra.shards.examples import Rows
from electra.shards.store import open_shards
from electra.training.machine import Machine


def measure_states(encoder: Encoder, batch: Batch) -> list[dict[str, float]]:
    """Return the figures of each layer of an ELECTRA encoder over the rows of a batch."""
    is_real_BL = find_real(batch)
    seen: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = output[is_real_BL]

    layers = [cast(PostNormLayer, layer) for layer in encoder.layers]
    for layer in layers:
        for part in (layer.attention, layer.attention_norm, layer.output, layer.output_norm):
            part.register_forward_hook(keep)
    with torch.no_grad():
        before = encoder.embeddings(batch.input_ids_BL, batch.token_type_ids_BL)
        if encoder.embeddings_project is not None:
            before = encoder.embeddings_project(before)
        encoder(*batch.inputs)
    state = before[is_real_BL]
    figures = []
    for layer in layers:
        attended, middle = seen[layer.attention], seen[layer.attention_norm]
        added, after = seen[layer.output], seen[layer.output_norm]
        mean = after.mean(dim=0)
        variances = torch.linalg.svdvals(after - mean) ** 2
        figures.append(
            {
                "directions": float(variances.sum() ** 2 / (variances**2).sum()),
                "common": float(mean.square().sum() / after.square().sum(dim=1).mean()),
                "attention": float(attended.norm(dim=1).mean() / state.norm(dim=1).mean()),
                "feed-forward": float(added.norm(dim=1).mean() / middle.norm(dim=1).mean()),
            }
        )
        state = after
    return figures


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=256)
    arguments = parser.parse_args()
    shards = open_shards(arguments.shards)
    results: list[dict[str, Any]] = []
    for folder in arguments.runs:
        networks = read_pretrained(folder)
        architecture = networks.kept.sizes.architecture
        require(architecture == "electra", f"{folder} is a {architecture}, not an electra")
        encoder = Encoder(networks.kept.sizes).eval()
        load_parameters(encoder, networks.kept.encoders[0])
        config = read_run_config(networks.folder).examples
        examples = Rows(shards.heldout, shards.tokenizer, config, seed=0)
        batch = examples.rows(np.arange(min(arguments.rows, len(examples))))
        for number, each in enumerate(measure_states(encoder, batch), start=1):
            results.append(
                {"run": run_of(folder).name, "step": networks.step, "layer": number, **each}
            )
    headers = list(results[0])
    rows = [
        [f"{x:.2f}" if isinstance(x, float) else str(x) for x in each.values()] for each in results
    ]
    lines = to_markdown(Table(headers, rows)) + "\n"
    print(lines)
    if arguments.out:
        facts = {"commit": find_commit(), "device": Machine().name, "rows": arguments.rows}
        write_json(arguments.out, {**facts, "shards": shards.digest, "states": results})
        write_text(arguments.out.with_suffix(".md"), lines)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
