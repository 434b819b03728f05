"""Where the time of a pre-training step goes: kernels on a GPU, operations on a CPU.

    python -m benchmarks.kernels --preset small --batch-size 128 --out results/kernels.json

On a GPU the steps are those of pre-training, captured and replayed; gaps are the time in which no
kernel ran. Beside them stand what the device does at best: the rate of a large matrix product, and
of a large copy.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.step import Ours, Plain, measure_peak
from electra.corpus.tokenizer import make_tokenizer
from electra.files import write_json, write_text
from electra.method.flops import count_true
from electra.method.registry import sketch_objective
from electra.presets import PRESETS
from electra.pretraining.acceleration import WARM_UP_STEPS
from electra.pretraining.memory import make_rows
from electra.reports.tables import Table, to_markdown
from electra.runs.manifest import find_commit
from electra.settings import override
from electra.training.machine import Machine, prepare_machine

NUM_STEPS = 10
NUM_SHOWN = 25


class Span(NamedTuple):
    """A kernel at work, or an operation without those that it calls; seconds."""

    name: str
    start: float
    seconds: float


def record_steps(ours: Ours) -> tuple[list[Span], float]:
    """Return what ran in NUM_STEPS steps, and the seconds they took without being watched."""
    config, machine = ours.config, ours.machine
    batches = [make_rows(config, config.train.batch_size, seed) for seed in range(NUM_STEPS)]
    for batch in batches[: WARM_UP_STEPS + 1]:
        ours.step(batch)
    machine.wait()
    began = time.perf_counter()
    for batch in batches:
        ours.step(batch)
    machine.wait()
    seconds = time.perf_counter() - began
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
        and not event.is_user_annotation  # a name for what kernels do together
    ], seconds


def find_gaps(spans: list[Span]) -> float:
    """Return the seconds between the first span and the end of the last in which none ran."""
    gaps, end = 0.0, min(span.start for span in spans)
    for span in sorted(spans, key=lambda span: span.start):
        gaps += max(0.0, span.start - end)
        end = max(end, span.start + span.seconds)
    return gaps


def measure_copy(machine: Machine) -> float:
    """Return bytes read and written per second by the fastest of ten large copies."""
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
    """Return how long steps take, what ran in them, and what the device does at best."""
    config, machine = ours.config, ours.machine
    spans, seconds = record_steps(ours)
    totals: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        totals[span.name].append(span.seconds)
    length = config.examples.sequence_length
    tokens = config.train.batch_size * length
    flops = count_true(sketch_objective(config), length)
    return {
        "device": machine.name,
        "commit": find_commit(),
        "torch": torch.__version__,
        "step": ours.do_step.describe(),
        "seconds_per_step": seconds / NUM_STEPS,
        "tokens_per_second": tokens * NUM_STEPS / seconds,
        "flops_per_second": flops * tokens * NUM_STEPS / seconds,
        "peak_flops_per_second": measure_peak(machine, ours.dtype),
        "copy_bytes_per_second": measure_copy(machine),
        "spans_per_step": len(spans) / NUM_STEPS,
        "busy_seconds_per_step": sum(span.seconds for span in spans) / NUM_STEPS,
        # Operations of a CPU lie within one another.
        "gap_seconds_per_step": find_gaps(spans) / NUM_STEPS
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
    """Return a record as Markdown: what it is of, the step as a whole, its longest kernels."""
    busy, gap = record["busy_seconds_per_step"], record["gap_seconds_per_step"]
    share = record["flops_per_second"] / record["peak_flops_per_second"]
    rows = [
        [
            kernel["name"][:80],
            f"{kernel['per_step']:.4g}",
            f"{1e6 * kernel['seconds_per_step']:,.0f}",
            f"{kernel['seconds_per_step'] / busy:.1%}",
        ]
        for kernel in record["kernels"][:NUM_SHOWN]
    ]
    return "\n\n".join(
        [
            f"{record['device']}, torch {record['torch']}, preset {record['preset']}, "
            f"{' '.join(record['settings'])}, commit {record['commit']}",
            f"{1e3 * record['seconds_per_step']:.4g} ms a step, "
            f"{record['tokens_per_second']:,.0f} tokens/s, {share:.1%} of "
            f"{record['peak_flops_per_second'] / 1e12:.4g} TFLOP/s; a copy moves "
            f"{record['copy_bytes_per_second'] / 1e9:.4g} GB/s. "
            f"{record['spans_per_step']:,.0f} starts a step, {1e3 * busy:.4g} ms at work"
            + ("." if gap is None else f", {1e3 * gap:.4g} ms in gaps."),
            to_markdown(Table(["what ran", "times a step", "us a step", "share"], rows)),
        ]
    )


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what these words ask for, or those of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--plain", action="store_true", help="neither compiled nor captured")
    parser.add_argument("--set", nargs="*", default=[])
    return parser.parse_args(words)


def main() -> None:
    """Measure, print a table, write a file."""
    arguments = read_arguments()
    settings = [f"train.batch_size={arguments.batch_size}", *arguments.set]
    config = override(PRESETS[arguments.preset], settings)
    machine = prepare_machine("auto", config.train.precision, 0)
    variant = Plain if arguments.plain else Ours
    ours = variant(config, make_tokenizer(config.model.vocab_size), machine)
    record = measure(ours) | {"preset": arguments.preset, "settings": settings}
    text = describe(record)
    if arguments.out:
        write_json(arguments.out, record)
        write_text(arguments.out.with_suffix(".md"), text + "\n")
    print(text)


if __name__ == "__main__":
    main()
