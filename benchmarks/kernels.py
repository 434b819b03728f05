"""Profile of a pre-training step: time per kernel on a GPU, per operation on a CPU.

    python -m benchmarks.kernels --preset small --batch-size 128 --out results/kernels.json

On a GPU the steps are captured and replayed as in pre-training, and gaps are the time without a
running kernel. For comparison, the device's peak rates are measured with a large matrix product and
a large copy. The time of a step is written before the profile begins, which may fail by itself.
"""

import argparse
import dataclasses
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor
from torch.profiler import ProfilerActivity, profile

from benchmarks.step import Ours, Plain
from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.files import write_json, write_text
from electra.method.flops import count_true
from electra.presets import PRESETS
from electra.pretraining.acceleration import WARM_UP_STEPS
from electra.pretraining.memory import make_rows
from electra.pretraining.networks import sketch_objective
from electra.reports.rendering import Table, to_markdown
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine, prepare_machine

NUM_STEPS = 10
"""Profiled steps, and on a CPU also those that are timed."""
WARM_STEPS, TIMED_STEPS, TURNS = 50, 100, 2
"""On a GPU: steps that raise its clocks, steps of a timing, and timings."""
NUM_LOSSES = 5
"""First steps whose losses are recorded: variants of one computation must agree in them."""
NUM_SHOWN = 25


class Span(NamedTuple):
    """One run of a kernel, or of an operation without the operations inside; times in seconds."""

    name: str
    start: float
    seconds: float


def time_steps(ours: Ours) -> dict[str, Any]:
    """Return the losses of the first steps, and the seconds of a step in each timing."""
    config, machine = ours.config, ours.machine
    on_cuda = machine.device.type == "cuda"
    num_warm, num_timed = (WARM_STEPS, TIMED_STEPS) if on_cuda else (WARM_UP_STEPS + 1, NUM_STEPS)
    batches = [make_rows(config, config.train.batch_size, seed) for seed in range(NUM_STEPS)]
    losses = [ours.step(batches[0]).item() for _ in range(NUM_LOSSES)]
    seconds = []
    for _ in range(TURNS):
        for number in range(num_warm):
            ours.step(batches[number % NUM_STEPS])
        machine.wait()
        began = time.perf_counter()
        for number in range(num_timed):
            ours.step(batches[number % NUM_STEPS])
        machine.wait()
        seconds.append((time.perf_counter() - began) / num_timed)
    return {"losses": losses, "seconds": seconds}


def profile_steps(ours: Ours) -> list[Span]:
    """Return the spans of NUM_STEPS profiled steps."""
    config, machine = ours.config, ours.machine
    batches = [make_rows(config, config.train.batch_size, seed) for seed in range(NUM_STEPS)]
    on_cuda = machine.device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiler:
        for batch in batches:
            ours.step(batch)
        machine.wait()
    return [
        Span(
            event.name,
            event.time_range.start / 1e6,
            (event.time_range.elapsed_us() if on_cuda else event.self_cpu_time_total) / 1e6,
        )
        for event in profiler.events()
        if (event.device_type == torch.autograd.DeviceType.CUDA) == on_cuda
        and not event.is_user_annotation  # annotations cover several kernels
    ]


def find_gaps(spans: list[Span]) -> float:
    """Return the seconds without a running span, from the first span to the end of the last."""
    gaps, end = 0.0, min(span.start for span in spans)
    for span in sorted(spans, key=lambda span: span.start):
        gaps += max(0.0, span.start - end)
        end = max(end, span.start + span.seconds)
    return gaps


def measure_copy(machine: Machine) -> float:
    """Return the bytes per second, read plus written, of the fastest of ten large copies."""
    source = torch.randn(
        (1 << 28) if machine.device.type == "cuda" else (1 << 25), device=machine.device
    )
    target, best = torch.empty_like(source), 0.0
    for _ in range(10):
        machine.wait()
        began = time.perf_counter()
        target.copy_(source)
        machine.wait()
        best = max(best, 2 * source.nbytes / (time.perf_counter() - began))
    return best


def measure(ours: Ours) -> dict[str, Any]:
    """Return the time of a step, its first losses, and the device's peak rates."""
    config, machine = ours.config, ours.machine
    timed = time_steps(ours)
    seconds = min(timed["seconds"])  # whatever disturbs a timing makes it longer
    length = config.examples.sequence_length
    tokens = config.train.batch_size * length
    flops = count_true(sketch_objective(config), length)
    return {
        "device": machine.name,
        "commit": find_commit(),
        "torch": torch.__version__,
        "step": ours.do_step.describe(),
        "losses": timed["losses"],
        "seconds_per_step": seconds,
        "timings": timed["seconds"],
        "tokens_per_second": tokens / seconds,
        "flops_per_second": flops * tokens / seconds,
        "peak_flops_per_second": dataclasses.replace(machine, dtype=ours.dtype).measure_peak(),
        "copy_bytes_per_second": measure_copy(machine),
    }


