"""All that a GPU is asked, in one command, each part in its own process.

    python -m benchmarks.gpu --out runs/gpu [--bundle runs/bundle] [--parts NAME ...] [--dry-run]

The checks come first, the cheapest before the others: kernels against a CPU, captured steps,
compiled steps. The measurements follow: the step of `small` at its default and with each setting,
one line each, `base`, and the step beside the alternatives. A part that fails or takes too long is
reported, and the next part begins while time is left; a failed check is named again at the end, and
makes the exit status 1.

With --bundle, which benchmarks.gpu_bundle wrote, no registry is needed, and the parts of `SCHEDULE`
run unless --parts names others: they fit half an hour. "reproduce" pre-trains ELECTRA-Small and
BERT-Small at equal FLOPs with the fastest variant, for --suite-seconds together, and scores them on
the tasks of the bundle. "pretrain", "export" and "finetune" do the same with one longer run of
`small`, which is packed in pieces. Give the same --out to all calls, in a folder that git ignores:
if the time of a call ends before, the same call continues, a pre-training from its last checkpoint,
a fine-tuning from its beginning. Records, tables and logs are packed into OUT/records.tar.xz.

--dry-run prints the plan, minute by minute, and the sizes of what has to be carried to the machine.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.presets import PRESETS
from electra.reproduce.suite import read_suite
from electra.tasks.glue import GLUE

PYTHON = sys.executable
LEAST = 20
"""Least remaining time, in seconds, for which a part begins."""
CLOSING = 60
"""Seconds that a pre-training leaves for its last evaluation and checkpoint."""
VARIANTS: dict[str, list[str]] = {
    "small": [],
    "small-unmasked": ["examples.short_prob=0"],
    "small-triton": ["train.layers=triton"],
    "small-unmasked-triton": ["examples.short_prob=0", "train.layers=triton"],
    "small-separate": ["train.combine_kernels=false"],
    "small-overlap": ["train.overlap=true"],
    "small-dependent": ["train.dependent_launch=true"],
    "small-autotune": ["train.autotune=true"],
}
"""Settings of the variants that a pre-training may take. Autotuning comes last: it takes minutes
to compile."""
OTHERS: dict[str, tuple[str, int, list[str]]] = {
    "small-plain": ("small", 128, ["--plain"]),
    "small-mix-order": ("small", 128, ["--mix-order"]),
    "small-512": ("small", 512, []),
    "small-triton-512": ("small", 512, ["train.layers=triton"]),
    "small-triton-no-dropout": (
        "small",
        128,
        [
            "train.layers=triton",
            "model.hidden_dropout_prob=0",
            "model.attention_probs_dropout_prob=0",
        ],
    ),
    "small-wide": ("small", 128, ["generator.hidden_fraction=1", "generator.layers_fraction=0.25"]),
    "modern-small": ("modern-small", 128, []),
    "modern-small-triton": ("modern-small", 128, ["train.layers=triton"]),
    "base": ("base", 64, []),
    "deberta": ("deberta-v3-base", 32, []),
    "deberta-triton": ("deberta-v3-base", 32, ["train.layers=triton"]),
}
"""Preset, rows, and settings or an option of other measurements."""
FINETUNINGS = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sts-b": "STS-B"}
"""Tasks that take seconds on a GPU, and their folders."""
SCHEDULE = [
    *("install", "kernels", "captured", "triton", "warm", "small", "small-triton"),
    *("small-overlap", "prepare", "reproduce", "compiled"),
]
"""The parts that run with a bundle, in their order."""
WARM_SECONDS, WARMED_SECONDS = 110, 25
"""Likely time in which all variants compile side by side, and that of a measurement after it."""
SUITE_EXTRA = 115 + 20 + 130
"""Seconds of `reproduce` beside its pre-trainings: compiling, evaluation, fine-tuning."""
STARTING = 90
"""Seconds until a machine begins with the first part."""
LOSS_TOLERANCE = 0.01
"""Largest relative difference of the first losses of two variants that compute the same, up to the
rounding of bfloat16 and other draws of dropout."""
PUBLISHED_FRACTION = 0.0625
"""The smallest share of its budget after which the paper scores ELECTRA-Small."""
SUITE = Path(__file__).parent / "one-gpu" / "table-1.toml"


class Part(NamedTuple):
    """A command and its time limit."""

    seconds: float
    command: list[str]
    is_check: bool = False
    """Whether a failure makes the exit status 1."""
    expected: float = 120
    """Seconds that it is likely to take, for the plan."""


def list_parts(out: Path, bundle: Path | None) -> dict[str, Part]:
    """Return the parts by name, in their order."""

    def check(
        seconds: float, names: str, expected: float, file: str = "test_step", needed: bool = True
    ) -> Part:
        # Torch's own warnings are listed at the end and are not failures here.
        words = ["-q", "-p", "no:cacheprovider", "-W", "default", f"tests/{file}.py", "-k", names]
        command = [PYTHON, "-m", "pytest", *words]
        return Part(seconds, command, is_check=needed, expected=expected)

    def step(seconds: float, name: str, preset: str, rows: int, settings: Sequence[str]) -> Part:
        size = ["--preset", preset, "--batch-size", str(rows), "--out", str(out / f"{name}.json")]
        # "yes" instead of "auto": without a compiler this part must fail, not be timed.
        settings = ["--set", "train.compile=yes", *settings]
        return Part(seconds, [PYTHON, "-m", "benchmarks.kernels", *size, *settings], expected=70)

    def warm(words: Sequence[str]) -> Part:
        return Part(300, [*words, "--warm"], expected=WARM_SECONDS)

    def beside(preset: str, rows: int, repeats: int) -> Part:
        words = ["--preset", preset, "--batch-size", str(rows), "--repeats", str(repeats)]
        words += ["--compiled", "--out", str(out / f"step-{preset}.json")]
        return Part(480, [PYTHON, "-m", "benchmarks.step", *words, "--set", "train.compile=yes"])

    parts: dict[str, Part] = {}
    if bundle:
        wheels = ["--no-index", "--find-links", str(bundle / "wheels"), "--no-deps"]
        names = sorted({path.name.split("-")[0] for path in (bundle / "wheels").glob("*.whl")})
        install = [PYTHON, "-m", "pip", "install", "-q", *wheels, *names]
        parts["install"] = Part(60, install, expected=6)
    parts |= {
        "kernels": check(120, "cuda_losses", 42),
        "captured": check(120, "cuda_steps or cuda_captured_steps or cuda_stages or cuda_run", 60),
        "compiled": check(300, "cuda_captured_and or cuda_and", 150),
        "triton": check(120, "cuda", 60, "test_triton_layer", needed=False),
    }
    measured = {
        **{name: step(240, name, "small", 128, words) for name, words in VARIANTS.items()},
        **{name: step(360, name, *words) for name, words in OTHERS.items()},
    }
    parts |= {f"warm-{name}": warm(part.command) for name, part in measured.items()} | measured
    parts |= {
        "bandwidth": step(300, "bandwidth", "small", 128, ["train.cuda_graph=false"]),
        "step-small": beside("small", 128, 5),
        "step-base": beside("base", 32, 3),
    }
    if bundle:
        electra, run, exported = [PYTHON, "-m", "electra"], str(out / "run"), str(out / "exported")
        texts = [str(path) for path in sorted(bundle.glob("*/*.txt.xz"))]
        vocabulary = ["--tokenizer", str(bundle / "vocab.txt"), "--out", str(out / "shards")]
        parts |= {
            "prepare": Part(300, [*electra, "prepare", *texts, *vocabulary], expected=42),
            "pretrain": Part(1800, [*electra, "pretrain", str(out / "shards"), "--out", run]),
            "export": Part(120, [*electra, "export", run, "--out", exported]),
        }
        for task, folder in FINETUNINGS.items():
            # Folders of the bundle come one by one; a later one may hold the task.
            data = next(bundle.glob(f"*/glue/{folder}"), bundle / "glue" / folder)
            words = ["--task", task, "--data", str(data), "--out", str(out / task), "--seeds", "5"]
            parts[f"finetune-{task}"] = Part(300, [*electra, "finetune", run, *words])
        found = {
            task: place
            for task in read_suite(SUITE).tasks
            for name in GLUE[task].folders
            for place in bundle.glob(f"*/glue/{name}")
        }
        words = ["--tasks", *found, "--data", *(f"{task}={place}" for task, place in found.items())]
        words += ["--shards", str(out / "shards"), "--runs", str(out / "runs")]
        words += ["--out", str(out / "table-1")]
        parts["reproduce"] = Part(1800, [*electra, "reproduce", str(out / "table-1.toml"), *words])
    return parts


def choose_variant(out: Path) -> tuple[str, float]:
    """Return the name of the fastest measured variant, and its seconds per step.

    Variants with Triton's kernels take part only if their check has passed, and every variant only
    if its first losses are those of `small`.

    Raises:
        SystemExit: No variant was measured.
    """
    has_passed = (out / "triton.passed").exists()
    records = {
        name: json.loads((out / f"{name}.json").read_text())
        for name, words in VARIANTS.items()
        if (out / f"{name}.json").exists() and (has_passed or "train.layers=triton" not in words)
    }
    if not records:
        raise SystemExit(f"error: {out} has no measured variant; run the part small first")
    expected = next(iter(records.values()))["losses"]
    seconds = {
        name: record["seconds_per_step"]
        for name, record in records.items()
        if all(
            math.isclose(loss, other, rel_tol=LOSS_TOLERANCE)
            for loss, other in zip(record["losses"], expected, strict=True)
        )
    }
    if not seconds:  # the losses of small are NaN
        raise SystemExit(f"error: no variant in {out} has losses that can be compared")
    fastest = min(seconds, key=seconds.__getitem__)
    return fastest, seconds[fastest]


def plan_pretraining(out: Path, seconds: float) -> list[str]:
    """Return the settings of a pre-training of `small` that takes the given time.

    The learning rate has decayed to zero when the time is over. A tenth is left for compiling and
    for a step that is slower than it was alone.
    """
    name, seconds_per_step = choose_variant(out)
    steps = max(100, int(0.9 * (seconds - CLOSING) / seconds_per_step))
    return [
        *("--preset", "small", "--set", "train.compile=yes", *VARIANTS[name]),
        *(f"train.steps={steps}", f"optimizer.warmup_steps={min(10_000, steps // 10)}"),
        *(f"train.evaluate_every={steps // 10}", f"train.save_every={steps // 4}"),
    ]


def write_suite(out: Path, seconds: float) -> None:
    """Write OUT/table-1.toml, unless an earlier call did: `SUITE` with the budget for a time.

    Args:
        out: The folder of the measurements, of which the fastest variant counts.
        seconds: Time of the pre-trainings of the suite's two rows together.
    """
    path = out / "table-1.toml"
    if path.exists():
        return
    name, seconds_per_step = choose_variant(out)
    steps = 0.9 * seconds / 2 / seconds_per_step
    fraction = math.floor(1e4 * steps / PRESETS["small"].train.steps) / 1e4
    settings = json.dumps(["train.compile=yes", *VARIANTS[name]])
    base = os.path.relpath(SUITE, out)
    lines = [f"extends = {json.dumps(base)}", f"set = {settings}"]
    if fraction < PUBLISHED_FRACTION:  # the rows without the paper's scores
        lines += [
            f"fractions = [{fraction}]",
            f'title = "Table 1: Small after {fraction:.2%} of the budget, on one GPU"',
            '[[rows]]\nname = "ELECTRA-Small"\nside = "higher"',
            '[[rows]]\nname = "BERT-Small"\nset = ["method.objective=mlm"]',
        ]
    path.write_text("\n".join(lines) + "\n")


def summarise(record: dict[str, Any]) -> str:
    """Return one line for a record of benchmarks.kernels."""
    share = record["flops_per_second"] / record["peak_flops_per_second"]
    gaps = record.get("gap_seconds_per_step")
    attention = record["step"].get("attention", {})
    return (
        f"{1e3 * record['seconds_per_step']:.2f} ms, {record['tokens_per_second'] / 1e6:.2f} Mtok/s"
        + (f", {record['spans_per_step']:.0f} kernels" if "kernels" in record else ", no profile")
        + (f", {1e3 * gaps:.2f} ms in gaps" if gaps is not None else "")
        + f", {share:.0%} of {record['peak_flops_per_second'] / 1e12:.0f} TFLOP/s, a copy "
        f"{record['copy_bytes_per_second'] / 1e12:.2f} TB/s, attention "
        + " ".join(f"{name} {kernels[0]}" for name, kernels in attention.items())
    )


def split_file(path: Path, folder: Path, limit: int) -> list[Path]:
    """Cut a file into pieces NAME.000, NAME.001, ... of at most `limit` bytes; `cat` joins them."""
    pieces = []
    with path.open("rb") as source:
        for number, piece in enumerate(iter(lambda: source.read(limit), b"")):
            pieces.append(folder / f"{path.name}.{number:03}")
            pieces[-1].write_bytes(piece)
    return pieces


def pack_model(exported: Path, run: Path, out: Path, limit: int = 15 * 2**20) -> None:
    """Write the exported networks in bfloat16 in pieces, with configuration, metrics and manifest.

    The files of the generator have names that begin with "generator-".
    """
    import torch
    from safetensors.torch import load_file, save_file

    out.mkdir(parents=True, exist_ok=True)
    for folder in (exported, exported / "generator"):
        if not folder.exists():
            continue
        prefix = "" if folder == exported else "generator-"
        tensors = {
            name: tensor.to(torch.bfloat16)
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        whole = out / f"{prefix}model.safetensors"
        save_file(tensors, whole, {"format": "pt"})
        split_file(whole, out, limit)
        whole.unlink()
        (out / f"{prefix}config.json").write_bytes((folder / "config.json").read_bytes())
    for name in ("metrics.jsonl", "manifest.json", "results.json"):
        if (run / name).exists():
            (out / name).write_bytes((run / name).read_bytes())


def pack_records(out: Path) -> Path:
    """Write OUT/records.tar.xz with what was measured and written, without weights and shards."""
    packed = out / "records.tar.xz"
    with tarfile.open(packed, "w:xz") as archive:
        for path in sorted(out.rglob("*")):
            is_record = path.suffix in (".json", ".jsonl", ".md", ".log", ".txt", ".toml", ".tsv")
            if path.is_file() and is_record and "shards" not in path.relative_to(out).parts:
                archive.add(path, path.relative_to(out))
    return packed


def describe_plan(parts: dict[str, Part], names: Sequence[str], bundle: Path | None) -> list[str]:
    """Return the plan in lines: when each part begins, how long it takes, what is carried."""
    lines, now = [], float(STARTING)
    for group in group_parts(names):
        expected = max(parts[name].expected for name in group)
        limit = max(parts[name].seconds for name in group)
        lines.append(
            f"minute {now / 60:4.1f}: {' '.join(group)}, {expected / 60:.1f} min, at most "
            f"{limit / 60:.1f}"
        )
        now += expected
    lines.append(f"minute {now / 60:4.1f}: the end, {now / 60:.1f} min with the machine's start")
    if bundle and bundle.is_dir():
        for path in sorted(bundle.iterdir()):
            files = [each for each in [path, *path.rglob("*")] if each.is_file()]
            size = sum(each.stat().st_size for each in files)
            lines.append(f"carried: {path}, {size / 2**20:.1f} MiB")
    return lines


def find_names(parts: dict[str, Part], words: Sequence[str]) -> Iterator[str]:
    """Yield the parts that words name; "warm" compiles the measurements that are named as well."""
    for word in words:
        for name in parts:
            kind, _, rest = name.partition("-")
            is_of_kind = word == kind and (kind == "finetune" or (kind == "warm" and rest in words))
            if name == word or is_of_kind:
                yield name


def start_part(name: str, part: Part, out: Path) -> subprocess.Popen[bytes]:
    """Start a part, whose output goes to OUT/NAME.log."""
    environment = dict(os.environ)
    if name.startswith("warm-"):  # beside others
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "3"}
    if name == "bandwidth":  # torch's compiler then times each generated kernel
        environment |= {
            "TORCHINDUCTOR_PROFILE": "1",
            "TORCHINDUCTOR_PROFILE_OUTPUT": str(out / "bandwidth.txt"),
        }
    with (out / f"{name}.log").open("w") as log:
        # Its own process group, so that no leftover process disturbs the next part.
        return subprocess.Popen(
            part.command, stdout=log, stderr=subprocess.STDOUT, env=environment, process_group=0
        )


def end_part(process: subprocess.Popen[bytes], seconds: float) -> int | str:
    """Return the exit status of a part, or "too long" after `seconds`."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # pre-training then saves a checkpoint
        try:
            process.wait(LEAST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return "too long"


def group_parts(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the parts that run at once: all that compile, all fine-tunings, the others alone."""
    together = [
        [name for name in names if name.startswith(kind)] for kind in ("warm-", "finetune-")
    ]
    for name in names:
        group = next((each for each in together if name in each), [name])
        if name == group[0]:
            yield group


def report_part(name: str, status: int | str, took: float, out: Path) -> None:
    """Print the line of a measurement, or the end of another part's output."""
    record = out / f"{name}.json"
    if (name in VARIANTS or name in OTHERS) and record.exists() and not status:
        print(f"{name}: {summarise(json.loads(record.read_text()))}", flush=True)
        return
    log = out / f"{name}.log"
    print(f"{name}: {status or 'done'} after {took:.0f} s; the end of {log}:")
    lines = log.read_text(errors="replace").splitlines()[-40 if status else -14 :]
    print("".join(f"    {line[:300]}\n" for line in lines), flush=True)


def main() -> None:
    """Run the parts, and print the time of each."""
    arguments, parser = read_arguments()
    out: Path = arguments.out
    parts = list_parts(out, arguments.bundle)
    if "reproduce" in parts:
        expected = arguments.suite_seconds + SUITE_EXTRA
        parts["reproduce"] = parts["reproduce"]._replace(expected=expected)
    unknown = [word for word in arguments.parts or () if word not in (*parts, "finetune", "warm")]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(parts)}")
    alone = [name for name in parts if not name.startswith("warm-")]
    words = arguments.parts or (SCHEDULE if arguments.bundle else alone)
    names = list(find_names(parts, words))
    for name in (name for name in names if f"warm-{name}" in names):
        parts[name] = parts[name]._replace(expected=WARMED_SECONDS)
    if arguments.dry_run:
        return print("\n".join(describe_plan(parts, names, arguments.bundle)))
    out.mkdir(parents=True, exist_ok=True)
    failed = run_parts(parts, names, out, arguments.seconds, arguments.suite_seconds)
    print(f"packed {pack_records(out)}", flush=True)
    if failed:
        raise SystemExit(f"error: failed checks: {', '.join(failed)}")


def read_arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Return the arguments of the command line, and their parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, help="the folder that benchmarks.gpu_bundle wrote")
    parser.add_argument("--parts", nargs="+", help="run only these parts, by name")
    parser.add_argument(
        "--suite-seconds",
        type=float,
        default=540,
        help="seconds of both pre-trainings of reproduce; later calls keep the first value",
    )
    parser.add_argument("--seconds", type=float, default=560, help="limit of all parts together")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, minute by minute")
    return parser.parse_args(), parser


