"""Long series on toy runs that are killed, damaged, starved of room, stopped and continued.

    python -m benchmarks.reliability --work FOLDER --out results/reliability.json

Each series takes minutes on one core; --series names those to run, and the results of the others
are kept. FOLDER holds a toy corpus and the runs. The series `disk` needs a file system of 64 MB,
which root makes: `mount -t tmpfs -o size=64m tmpfs FOLDER/small`. The series `nodes` has to be run
by root as well, and needs the command `ip`. Without these, a series is left out, and the results
say so. The series `overhead` takes times, so nothing else may run beside it.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from electra.assignments import override
from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.metrics import OF_THE_MACHINE, read_metrics
from electra.errors import UserError
from electra.files import read_object, write_json, write_text
from electra.presets import PRESETS
from electra.pretraining.loop import pretrain
from electra.settings import to_dict
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.training.machine import Machine

TOY = [
    *("model.hidden_size=128", "model.num_hidden_layers=2", "model.num_attention_heads=2"),
    *("model.intermediate_size=256", "model.embedding_size=32", "generator.hidden_fraction=0.5"),
    *("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1"),
    *("train.initial_weights=bert", "examples.sequence_length=32", "optimizer.warmup_steps=4"),
    *("train.steps=200", "train.batch_size=8", "train.log_every=5", "train.evaluate_every=50"),
    *("train.evaluate_rows=16", "train.save_every=5", "train.precision=float32"),
    *("train.threads=1", "train.device=cpu", "train.check_memory=false"),
]
"""Two layers, dropout and sampling on, a checkpoint every five steps."""
SENTENCE = (
    ("the old sailor", "a young doctor", "my neighbour", "the queen"),
    ("repaired", "painted", "admired", "unhesitatingly sold"),
    ("a boat", "the castle", "an engine", "seven umbrellas"),
    ("yesterday", "in 1912", "before breakfast", "at the harbour"),
)


def main() -> None:
    """Run the series, write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES))
    arguments = parser.parse_args()
    work: Path = arguments.work
    shards = make_shards(work)
    results = read_object(arguments.out) if arguments.out.exists() else {}
    for name in arguments.series:
        began = time.perf_counter()
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir(parents=True)
        found = SERIES[name](work / name, shards)
        found |= {"minutes": round((time.perf_counter() - began) / 60, 1)}
        found |= {"commit": find_commit(), "torch": torch.__version__, "device": Machine().name}
        results[name] = found
        print(name, json.dumps(found))
        write_json(arguments.out, results)
        write_text(arguments.out.with_suffix(".md"), tabulate(results))


def make_shards(work: Path) -> Path:
    """Return shards of grammatical nonsense, made once."""
    folder = work / "shards"
    if not folder.exists():
        work.mkdir(parents=True, exist_ok=True)
        rng, lines = random.Random(0), []
        for _ in range(2000):
            for _ in range(rng.randint(1, 6)):
                lines.append(" ".join(rng.choice(words) for words in SENTENCE))
            lines.append("")
        text = work / "text.txt"
        text.write_text("\n".join(lines), encoding="utf-8")
        tokenizer = Tokenizer.train(lines, TokenizerConfig(vocab_size=120, min_frequency=1))
        config = PrepareConfig(heldout_prob=0.05, workers=1)
        prepare([str(text)], tokenizer, folder, config, None)
    return folder


def make_config(*settings: str) -> PretrainConfig:
    """Return the toy settings."""
    return override(override(PRESETS["tiny"], TOY), settings)


def ignore(record: dict[str, Any]) -> None:
    """Show nothing."""


def read_end(run: Path) -> tuple[Any, ...]:
    """Return the newest step, the records without times, and all tensors as bytes."""
    step, folder = find_checkpoint(run)
    records = [
        {name: value for name, value in record.items() if name not in OF_THE_MACHINE}
        for record in read_metrics(run / "metrics.jsonl")
    ]
    tensors = {
        f"{file}/{name}": tensor.numpy().tobytes()
        for file in ("model.safetensors", "optimizer.safetensors")
        for name, tensor in load_file(folder / file).items()
    }
    return step, records, tensors


CHILD = """
import json, sys
from pathlib import Path
from benchmarks.reliability import ignore
from electra.training.config import PretrainConfig
from electra.pretraining.loop import pretrain
from electra.assignments import from_dict
shards, run, config = sys.argv[1:]
pretrain(Path(shards), Path(run), from_dict(PretrainConfig, json.loads(config)), ignore)
"""


