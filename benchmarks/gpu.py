"""All checks and measurements on a GPU in one command, each part in its own process.

    python -m benchmarks.gpu --out results/gpu [--shards SHARDS] [--parts NAME ...]

The checks come first, the cheapest before the others: kernels against a CPU, captured steps,
compiled steps. The measurements follow: our step at the paper's sizes with its kernels, the step
beside the alternatives, the bandwidth of each compiled kernel and, with --shards, a pre-training
run. A failed check ends the command. Any other part that fails or takes too long is reported, and
the next part begins while time is left.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PYTHON = sys.executable
LEAST = 20
"""Least remaining time, in seconds, for which a part begins."""


class Part(NamedTuple):
    """A command and its time limit."""

    seconds: float
    command: list[str]
    is_check: bool = False
    """Whether a failure ends the whole command."""


def list_parts(out: Path, shards: Path | None) -> dict[str, Part]:
    """Return the parts by name, in their order."""

    def check(seconds: float, names: str) -> Part:
        # Torch's own warnings are listed at the end and are not failures here.
        words = ["-q", "-p", "no:cacheprovider", "-W", "default", "tests/test_step.py", "-k", names]
        return Part(seconds, [PYTHON, "-m", "pytest", *words], is_check=True)

    def step(seconds: float, name: str, preset: str, rows: int, *words: str) -> Part:
        size = ["--preset", preset, "--batch-size", str(rows), "--out", str(out / f"{name}.json")]
        module = "benchmarks.step" if name.startswith("step") else "benchmarks.kernels"
        # "yes" instead of "auto": without a compiler this part must fail, not be timed.
        return Part(seconds, [PYTHON, "-m", module, *size, "--set", "train.compile=yes", *words])

    wide = ("generator.hidden_fraction=1", "generator.layers_fraction=0.25")
    parts = {
        "kernels": check(120, "cuda_losses"),
        "captured": check(120, "cuda_captured_and or cuda_stages or cuda_run"),
        "compiled": check(300, "cuda_steps or cuda_captured_steps or cuda_compiled or cuda_and"),
        "small": step(300, "small", "small", 128),
        "small-unmasked": step(240, "small-unmasked", "small", 128, "examples.short_prob=0"),
        "small-plain": step(120, "small-plain", "small", 128, "--plain"),
        "base": step(360, "base", "base", 64),
        "step-small": step(480, "step-small", "small", 128, "--compiled", "--repeats", "5"),
        "step-base": step(480, "step-base", "base", 32, "--compiled", "--repeats", "3"),
        "small-wide": step(240, "small-wide", "small", 128, *wide),
        "bandwidth": step(300, "bandwidth", "small", 128, "train.cuda_graph=false"),
    }
    if shards:
        command = [
            *(PYTHON, "-m", "electra", "pretrain", str(shards), "--preset", "small"),
            *("--out", str(out / "run"), "--set"),
            *("train.steps=20000", "optimizer.warmup_steps=1000"),
            *("train.evaluate_every=2000", "train.save_every=20000", "train.compile=yes"),
        ]
        parts["pretrain"] = Part(540, command)
    return parts


def run_part(name: str, part: Part, out: Path, seconds: float) -> int | str:
    """Return the exit status of a part, or "too long" after `seconds`."""
    environment = dict(os.environ)
    if name == "bandwidth":  # torch's compiler then times each generated kernel
        environment |= {
            "TORCHINDUCTOR_PROFILE": "1",
            "TORCHINDUCTOR_PROFILE_OUTPUT": str(out / "bandwidth.txt"),
        }
    with (
        (out / f"{name}.log").open("w") as log,
        # Its own process group, so that no leftover process disturbs the next part.
        subprocess.Popen(
            part.command, stdout=log, stderr=subprocess.STDOUT, env=environment, process_group=0
        ) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # pre-training then saves a checkpoint
            try:
                process.wait(LEAST)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            return "too long"


def main() -> None:
    """Run the parts, and print the time of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=Path, help="the folder that electra prepare wrote")
    parser.add_argument("--parts", nargs="+", help="run only these parts, by name")
    parser.add_argument("--seconds", type=float, default=560, help="limit of all parts together")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = list_parts(arguments.out, arguments.shards)
    end = time.perf_counter() + arguments.seconds
    for name in arguments.parts or parts:
        part, began = parts[name], time.perf_counter()
        seconds = min(part.seconds, end - LEAST - began)
        if seconds < LEAST:
            print(f"{name}: skipped, because no time is left", flush=True)
            continue
        print(f"{name}: {' '.join(part.command)}", flush=True)
        status = run_part(name, part, arguments.out, seconds)
        took, log = time.perf_counter() - began, arguments.out / f"{name}.log"
        print(f"{name}: {status or 'done'} after {took:.0f} s; the end of {log}:")
        lines = log.read_text(errors="replace").splitlines()[-40 if status else -14 :]
        print("".join(f"    {line[:300]}\n" for line in lines), flush=True)
        if part.is_check and status:
            raise SystemExit(f"error: {name} failed; to run later parts, name them in --parts")


if __name__ == "__main__":
    main()
