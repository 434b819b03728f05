"""Everything that a GPU is asked, in one command, each part in a process of its own.

    python -m benchmarks.gpu --out results/gpu [--shards SHARDS]

Tests of CUDA code; the step at the paper's sizes beside the alternatives; its kernels, and the
bandwidth of each that the compiler wrote; with shards, pre-training itself for some minutes. A part
that fails or takes too long is told, and the next one begins.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

PYTHON = sys.executable


def list_parts(out: Path, shards: Path | None) -> dict[str, list[str]]:
    """Return the commands by name."""

    def module(name: str, *words: str) -> list[str]:
        return [PYTHON, "-m", f"benchmarks.{name}", *words]

    def size(preset: str, rows: int) -> list[str]:
        return ["--preset", preset, "--batch-size", str(rows)]

    def to(name: str) -> list[str]:
        return ["--out", str(out / name)]

    parts = {
        "tests": [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda"],
        "step-small": module(
            "step", *size("small", 128), "--compiled", "--wide", *to("step-small.json")
        ),
        "kernels-small": module("kernels", *size("small", 128), *to("kernels-small.json")),
        "kernels-plain": module(
            "kernels", *size("small", 128), "--plain", *to("kernels-plain.json")
        ),
        "step-base": module("step", *size("base", 32), "--compiled", *to("step-base.json")),
        "kernels-base": module("kernels", *size("base", 64), *to("kernels-base.json")),
        "bandwidth": module("kernels", *size("small", 128), "--set", "train.cuda_graph=false"),
    }
    if shards:
        parts["pretrain"] = [
            *(PYTHON, "-m", "electra", "pretrain", str(shards), "--preset", "small"),
            *("--out", str(out / "small"), "train.steps=20000", "optimizer.warmup_steps=1000"),
            *("train.evaluate_every=2000", "train.save_every=20000"),
        ]
    return parts


def main() -> None:
    """Run the parts, and print what each took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=Path, help="what electra prepare wrote")
    parser.add_argument("--parts", nargs="+", help="only these, by name")
    parser.add_argument("--seconds", type=float, default=540, help="limit of each part")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = list_parts(arguments.out, arguments.shards)
    for name in arguments.parts or parts:
        environment = dict(os.environ)
        if name == "bandwidth":  # torch's compiler then times each kernel it wrote
            output = arguments.out / "bandwidth.txt"
            environment |= {
                "TORCHINDUCTOR_PROFILE": "1",
                "TORCHINDUCTOR_PROFILE_OUTPUT": str(output),
            }
        log, began = arguments.out / f"{name}.log", time.perf_counter()
        print(f"{name}: {' '.join(parts[name])}", flush=True)
        with log.open("w") as file:
            try:
                code: int | str = subprocess.run(
                    parts[name],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    timeout=arguments.seconds,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = "too long"
        took = time.perf_counter() - began
        print(f"{name}: {code or 'done'} after {took:.0f} s; the end of {log}:")
        print("".join(f"    {line}\n" for line in log.read_text().splitlines()[-14:]), flush=True)


if __name__ == "__main__":
    main()
