"""Speed of reading shuffled rows from shards on one core, beside a bare gather of equal size.

    python -m benchmarks.load SHARDS --out results/load.json
    python -m benchmarks.load SHARDS --copies 84 --out results/load-many.json
    python -m benchmarks.load SHARDS --cache 4 --out results/load-cache.json

A batch is that of the training loop: rows in random order, cut into segments, with special tokens,
segment ids and a mask. The bare gather only copies as many tokens from random positions into an
int64 array. Both alternate in one process, a block of rows each time, because the training loop
reads rows in blocks. --copies lists the shards so many times, as a corpus of many shards that
share their files. --cache compares the order of windows of so many shards, read from the shards
themselves, with the same order read from a warm cache of them (file://), by blocks in turn.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra.checkpoints.manifest import find_commit
from electra.files import write_json, write_text
from electra.processes import Place
from electra.reports.rendering import Table, to_markdown
from electra.shards.cache import cached
from electra.shards.config import ExamplesConfig
from electra.shards.examples import Examples
from electra.shards.store import open_shards
from electra.training.machine import Machine


def measure(
    shards_folder: Path, copies: int, rows: int, length: int, repeats: int
) -> dict[str, Any]:
    """Return tokens per second of the training loop's batches and of the bare gather.

    Args:
        shards_folder: The shards.
        copies: How often they are listed.
        rows: Rows per batch.
        length: Tokens per row.
        repeats: Timed repeats; five warm-up repeats are added.
    """
    shards = open_shards(shards_folder)
    examples = Examples(
        shards.train * copies, shards.tokenizer, ExamplesConfig(sequence_length=length), seed=0
    )
    tokens = max((np.asarray(shard.tokens) for shard in shards.train), key=len)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    rng = np.random.default_rng(0)
    batches = examples.batches(0, rows)
    steps = max(1, examples.block_rows // rows)
    seconds: dict[str, list[float]] = {"batch": [], "gather": []}
    for repeat in range(repeats + 5):
        began = time.perf_counter()
        for _ in range(steps):
            next(batches)
        loaded = time.perf_counter()
        for _ in range(steps):
            windows[rng.integers(len(windows), size=rows)].astype(np.int64)
        if repeat >= 5:  # the first repeats load the file into memory
            seconds["batch"].append((loaded - began) / steps)
            seconds["gather"].append((time.perf_counter() - loaded) / steps)
    return {
        "shards": copies * len(shards.train),
        "documents": copies * sum(len(shard.documents) for shard in shards.train),
        "tokens": copies * sum(shard.num_tokens for shard in shards.train),
        "rows": rows,
        "length": length,
        "tokens_per_second": {
            name: rows * length / statistics.median(each) for name, each in seconds.items()
        },
        "quartiles": {
            name: [rows * length / q for q in statistics.quantiles(each, n=4)]
            for name, each in seconds.items()
        },
    }


def compare_cache(shards_folder: Path, window: int, rows: int, repeats: int) -> dict[str, Any]:
    """Return tokens per second from local shards and from a warm cache, in turn, and the ratio."""
    config = ExamplesConfig(order="window", window=window)
    places = (shards_folder, f"file://{shards_folder.resolve()}")
    opened = [open_shards(place) for place in places]
    local, cache = (Examples(each.train, each.tokenizer, config, seed=0) for each in opened)
    steps = max(1, local.block_rows // rows)
    last = (repeats + 5) * steps
    with cached(cache, 1 << 50, last, rows, Place()):
        batches = {"local": local.batches(0, rows), "cache": cache.batches(0, rows)}
        seconds: dict[str, list[float]] = {"local": [], "cache": []}
        for repeat in range(repeats + 5):
            for name in (*seconds,) if repeat % 2 else reversed(seconds):
                began = time.perf_counter()
                for _ in range(steps):
                    next(batches[name])
                if repeat >= 5:
                    seconds[name].append((time.perf_counter() - began) / steps)
    ratios = [own / other for own, other in zip(seconds["local"], seconds["cache"], strict=True)]
    return {
        "rows": rows,
        "window": window,
        "shards": len(local.shards),
        "tokens": sum(shard.num_tokens for shard in local.shards),
        "tokens_per_second": {
            name: rows * config.sequence_length / statistics.median(each)
            for name, each in seconds.items()
        },
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4),
    }


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 128, 1024, 4096])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--cache", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.cache:
        found = compare_cache(arguments.shards, arguments.cache, 128, arguments.repeats)
        record = {"device": Machine().name, "commit": find_commit(), **found}
        print(record)
        if arguments.out:
            write_json(arguments.out, record)
        return
    results = [
        measure(arguments.shards, arguments.copies, rows, arguments.length, arguments.repeats)
        for rows in arguments.rows
    ]
    device = Machine().name
    record = {"device": device, "commit": find_commit(), "results": results}
    table = to_markdown(
        Table(
            ["rows", "batch, M tokens/s (quartiles)", "bare gather, M tokens/s"],
            [
                [
                    str(result["rows"]),
                    f"{result['tokens_per_second']['batch'] / 1e6:.1f} "
                    f"({result['quartiles']['batch'][2] / 1e6:.1f} to "
                    f"{result['quartiles']['batch'][0] / 1e6:.1f})",
                    f"{result['tokens_per_second']['gather'] / 1e6:.1f}",
                ]
                for result in results
            ],
        )
    )
    first = results[0]
    text = (
        f"{device}, rows of {arguments.length}, {first['shards']:,} shards of "
        f"{first['documents']:,} documents and {first['tokens']:,} tokens, commit "
        f"{record['commit']}\n\n{table}"
    )
    if arguments.out:
        write_json(arguments.out, record)
        write_text(arguments.out.with_suffix(".md"), text + "\n")
    print(text)


if __name__ == "__main__":
    main()
