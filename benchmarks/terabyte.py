"""A run that reads a terabyte through a cache of 2 GB: a server makes a shard from its number.

    python -m benchmarks.terabyte SHARDS --steps 10000 --out results/terabyte.json

The server has no files: the tokens of a shard are those of a bank of texts, read from a place that
the number of the shard gives. SHARDS gives texts and tokenizer. The manifest lists all shards; the
sha256 is right only for those that the run can ask for, because hashing a terabyte takes
an hour. The held-out part is that of SHARDS. What is recorded: bytes and requests of the server,
the time before the first step, the time that steps waited for rows, and the memory of the run.
"""

import argparse
import hashlib
import http.server
import json
import multiprocessing
import os
import resource
import tempfile
import time
import urllib.request
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from electra.checkpoints.manifest import find_commit
from electra.files import parse_size, read_object, sha256_facts, write_json
from electra.pretraining.loop import pretrain
from electra.pretraining.resolution import resolve
from electra.shards.config import ExamplesConfig
from electra.shards.examples import Examples
from electra.shards.layout import COLUMNS, shard_name
from electra.shards.store import Shard, open_shards
from electra.shards.writing import describe_part
from electra.training.machine import Machine

DOCUMENT = 1024
"""Tokens of a document, which is a line."""


class Server(http.server.ThreadingHTTPServer):
    """The shards; a file is made when it is asked for."""

    daemon_threads = True

    def __init__(self, source: Path, manifest: dict[str, Any], bank: np.ndarray, size: int):
        super().__init__(("127.0.0.1", 0), Handler)
        self.source, self.bank, self.size = source, bank, size
        self.manifest = json.dumps(manifest).encode()
        self.counts = {"requests": 0, "bytes": 0}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for a file, or for a range of it."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Send a file of a shard, or of the folder that the shards come from."""
        name = self.path.lstrip("/")
        if name.startswith("train-"):
            stem, _, column = name.partition(".")
            content = make_column(self.server.bank, int(stem[6:]), column, self.server.size)
            self.server.counts["requests"] += 1
            self.server.counts["bytes"] += len(content)
        elif name == "counts":
            content = json.dumps(self.server.counts).encode()
        elif name == "manifest.json":
            content = self.server.manifest
        elif (self.server.source / name).is_file():
            content = (self.server.source / name).read_bytes()
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def make_column(bank: np.ndarray, number: int, column: str, size: int) -> bytes:
    """Return the bytes of a file of a shard."""
    if column != "tokens":
        return np.arange(0, size, DOCUMENT, dtype="<u4").tobytes()
    begin = number * 7919 % len(bank)
    found = np.resize(np.roll(bank, -begin), size)
    found[::DOCUMENT] = bank[(number * 31 + np.arange(len(found[::DOCUMENT]))) % len(bank)]
    return found.astype("<u2").tobytes()


def describe(source: Path, number: int, size: int, wanted: set[int], bank: np.ndarray) -> Any:
    """Return the manifest of the terabyte, with the hashes of the wanted shards."""

    @lru_cache(maxsize=1)
    def of_borders() -> str:
        return hashlib.sha256(make_column(bank, 0, "lines", size)).hexdigest()

    def entry(shard: int) -> dict[str, Any]:
        tokens = f"{shard:064x}"
        if shard in wanted:
            tokens = hashlib.sha256(make_column(bank, shard, "tokens", size)).hexdigest()
        return {
            "name": shard_name("train", shard),
            **{f"num_{column}": -(-size // DOCUMENT) for column in COLUMNS},
            "num_tokens": size,
            "sha256": {"tokens": tokens, "lines": of_borders(), "documents": of_borders()},
        }

    manifest = read_object(source / "manifest.json")
    manifest.pop("sha256", None)
    manifest["parts"]["train"] = describe_part([entry(shard) for shard in range(number)])
    return {**manifest, "sha256": {"manifest.json": sha256_facts(manifest)}}


def serve(ports: Any, source: Path, number: int, size: int, wanted: set[int]) -> None:
    """Serve in a process of its own, whose memory is not that of the run."""
    bank = np.concatenate([np.asarray(shard.tokens) for shard in open_shards(source).train])
    with Server(source, describe(source, number, size, wanted, bank), bank, size) as server:
        ports.put(server.server_port)
        server.serve_forever()


def main() -> None:
    """Serve, train, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ahead", type=int, default=320, help="shards with a right sha256")
    parser.add_argument("--number", type=int, default=120_000)
    parser.add_argument("--tokens", type=int, default=1 << 22, help="of a shard")
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--cache", default="2GB")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shards = open_shards(arguments.shards)
    words = f"""train.steps={arguments.steps} train.threads=1 train.log_every=10
    train.save_every=1000 train.evaluate_rows=0 train.check_memory=false train.batch_size=16
    examples.order=window examples.window={arguments.window}"""
    config = resolve("modern-tiny", None, words.split())
    order = Examples(
        [Shard(arguments.tokens, Path("x"), {}, "<u2") for _ in range(arguments.number)],
        shards.tokenizer,
        ExamplesConfig(order="window", window=arguments.window),
        config.train.seed,
    ).forecast()
    halves = order.streams[0][0].epoch(0).halves
    wanted = {n for half in halves[: 2 * arguments.ahead // arguments.window] for n in half}
    total = arguments.number * (2 * arguments.tokens)
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    given = ports, arguments.shards, arguments.number, arguments.tokens, wanted
    process = context.Process(target=serve, args=given, daemon=True)
    process.start()
    url = f"http://127.0.0.1:{ports.get()}"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        records: list[dict[str, Any]] = []
        began, first = time.perf_counter(), []

        def show(record: dict[str, Any]) -> None:
            if record["part"] == "train":
                first.append(time.perf_counter() - began)
                records.append(record)

        size = parse_size(arguments.cache)
        pretrain(Path(url), Path(folder) / "run", config, show, cache=size)
        with urllib.request.urlopen(f"{url}/counts") as answer:
            counts = json.loads(answer.read())
        record = {
            "device": Machine().name,
            "commit": find_commit(),
            "corpus_bytes": total,
            "cache_bytes": size,
            "shards": arguments.number,
            "steps": arguments.steps,
            "seconds": time.perf_counter() - began,
            "seconds_to_step_10": first[0],
            "waited_seconds": [each["data_seconds"] for each in records],
            **counts,
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    write_json(arguments.out, record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
