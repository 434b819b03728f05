"""The service under many clients: ours beside one at a time, and beside transformers' pipeline.

    python -m benchmarks.serve --texts texts.txt --out results/serve.json

ours                batches of up to 64 texts of many clients
ours, one           the same service with batch_items=1: one text at a time
pipeline            transformers' text-classification pipeline behind the same service, one text at
                    a time, the usual way
pipeline, batches   the same pipeline with the service's batches and batch_size=64

All variants answer with the same fine-tuned model (`small`, two labels, random weights: the speed
does not depend on them), in float32, with the same threads. Before the timing, the pipeline must
give our answers. The service runs in a process of its own; the clients share the machine with it.
Each client sends a text, waits for the answer, checks it, and sends the next. A repeat is a minute
of each variant, in turn.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.names import ELECTRA
from electra.errors import require
from electra.files import write_json, write_text
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.presets import PRESETS
from electra.reports.rendering import Table, to_markdown
from electra.service.config import ServeConfig
from electra.text.table_files import read_sentences
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine

VARIANTS = ("ours", "ours, one", "pipeline", "pipeline, batches")
TOLERANCE = 1e-5
"""Largest difference between probabilities, other than by the rounding to six digits."""


class Client:
    """One connection to a service, which is opened again when the service closes it."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, dict, Any]:
        """Return status, headers and the JSON of the answer.

        Raises:
            OSError: The service cannot be reached, or has closed the connection.
        """
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        return await self.send_raw(head.encode() + content)

    async def send_raw(self, request: bytes) -> tuple[int, dict, Any]:
        """Return what is answered to the bytes of a request."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader
        try:
            self.writer.write(request)
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            lines = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in lines}
            content = await self.reader.readexactly(int(headers.get("content-length", 0)))
        except (asyncio.IncompleteReadError, OSError) as error:
            self.close()
            raise ConnectionResetError(str(error)) from None
        if headers.get("connection") == "close":
            self.close()
        is_json = headers.get("content-type", "").startswith("application/json")
        return int(head[0].split()[1]), headers, json.loads(content) if is_json else content

    def close(self) -> None:
        """Close the connection."""
        if self.writer:
            self.writer.close()
        self.writer = None


async def load(port: int, path: str, bodies: Sequence[Any], clients: int, seconds: float) -> list:
    """Return (seconds, body's number, answer) of each request of some clients in some seconds."""
    end, done = time.perf_counter() + seconds, []

    async def ask(number: int) -> None:
        client, rng = Client(port), random.Random(number)
        while (began := time.perf_counter()) < end:
            chosen = rng.randrange(len(bodies))
            status, _, answer = await client.send("POST", path, bodies[chosen])
            require(status == 200, f"status {status}: {answer}")
            done.append((time.perf_counter() - began, chosen, answer))
        client.close()

    await asyncio.gather(*(ask(number) for number in range(clients)))
    return done


def make_models(folder: Path, texts: Sequence[str], preset: str, tokens: int) -> None:
    """Write a fine-tuning with two labels, `tuned`, and its export, `exported`."""
    from electra.interop.export import export

    torch.manual_seed(0)
    tokenizer = Tokenizer.train(texts, TokenizerConfig(vocab_size=tokens, min_frequency=1))
    tokenizer.save(folder / "start")
    sizes = override(PRESETS[preset], [f"model.vocab_size={tokenizer.vocab_size}"]).model
    encoder = Encoder(sizes)
    init_weights(encoder, 0.1, torch.Generator().manual_seed(0))
    write_json(folder / "start/config.json", ELECTRA.write_config(sizes, "ElectraModel", tokenizer))
    save_file(ELECTRA.to_theirs(encoder.state_dict()), folder / "start/model.safetensors")
    for split, part in (("train", texts[:32]), ("dev", texts[:16])):
        rows = [" ".join(text.split()) + f"\t{len(text) % 2}" for text in part]
        (folder / "task").mkdir(exist_ok=True)
        write_text(folder / "task" / f"{split}.tsv", "\n".join(["text\tlabel", *rows]) + "\n")
    subprocess.run(
        [sys.executable, "-m", "electra", "finetune", str(folder / "start"), "--task", "own"]
        + ["--data", str(folder / "task"), "--out", str(folder / "tuned")]
        + ["--set", "epochs=1", "batch_size=16", "threads=1", "precision=float32"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    export(folder / "tuned", folder / "exported")


class PipelineModel:
    """transformers' pipeline, with the questions of `TaskModel`."""

    name, verbs = "model", ("predict",)

    def __init__(self, folder: Path, batch_items: int):
        import transformers

        self.batch_items = batch_items
        self.pipeline = transformers.pipeline(
            "text-classification", str(folder), device="cpu", dtype=torch.float32
        )

    def describe(self) -> dict[str, Any]:
        """Return the model's name and verbs."""
        return {"name": self.name, "verbs": list(self.verbs)}

    def check(self, records: Sequence[Any]) -> None:
        """Take any record."""

    def predict(self, records: list[Any]) -> list[dict[str, Any]]:
        """Return what `TaskModel.predict` returns, by the pipeline."""
        texts = [record["text"] for record in records]
        found: Any = self.pipeline(texts, top_k=None, batch_size=self.batch_items, truncation=True)
        return [
            {"prediction": scores[0]["label"]}
            | {f"prob_{each['label']}": each["score"] for each in scores}
            for scores in found
        ]


def run_server(variant: str, folder: Path, threads: int) -> None:
    """Serve a variant on a free port, and print the address."""
    from electra.service.server import Server

    batch_items = 1 if variant in ("ours, one", "pipeline") else 64
    config = ServeConfig(threads=threads, batch_items=batch_items)
    server = Server([Path(f"model={folder / 'tuned'}")], config, "127.0.0.1", 0)
    if variant.startswith("pipeline"):
        server.models["model"] = PipelineModel(folder / "exported", batch_items)  # type: ignore[assignment]
    print(server.address, flush=True)
    server.run()


def start_server(words: Sequence[str]) -> tuple[subprocess.Popen, int]:
    """Return a process that prints its address when it serves, and its port."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    line = process.stdout.readline()
    found = re.search(r"http://\S+:(\d+)", line)
    require(found is not None, f"{' '.join(words)} does not serve: {line}")
    assert found
    return process, int(found[1])


def read_memory(pid: int) -> int:
    """Return the most memory of a process so far, bytes; 0 where /proc does not say."""
    path = Path(f"/proc/{pid}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(
    variant: str, folder: Path, texts: Sequence[str], clients: int, seconds: float, threads: int
) -> dict[str, Any]:
    """Return requests per second and the times of the answers of one variant."""
    words = [sys.executable, "-m", "benchmarks.serve", "--texts", "-", "--serve", variant]
    process, port = start_server([*words, "--folder", str(folder), "--threads", str(threads)])
    try:
        bodies = [{"records": [{"text": text}]} for text in texts]
        path = "/models/model/predict"
        asyncio.run(load(port, path, bodies, clients, min(3.0, seconds)))  # the first are slower
        before = read_memory(process.pid)
        began = time.perf_counter()
        done = asyncio.run(load(port, path, bodies, clients, seconds))
        wall = time.perf_counter() - began
        times = sorted(each for each, _, _ in done)
        return {
            "requests_per_second": len(done) / wall,
            "median_ms": 1000 * statistics.median(times),
            "p99_ms": 1000 * times[int(0.99 * (len(times) - 1))],
            "memory_growth": read_memory(process.pid) - before,
            "answers": {texts[number]: answer[0] for _, number, answer in done},
        }
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def compare(one: dict[str, dict], other: dict[str, dict]) -> float:
    """Return the largest difference of probabilities between two variants' answers."""
    both = one.keys() & other.keys()
    require(bool(both), "the variants answered different texts")
    return max(
        abs(value - other[text][name])
        for text in both
        for name, value in one[text].items()
        if name.startswith("prob_")
    )


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True, help="one text per line")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--preset", default="small", choices=sorted(PRESETS))
    parser.add_argument("--tokens", type=int, default=30_522)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return run_server(arguments.serve, arguments.folder, arguments.threads)
    texts = read_sentences(arguments.texts)[:1000]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder, texts, arguments.preset, arguments.tokens)
        limits = (arguments.clients, arguments.seconds, arguments.threads)
        for _ in range(arguments.repeats):
            for variant in VARIANTS:
                runs[variant].append(measure(variant, folder, texts, *limits))
    answers = [run.pop("answers") for variant in VARIANTS for run in runs[variant]]
    difference = max(compare(answers[0], each) for each in answers)
    # Ours are rounded to six digits.
    require(difference <= TOLERANCE, f"the variants' probabilities differ by {difference}")
    results: dict[str, dict[str, Any]] = {
        variant: {key: statistics.median(run[key] for run in each) for key in each[0]}
        | {"repeats": each}
        for variant, each in runs.items()
    }
    device = Machine(threads=arguments.threads).name
    record = {
        "device": device,
        "commit": find_commit(),
        **{key: getattr(arguments, key) for key in ("clients", "seconds", "preset", "threads")},
        "texts": len(texts),
        "largest_difference": difference,
        "results": results,
    }
    headers = ["service", "requests/s", "median, ms", "99th percentile, ms", "of one at a time"]
    base = results["ours, one"]["requests_per_second"]
    rows = [
        [
            variant,
            f"{each['requests_per_second']:.0f}",
            f"{each['median_ms']:.0f}",
            f"{each['p99_ms']:.0f}",
            f"{each['requests_per_second'] / base:.2f}",
        ]
        for variant, each in results.items()
    ]
    text = (
        f"{device}, float32, preset {arguments.preset}, {arguments.clients} clients on the same "
        f"machine, medians of {arguments.repeats} x {arguments.seconds:g} s, commit "
        f"{record['commit']}. The probabilities of all variants agree to {difference:.0e}.\n\n"
        + to_markdown(Table(headers, rows))
    )
    if arguments.out:
        write_json(arguments.out, record)
        write_text(arguments.out.with_suffix(".md"), text + "\n")
    print(text)


if __name__ == "__main__":
    main()
