"""What pre-training on a trillion tokens takes: arithmetic from what was measured.

    python -m benchmarks.trillion --out results/trillion.json

Measured values, each from the named file: the speed of one H200 (--step), of `prepare`, and what
failures leave of a month (--month). The choices of the cache are those of `electra plan`, for a
list of shards that nobody has. Prices and links are arguments. Nothing here was run at this size.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.month import DAY, LOGS, OF_A_MACHINE
from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.files import format_size, parse_size, read_object, write_json, write_text
from electra.method.flops import count_run
from electra.presets import PRESETS
from electra.pretraining.memory import count_parameters
from electra.pretraining.networks import sketch_objective
from electra.reports.rendering import Table, to_markdown
from electra.shards.config import ExamplesConfig
from electra.shards.store import Shard, Shards
from electra.shards.traffic import estimate_traffic
from electra.tokenizing.tokenizer import make_tokenizer

TOKENS = 10**12
SHARD_TOKENS = 1 << 27
DOCUMENT = 1024
"""Tokens of a line, and of a document: each has 4 bytes in two columns."""


def make_shards() -> Shards:
    """Return the list of the shards, of which there is no file."""
    sizes = {"tokens": 2 * SHARD_TOKENS}
    sizes |= dict.fromkeys(("lines", "documents"), 4 * SHARD_TOKENS // DOCUMENT)
    train = tuple(
        Shard(SHARD_TOKENS, Path("x"), {name: f"{n}.{name}" for name in sizes}, "<u2", sizes)
        for n in range(-(-TOKENS // SHARD_TOKENS))
    )
    return Shards(Path(), make_tokenizer(30_522), {}, "", train, ())


def compute(gpus: int, shards: Shards, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the run takes on so many GPUs."""
    batch, cache = arguments.batch_size, parse_size(arguments.cache)
    config = PRESETS[arguments.preset]
    steps = round(TOKENS / (batch * config.examples.sequence_length))
    config = override(config, [f"train.steps={steps}", f"train.batch_size={batch}"])
    objective, machines = sketch_objective(config), gpus // OF_A_MACHINE
    parameters, speed = count_parameters(objective), read_object(arguments.step)
    flops = count_run(objective, *config.amount)["true"]
    step = flops / steps / (gpus * speed["flops_per_second"])
    total = 2 * (gpus - 1) / gpus * 4 * parameters / parse_size(arguments.link)
    seconds = steps * (step + total)  # the sum comes behind the backward pass
    log = next(iter(LOGS))
    month = next(
        row
        for row in read_object(arguments.month)["simulated"]
        if (row["gpus"], row["log"]) == (gpus, log)
    )
    wall = seconds / month["goodput"]
    length = config.examples.sequence_length
    examples = ExamplesConfig(sequence_length=length, order="window", groups=machines)
    traffic = estimate_traffic(shards, examples, cache, 0, steps, batch)
    per_gpu_hour, per_gb, per_thousand = arguments.price
    return {
        "gpus": gpus,
        "machines": machines,
        "steps": steps,
        "parameters": parameters,
        "flops": flops,
        "step_seconds": step,
        "sum_seconds": total,
        "goodput": month["goodput"],
        "failures": LOGS[log] * gpus * wall / DAY,
        "hours": wall / 3600,
        "checkpoint_bytes": 12 * parameters,
        "copied_bytes": traffic.copied,
        "requests": traffic.requests,
        "bandwidth": traffic.copied / wall,
        "before_bytes": traffic.before,
        "gpu_price": gpus * wall / 3600 * per_gpu_hour,
        "store_price": traffic.price(per_gb, per_thousand),
    }


def tabulate(record: dict[str, Any]) -> str:
    """Return the rows as Markdown, a column for each number of GPUs."""
    rows = record["rows"]
    kinds = {
        "a step without the sum of gradients, ms": lambda row: f"{row['step_seconds'] * 1e3:,.0f}",
        "the sum, ms": lambda row: f"{row['sum_seconds'] * 1e3:.0f}",
        "failures": lambda row: f"{row['failures']:.2f}",
        "goodput": lambda row: f"{row['goodput']:.4f}",
        "hours in all": lambda row: f"{row['hours']:,.1f}",
        "copied by each machine": lambda row: format_size(row["copied_bytes"]),
        "requests of each machine": lambda row: f"{row['requests']:,}",
        "bandwidth of each machine": lambda row: f"{format_size(row['bandwidth'])}/s",
        "before the first step": lambda row: format_size(row["before_bytes"]),
        "price of the GPUs": lambda row: f"{row['gpu_price']:,.0f}",
        "price of reading": lambda row: f"{row['store_price']:,.0f}",
    }
    cells = [[name, *(told(row) for row in rows)] for name, told in kinds.items()]
    first, prices = rows[0], record["price"]
    millions, teraflops = first["parameters"] / 1e6, record["flops_per_second"] / 1e12
    return (
        f"Computed; commit {record['commit']}. `{record['preset']}` ({millions:.1f} M parameters "
        f"in training), {first['steps']:,} steps of {record['batch_size']:,} rows, "
        f"{first['flops']:.2e} FLOPs; corpus {format_size(record['corpus_bytes'])} in "
        f"{record['shards']:,} shards, from {format_size(record['text_bytes'])} of text in "
        f"{record['prepare_core_hours']:,.0f} core-hours; a checkpoint has "
        f"{format_size(first['checkpoint_bytes'])}. Each GPU at {teraflops:.1f} TFLOP/s, `--cache "
        f"{record['cache']}`, links of {record['link']}/s, prices {prices[0]:g} for an hour of a "
        f"GPU, {prices[1]:g} for a GB and {prices[2]:g} for 1,000 requests.\n\n"
        f"{to_markdown(Table(['GPUs', *(str(row['gpus']) for row in rows)], cells))}\n"
    )


def main() -> None:
    """Compute, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="base")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--cache", default="1TB")
    parser.add_argument("--link", default="50GB", help="bytes a second of each GPU")
    parser.add_argument("--price", type=float, nargs=3, default=[2.5, 0.02, 0.0004],
                        help="of an hour of a GPU, of a GB, of 1,000 requests")  # fmt: skip
    parser.add_argument("--step", type=Path, default=Path("results/gpu/small.json"))
    parser.add_argument("--prepare", type=Path, default=Path("results/prepare.json"))
    parser.add_argument("--month", type=Path, default=Path("results/month.json"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shards, prepared = make_shards(), read_object(arguments.prepare)
    row = prepared["rows"]["prepare"]
    text = TOKENS / row["num_tokens"] * prepared["text"]["text_bytes"]
    cores = prepared["cores"] * row["seconds"]["median"] / 3600
    record = {
        "commit": find_commit(),
        "preset": arguments.preset,
        "batch_size": arguments.batch_size,
        "cache": arguments.cache,
        "link": arguments.link,
        "price": arguments.price,
        "flops_per_second": read_object(arguments.step)["flops_per_second"],
        "shards": len(shards.train),
        "corpus_bytes": sum(sum(shard.num_bytes.values()) for shard in shards.train),
        "text_bytes": text,
        "prepare_core_hours": TOKENS / row["num_tokens"] * cores,
        "rows": [compute(gpus, shards, arguments) for gpus in arguments.gpus],
    }
    write_json(arguments.out, record)
    write_text(arguments.out.with_suffix(".md"), tabulate(record))
    print(tabulate(record))


if __name__ == "__main__":
    main()
