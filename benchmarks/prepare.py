"""Speed from text to shards, beside `tokenizers` alone on the same text in memory.

    python -m benchmarks.prepare FILE... --tokenizer DIR --out results/prepare.json

Both use the same cores. Ours reads, decompresses, tokenises, hashes and writes. `tokenizers` alone
only runs encode_batch_fast on a thousand lines per call. The repeats alternate, so that other load
on the machine affects both.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers

from electra.checkpoints.manifest import find_commit
from electra.errors import UserError
from electra.processes import usable_cores
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.text.documents import Reader
from electra.text.sources import find_sources
from electra.tokenizing.tokenizer import Tokenizer

LINES_PER_CALL = 1000


def time_prepare(files: Sequence[str], tokenizer: Tokenizer, workers: int) -> tuple[float, int]:
    """Return the seconds from text to shards, and the number of tokens."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        manifest = prepare(files, tokenizer, Path(folder) / "out", PrepareConfig(workers=workers))
        seconds = time.perf_counter() - start
    return seconds, sum(part["num_tokens"] for part in manifest["parts"].values())


def time_tokenizers(lines: Sequence[str], backend: tokenizers.Tokenizer) -> tuple[float, int]:
    """Return the seconds of encode_batch_fast alone, and the number of tokens."""
    num_tokens = 0
    start = time.perf_counter()
    for first in range(0, len(lines), LINES_PER_CALL):
        batch = lines[first : first + LINES_PER_CALL]
        encodings = backend.encode_batch_fast(batch, add_special_tokens=False)
        num_tokens += sum(map(len, encodings))
    return time.perf_counter() - start, num_tokens


def measure(files: Sequence[str], folder: str, *, repeats: int, workers: int) -> dict[str, Any]:
    """Return the medians and ranges of both, and a description of the machine.

    Args:
        files: The text files.
        folder: The tokenizer's folder or vocab.txt.
        repeats: Timed runs of each.
        workers: Cores for each.
    """
    tokenizer = Tokenizer.load(folder)
    with tempfile.TemporaryDirectory() as copy:
        tokenizer.save(Path(copy) / "t")
        backend = tokenizers.Tokenizer.from_file(str(Path(copy) / "t" / "tokenizer.json"))
    reader = Reader()
    lines = [line for document in reader.read(find_sources(files).files) for line in document]
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    runs: dict[str, list[tuple[float, int]]] = {"prepare": [], "tokenizers": []}
    for _ in range(repeats):
        runs["tokenizers"].append(time_tokenizers(lines, backend))
        runs["prepare"].append(time_prepare(files, tokenizer, workers))
    rows = {name: _summarise(found, reader.counts.text_bytes) for name, found in runs.items()}
    seconds = {name: row["seconds"]["median"] for name, row in rows.items()}
    return {
        "benchmark": "prepare",
        "files": [Path(name).name for name in files],
        "text": vars(reader.counts),
        "vocab_size": tokenizer.vocab_size,
        "cores": workers,
        "repeats": repeats,
        "speed_ratio": seconds["tokenizers"] / seconds["prepare"],
        "rows": rows,
        "machine": platform.platform(),
        "versions": {"python": platform.python_version(), "tokenizers": version("tokenizers")},
        "commit": find_commit(),
    }


def _summarise(runs: list[tuple[float, int]], num_bytes: int) -> dict[str, Any]:
    seconds = [run[0] for run in runs]
    median = statistics.median(seconds)
    return {
        "seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        "num_tokens": runs[0][1],
        "megabytes_per_second": num_bytes / 1e6 / median,
        "tokens_per_second": runs[0][1] / median,
    }


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="text in any format `electra prepare` reads")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer's folder or vocab.txt")
    parser.add_argument("--out", required=True, type=Path, help="the .json file to write")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="cores for each")
    options = parser.parse_args()
    try:
        result = measure(
            options.files, options.tokenizer, repeats=options.repeats, workers=options.workers
        )
    except UserError as error:
        parser.error(str(error))
    print(f"{'':12}{'seconds (min-max)':>24}{'MB/s':>8}{'tokens/s':>12}{'tokens':>14}")
    for name, row in result["rows"].items():
        seconds = row["seconds"]
        spread = f"{seconds['median']:.2f} ({seconds['min']:.2f}-{seconds['max']:.2f})"
        print(
            f"{name:12}{spread:>24}{row['megabytes_per_second']:>8.1f}"
            f"{row['tokens_per_second']:>12,.0f}{row['num_tokens']:>14,}"
        )
    print(f"prepare has {result['speed_ratio']:.2f} times the speed of tokenizers alone")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