def run_parts(
    parts: dict[str, Part], names: Sequence[str], out: Path, seconds: float, suite_seconds: float
) -> list[str]:
    """Run parts until the time is over, and return the names of the checks that failed."""
    end, failed = time.perf_counter() + seconds, []
    for group in group_parts(names):
        began = time.perf_counter()
        left = end - LEAST - began
        if left < LEAST:
            print(f"{' '.join(group)}: skipped, because no time is left", flush=True)
            continue
        try:
            if group == ["pretrain"]:
                part, settings = parts["pretrain"], plan_pretraining(out, left)
                parts["pretrain"] = part._replace(command=[*part.command, *settings])
            if group == ["reproduce"]:
                write_suite(out, suite_seconds)
        except SystemExit as error:  # there is no measured step to plan with
            print(f"{' '.join(group)}: skipped, {error}", flush=True)
            continue
        running = {}
        for name in group:
            print(f"{name}: {' '.join(parts[name].command)}", flush=True)
            running[name] = start_part(name, parts[name], out)
        for name, process in running.items():
            limit = min(parts[name].seconds, left)
            status = end_part(process, max(1, began + limit - time.perf_counter()))
            report_part(name, status, time.perf_counter() - began, out)
            if status and parts[name].is_check:
                failed.append(name)
            if name == "triton" and not status:
                (out / "triton.passed").touch()
            if name == "export" and not status:
                pack_model(out / "exported", out / "run", out / "pieces")
    return failed


if __name__ == "__main__":
    main()