def start(
    processes: int,
    shards: Path,
    run: Path,
    config: PretrainConfig,
    *options: str,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a run in one process, or in several under torchrun.

    Args:
        processes: Number of processes.
        shards: Folder of the shards.
        run: The run folder.
        config: The settings.
        options: Of torchrun; with options, torchrun also starts a single process.
        prefix: A command that starts the launcher.
    """
    program = run.parent / "child.py"
    program.write_text(CHILD)
    launcher = [*prefix, sys.executable]
    if processes > 1 or options:
        launcher += ["-m", "torch.distributed.run", *(options or ["--standalone"])]
        launcher += [f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.train.threads)}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    words = [str(program), str(shards), str(run), json.dumps(to_dict(config))]
    return subprocess.Popen([*launcher, *words], env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a run; an exception has what a failed one printed."""
    _, printed = process.communicate()
    if process.returncode:
        raise RuntimeError(printed)


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def kill(work: Path, shards: Path, times: int = 50) -> dict[str, Any]:
    """Send SIGKILL at random moments, a third of them aimed at a save; compare the end's bits."""
    run, whole, rng = work / "run", work / "whole", random.Random(0)
    config = make_config(f"train.steps={12 * times}")
    finish(start(1, shards, whole, config))
    kills = in_saves = 0
    checkpoints = run / "checkpoints"
    while True:
        process = start(1, shards, run, config)
        # A killed run gets at least a few steps further, or it would never end.
        newest = list_checkpoints(run)[-1:]
        while process.poll() is None and list_checkpoints(run)[-1:] == newest:
            time.sleep(0.002)
        if kills < times and process.poll() is None:
            wants_save = kills % 3 == 0
            until = time.monotonic() + rng.uniform(0, 0.4)
            while time.monotonic() < until or (wants_save and process.poll() is None):
                if wants_save and list(checkpoints.glob("*.incomplete")):
                    break
                time.sleep(0.0005)
        if process.poll() is None and kills < times:
            process.kill()
            kills += 1
        process.wait()
        in_saves += bool(list(checkpoints.glob("*.incomplete")))
        if process.returncode == 0:
            break
    return {
        "kills": kills,
        "of them in a save": in_saves,
        "same bits at the end": read_end(run) == read_end(whole),
    }


def restarts(work: Path, shards: Path, times: int = 10) -> dict[str, Any]:
    """SIGKILL to one of two processes, ten times under one torchrun that starts them anew."""
    run, whole, rng = work / "run", work / "whole", random.Random(0)
    config = make_config()
    finish(start(2, shards, whole, config))
    launcher = start(2, shards, run, config, "--standalone", f"--max-restarts={times}")
    seconds: list[float] = []
    for _ in range(times):
        await_session(run, len(seconds) + 1, launcher)
        time.sleep(rng.uniform(0, 0.3))
        began = time.monotonic()
        os.kill(rng.choice(children_of(launcher.pid)), signal.SIGKILL)
        await_session(run, len(seconds) + 2, launcher)
        seconds.append(time.monotonic() - began)
    finish(launcher)
    return {
        "kills": len(seconds),
        "slowest, seconds to the next checkpoint": round(max(seconds), 1),
        "same bits at the end": read_end(run) == read_end(whole),
    }


def await_session(run: Path, number: int, launcher: subprocess.Popen[str]) -> None:
    """Wait until the given session of a run, from 1, has written a checkpoint."""
    manifest = run / "manifest.json"
    while True:
        if launcher.poll() is not None:
            raise RuntimeError(launcher.communicate()[1])
        sessions = read_object(manifest)["sessions"] if manifest.exists() else []
        newest = list_checkpoints(run)[-1:]
        if len(sessions) >= number and newest:
            step = int(newest[0].name.removeprefix("step-"))
            if step > sessions[number - 1]["first_step"]:
                return
        time.sleep(0.02)


def nodes(work: Path, shards: Path) -> dict[str, Any]:
    """Two network namespaces as two machines: one is lost with all its processes, and comes back.

    The namespaces see each other through a pair of virtual devices only.
    """
    if os.geteuid() or not shutil.which("ip"):
        return {"left out": "only root, with the command ip, can make network namespaces"}
    run, whole, names = work / "run", work / "whole", ("electra-0", "electra-1")
    config = make_config("train.steps=100")
    finish(start(2, shards, whole, config))

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    def start_node(number: int) -> subprocess.Popen[str]:
        options = ["--nnodes=2", "--max-restarts=5", "--rdzv-backend=c10d", "--rdzv-id=electra"]
        options += ["--rdzv-endpoint=10.77.0.1:29477", f"--local-addr=10.77.0.{number + 1}"]
        options += [f"--rdzv-conf=is_host={number == 0}"]  # no name of the address can be found
        device = ["env", f"GLOO_SOCKET_IFNAME=electra-{number}"]
        variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        prefix = ["ip", "netns", "exec", names[number], *device, variable]
        return start(1, shards, run, config, *options, prefix=prefix)

    try:
        for name in names:
            ip(f"netns add {name}")
        ip(f"link add {names[0]} netns {names[0]} type veth peer name {names[1]} netns {names[1]}")
        for number, name in enumerate(names):
            ip(f"-n {name} address add 10.77.0.{number + 1}/24 dev {name}")
            ip(f"-n {name} link set {name} up")
            ip(f"-n {name} link set lo up")
        machines = [start_node(0), start_node(1)]
        await_session(run, 1, machines[0])
        for pid in (*children_of(machines[1].pid), machines[1].pid):
            os.kill(pid, signal.SIGKILL)
        machines[1].communicate()
        at = find_checkpoint(run)[0]
        time.sleep(5)
        waits = machines[0].poll() is None
        began = time.monotonic()
        machines[1] = start_node(1)
        await_session(run, 2, machines[0])
        seconds = time.monotonic() - began
        for machine in machines:
            finish(machine)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
    return {
        "lost at step": at,
        "the other machine waits": waits,
        "seconds from its return to the next checkpoint": round(seconds, 1),
        "same bits as two processes on one machine": read_end(run) == read_end(whole),
    }


def make_finished(work: Path, shards: Path) -> tuple[Path, PretrainConfig]:
    """Return a finished run of 20 steps."""
    config = make_config("train.steps=20")
    pretrain(shards, work / "whole", config, ignore)
    return work / "whole", config


def damage(work: Path, shards: Path) -> dict[str, Any]:
    """100 flipped bits, 20 truncations, and each file deleted: each has to be found and mended."""
    whole, config = make_finished(work, shards)
    expected, rng = read_end(whole), random.Random(0)
    run = work / "run"
    cases: list[tuple[str, Callable[[Path], None]]] = []
    names = ("model.safetensors", "optimizer.safetensors", "state.json")

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    def cut(path: Path) -> None:
        os.truncate(path, rng.randrange(path.stat().st_size))

    cases += [(names[n % 3], flip) for n in range(100)]
    cases += [(names[n % 3], cut) for n in range(20)]
    cases += [(name, Path.unlink) for name in names]
    detected = mended = 0
    for name, harm in cases:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        (run / "results.json").unlink()
        newest = list_checkpoints(run)[-1]
        harm(newest / name)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            pretrain(shards, run, config, ignore)
        named = any(f"{newest.name} is damaged" in str(each.message) for each in told)
        detected += named
        mended += read_end(run)[2] == expected[2]
    return {"cases": len(cases), "detected and named": detected, "same bits at the end": mended}


def disk(work: Path, shards: Path) -> dict[str, Any]:
    """A file system that is full in the middle of a save."""
    small = work.parent / "small"
    if not os.path.ismount(small):
        return {"left out": f"{small} is not a file system of its own"}
    run, ballast = small / "run", small / "ballast"
    for path in small.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    told: list[str] = []

    def fill(record: dict[str, Any]) -> None:
        if record["part"] == "train" and record["step"] == 6:
            free = shutil.disk_usage(small).free
            ballast.write_bytes(bytes(max(0, free - 300_000)))
        if record["part"] == "train" and record["step"] == 14:
            whole = [find_checkpoint(run)[0]]
            told.append(f"checkpoint {whole[0]} whole while the disk was full")
            ballast.unlink()

    config = make_config("train.steps=20", "train.log_every=1", "train.keep_checkpoints=1")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        pretrain(shards, run, config, fill)
    pretrain(shards, work.parent / "roomy", config, ignore)
    same = read_end(run)[2] == read_end(work.parent / "roomy")[2]
    shutil.rmtree(work.parent / "roomy")
    texts = [str(note.message) for note in notes if "could not be written" in str(note.message)]
    return {
        "saves that found no room": len(texts),
        "note": texts[0].replace(str(small), "FOLDER") if texts else "",
        "meanwhile": "; ".join(told),
        "same bits at the end": same,
    }


def stop(work: Path, shards: Path) -> dict[str, Any]:
    """SIGTERM to torchrun with two processes, ten times: seconds until the end, same step."""
    run, seconds, steps = work / "run", [], []
    config = make_config("train.steps=1000000", "train.save_every=1000000")
    for _ in range(10):
        process = start(2, shards, run, config)
        metrics = run / "metrics.jsonl"
        before = metrics.stat().st_size if metrics.exists() else 0
        while not metrics.exists() or metrics.stat().st_size <= before:
            if process.poll() is not None:
                raise RuntimeError(process.stderr.read() if process.stderr else "")
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate()
        seconds.append(time.monotonic() - began)
        steps.append(find_checkpoint(run)[0])
    sessions = read_object(run / "manifest.json")["sessions"]
    begun = [session["first_step"] for session in sessions]
    return {
        "stops": len(seconds),
        "slowest, seconds": round(max(seconds), 1),
        "each continued where it stopped": begun == [0, *steps[:-1]],
    }


def saves(work: Path, shards: Path) -> dict[str, Any]:
    """A save after each of 200 steps in the background, and the time that steps wait for one."""
    seconds = {}
    for name, settings in (
        ("every step", ["train.save_every=1"]),
        ("every 20 steps", ["train.save_every=20"]),
        ("at the end", ["train.save_every=200"]),
    ):
        config = make_config(*settings, "train.evaluate_every=200", "train.log_every=200")
        began = time.perf_counter()
        pretrain(shards, work / name.replace(" ", "-"), config, ignore)
        seconds[name] = time.perf_counter() - began
    return {f"200 steps with a save {name}, seconds": round(s, 2) for name, s in seconds.items()}


def soak(work: Path, shards: Path) -> dict[str, Any]:
    """10,000 steps: memory and file descriptors of the process, and steps that were skipped."""
    page = os.sysconf("SC_PAGE_SIZE")
    memory: list[int] = []
    descriptors: list[int] = []

    def note(record: dict[str, Any]) -> None:
        if record["part"] == "train":
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * page)
            descriptors.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))

    steps = ["train.steps=10000", "train.log_every=100", "train.evaluate_every=1000"]
    tiny = ["model.hidden_size=64", "model.num_hidden_layers=1", "train.batch_size=4"]
    config = make_config(*steps, *tiny, "train.save_every=500", "optimizer.warmup_steps=100")
    pretrain(shards, work / "run", config, note)
    early, late = statistics.median(memory[10:20]), statistics.median(memory[-10:])
    last = [r for r in read_metrics(work / "run/metrics.jsonl") if r["part"] == "train"][-1]
    return {
        "memory at 1,000 to 2,000 steps, MiB": round(early / 2**20, 1),
        "memory at the end, MiB": round(late / 2**20, 1),
        "growth": f"{late / early - 1:.1%}",
        "file descriptors": sorted(set(descriptors[10:])),
        "skipped steps": last["skipped"],
    }