def describe_spans(spans: Sequence[Span], machine: Machine) -> dict[str, Any]:
    """Return the time per kernel of profiled steps; nothing if the profiler saw none."""
    if not spans:
        return {}
    totals: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        totals[span.name].append(span.seconds)
    return {
        "spans_per_step": len(spans) / NUM_STEPS,
        "busy_seconds_per_step": sum(span.seconds for span in spans) / NUM_STEPS,
        # Operations on a CPU are nested, so gaps are not defined.
        "gap_seconds_per_step": find_gaps(list(spans)) / NUM_STEPS
        if machine.device.type == "cuda"
        else None,
        "kernels": [
            {
                "name": name,
                "per_step": len(totals[name]) / NUM_STEPS,
                "seconds_per_step": sum(totals[name]) / NUM_STEPS,
            }
            for name in sorted(totals, key=lambda name: -sum(totals[name]))
        ],
    }


def describe(record: dict[str, Any]) -> str:
    """Return a record as Markdown: configuration, time per step, and the longest kernels."""
    share = record["flops_per_second"] / record["peak_flops_per_second"]
    lines = [
        f"{record['device']}, torch {record['torch']}, preset {record['preset']}, "
        f"{' '.join(record['settings'])}, commit {record['commit']}",
        f"{1e3 * record['seconds_per_step']:.4g} ms per step, "
        f"{record['tokens_per_second']:,.0f} tokens/s, {share:.1%} of "
        f"{record['peak_flops_per_second'] / 1e12:.4g} TFLOP/s; a copy moves "
        f"{record['copy_bytes_per_second'] / 1e9:.4g} GB/s.",
    ]
    if "kernels" not in record:
        return "\n\n".join([*lines, "There is no profile of this step."])
    busy, gap = record["busy_seconds_per_step"], record["gap_seconds_per_step"]
    rows = [
        [
            kernel["name"][:80],
            f"{kernel['per_step']:.4g}",
            f"{1e6 * kernel['seconds_per_step']:,.0f}",
            f"{kernel['seconds_per_step'] / busy:.1%}",
        ]
        for kernel in record["kernels"][:NUM_SHOWN]
    ]
    runs = f"{record['spans_per_step']:,.0f} runs per step, {1e3 * busy:.4g} ms busy"
    headers = ["kernel or operation", "runs per step", "us per step", "share"]
    return "\n\n".join(
        [
            *lines,
            runs + ("." if gap is None else f", {1e3 * gap:.4g} ms in gaps."),
            to_markdown(Table(headers, rows)),
        ]
    )


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments: of `words`, or of the command line for None."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--plain", action="store_true", help="neither compiled nor captured")
    parser.add_argument(
        "--mix-order",
        action="store_true",
        help="let sums over rows and over columns of one tensor share a kernel at any size",
    )
    parser.add_argument(
        "--warm", action="store_true", help="only compile: later processes find the kernels"
    )
    parser.add_argument("--set", nargs="*", default=[])
    return parser.parse_args(words)


def main() -> None:
    """Measure, print a table, and write the results."""
    arguments = read_arguments()
    settings = [f"train.batch_size={arguments.batch_size}", *arguments.set]
    config = override(PRESETS[arguments.preset], settings)
    if arguments.mix_order:  # torch itself does it from 5 M elements on
        inductor.triton.mix_order_reduction_non_strict_mode = True
    machine = prepare_machine("auto", config.train.precision, config.train.threads)
    variant = Plain if arguments.plain else Ours
    ours = variant(config, make_tokenizer(config.model.vocab_size), machine)
    if arguments.warm:
        ours.step(make_rows(config, config.train.batch_size, 0))
        return
    record = measure(ours) | {"preset": arguments.preset, "settings": settings}
    write_record(record, arguments.out)
    try:
        record |= describe_spans(profile_steps(ours), machine)
    except Exception as error:  # without CUPTI or its rights: the time of a step is written
        print(f"no profile: {type(error).__name__}: {error}")
    write_record(record, arguments.out)
    print(describe(record))


def write_record(record: dict[str, Any], out: Path | None) -> None:
    """Write the record and its table, if there is a file to write."""
    if out:
        write_json(out, record)
        write_text(out.with_suffix(".md"), describe(record) + "\n")


if __name__ == "__main__":
    main()
