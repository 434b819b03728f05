"""How well the order of windows mixes: rows of one shard near each other, and held-out loss.

    python -m benchmarks.shuffle SHARDS --steps 700 --runs FOLDER --out results/shuffle.json

Autocorrelation: of pairs of rows so many places apart, the share from the same shard, divided by
the share among rows in random order; 1 is no correlation. It is counted over an epoch of the order,
and needs no training. Held-out loss: the tiny preset is trained for so many steps with every order
and seed, each seed with the same initial weights in every order; differences are those to the
global order of the same seed. The shards should be small and unlike each other, and an epoch not
much longer than the runs. All runs are in FOLDER; the same command continues with what is missing.
Without --runs nothing is trained.
"""

import argparse
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from electra.checkpoints.manifest import find_commit
from electra.files import read_object, write_json, write_text
from electra.presets import PRESETS
from electra.pretraining.loop import pretrain
from electra.pretraining.resolution import resolve
from electra.reports.rendering import Table, to_markdown
from electra.shards.config import ExamplesConfig
from electra.shards.examples import Examples
from electra.shards.store import Shards, open_shards
from electra.training.machine import Machine

LAGS = (1, 16, 256, 4096, 16384)
"""Distances of two rows, places."""
BATCH_SIZE = 16
"""Rows of a step."""
MEASURES = ("loss", "mlm_loss", "disc_loss")
PASSES = 3
"""Epochs over which pairs are counted."""


def name_order(window: int) -> str:
    """Return how the tables name an order; window 0 is the global one."""
    return f"window {window}" if window else "global"


def settings_of(window: int) -> list[str]:
    """Return the settings of an order."""
    return [f"examples.order=window examples.window={window}"][: bool(window)]


def correlate(shards: Shards, window: int, seed: int) -> dict[str, float]:
    """Return the autocorrelation of the shards of rows by lag."""
    config = ExamplesConfig(order="window", window=window) if window else ExamplesConfig()
    examples = Examples(shards.train, shards.tokenizer, config, seed)
    sizes = np.array([len(examples._cut([number])) for number in range(len(shards.train))])
    places = PASSES * int(sizes.sum())
    shard_P = np.empty(places, dtype=np.int64)
    for found, inside, rows in examples.order.draw(0, 0, places):
        numbers = np.array(found or range(len(sizes)))
        shard_P[inside] = numbers[np.searchsorted(np.cumsum(sizes[numbers]), rows, side="right")]
    chance = float(((sizes / sizes.sum()) ** 2).sum())
    return {str(lag): float((shard_P[lag:] == shard_P[:-lag]).mean() / chance) for lag in LAGS}


def train(shards: Path, runs: Path, window: int, seed: int, steps: int) -> dict[str, Any]:
    """Return the held-out losses of a run, and its seconds; a finished one is read."""
    run = runs / f"{name_order(window).replace(' ', '-')}-{seed}"
    if not (run / "measures.json").exists():
        words = " ".join(
            [
                *settings_of(window),
                f"train.steps={steps} train.seed={seed} train.batch_size={BATCH_SIZE}",
                "train.threads=1 train.precision=float32 train.check_memory=false",
                f"train.evaluate_rows=1024 train.save_every={steps} train.evaluate_every={steps}",
            ]
        )
        began = time.process_time()
        shutil.rmtree(run, ignore_errors=True)
        config = resolve("tiny", None, words.split())
        heldout = pretrain(shards, run, config, lambda record: None)["heldout"]
        losses = {name: heldout[name] for name in MEASURES}
        write_json(run / "measures.json", {**losses, "seconds": time.process_time() - began})
    return read_object(run / "measures.json")


def compare(losses: dict[str, dict[str, dict[str, Any]]], measure: str) -> dict[str, Any]:
    """Return mean and spread by order, and the differences to the global order of each seed."""
    found = {}
    for order, seeds in losses.items():
        pairs = [(each[measure], losses["global"][seed][measure]) for seed, each in seeds.items()]
        gaps = [own - other for own, other in pairs]
        found[order] = {
            "mean": statistics.mean(own for own, _ in pairs),
            "std": statistics.stdev(own for own, _ in pairs) if len(pairs) > 1 else None,
            "difference": statistics.mean(gaps),
            "differences": gaps,
        }
    return found


def main() -> None:
    """Count, train, print a table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--windows", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shards, windows = open_shards(arguments.shards), [0, *arguments.windows]
    correlation = {name_order(window): correlate(shards, window, 0) for window in windows}
    losses: dict[str, dict[str, dict[str, Any]]] = {name_order(each): {} for each in windows}
    for seed in range(arguments.seeds if arguments.runs else 0):
        for window in windows:
            found = train(arguments.shards, arguments.runs, window, seed, arguments.steps)
            losses[name_order(window)][str(seed)] = found
    tokens = sum(shard.num_tokens for shard in shards.train)
    record: dict[str, Any] = {
        "device": Machine().name,
        "commit": find_commit(),
        "shards": len(shards.train),
        "tokens": tokens,
        "autocorrelation": correlation,
    }
    columns = ["order", *(f"lag {lag:,}" for lag in LAGS)]
    rows = [[order, *(f"{value:.2f}" for value in correlation[order].values())] for order in losses]
    told = f"{record['device']}, {len(shards.train):,} shards of {tokens:,} tokens"
    if arguments.runs:
        read = arguments.steps * BATCH_SIZE * PRESETS["tiny"].examples.sequence_length
        record |= {"steps": arguments.steps, "tokens_read": read, "losses": losses}
        record |= {name: compare(losses, name) for name in MEASURES}
        columns += ["loss", "mlm_loss", "to global"]
        for row in rows:
            row += [f"{record[name][row[0]]['mean']:.4f}" for name in MEASURES[:2]]
            gaps = record["loss"][row[0]]["differences"]
            row.append(", ".join(f"{gap:+.4f}" for gap in gaps))
        told += f", tiny, {arguments.steps:,} steps, {read:,} tokens read, {arguments.seeds} seeds"
    write_json(arguments.out, record)
    text = f"{told}, commit {record['commit']}\n\n{to_markdown(Table(columns, rows))}"
    write_text(arguments.out.with_suffix(".md"), text + "\n")
    print(text)


if __name__ == "__main__":
    main()