def overhead(work: Path, shards: Path) -> dict[str, Any]:
    """Seconds of 20 steps of 16 x 128 on two cores, by turns; medians of five runs and their range.

    One process with two threads, by itself and under torchrun; two processes with one thread each,
    which hold the whole model or divide it.
    """
    settings = ["train.steps=30", "train.save_every=30", "train.evaluate_rows=0"]
    settings += ["model.num_hidden_layers=4", "examples.sequence_length=128"]
    settings += ["train.batch_size=16", "train.log_every=10", "optimizer.matrices=adamw"]
    variants: dict[str, tuple[int, list[str], list[str]]] = {
        "one process, two threads": (1, [], ["train.threads=2"]),
        "the same under torchrun": (1, ["--standalone"], ["train.threads=2"]),
        "two processes, a thread each": (2, [], []),
        "the same, model divided": (2, [], ["train.sharding=full"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(5):
        for name, (processes, options, own) in variants.items():
            run = work / f"{name.replace(', ', '-').replace(' ', '-')}-{number}"
            finish(start(processes, shards, run, make_config(*settings, *own), *options))
            records = [r for r in read_metrics(run / "metrics.jsonl") if r["part"] == "train"]
            seconds[name].append(records[-1]["seconds"] - records[0]["seconds"])
    first = statistics.median(next(iter(seconds.values())))
    return {
        name: f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f}), "
        f"{statistics.median(times) / first:.2f} times the first"
        for name, times in seconds.items()
    }


SERIES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "kill": kill,
    "kill one of two": restarts,
    "damage": damage,
    "nodes": nodes,
    "disk": disk,
    "stop": stop,
    "saves": saves,
    "soak": soak,
    "overhead": overhead,
}


def tabulate(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| series | measured |", "| --- | --- |"]
    for name, found in results.items():
        facts = [f"{key}: {value}" for key, value in found.items() if key not in ("commit",)]
        lines.append(f"| {name} | {'; '.join(facts)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
