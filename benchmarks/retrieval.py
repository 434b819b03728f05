"""Titles to abstracts: queries that training did not have, searched in 75,000 abstracts.

    python -m benchmarks.retrieval english-tiny ABSTRACTS --runs FOLDER --out results/retrieval

ABSTRACTS is a table of JSON lines with `id`, `title` and `text`. By a hash of the id the first
titles are test, then dev, then train, each the query of its abstract. All abstracts are the corpus.
english-tiny read the abstracts in its pre-training, those of test among them, and no title of
theirs as a query. Nothing is chosen on test; dev is scored over its own abstracts.

Of each seed the command fine-tunes, indexes all abstracts, and searches the titles of test. BM25
searches the same titles. What is there is not done again.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra.assignments import override
from electra.checkpoints.bundled import find_model
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_sizes
from electra.checkpoints.manifest import find_commit
from electra.files import make_folder, read_object, write_json, write_text
from electra.finetuning.loop import finetune, ignore
from electra.inference.search import load_searcher, open_index, search
from electra.presets import finetune_preset
from electra.reports.rendering import Table, to_markdown
from electra.tasks.retrieval import METRICS, rank_by_bm25, score_ranks
from electra.text.table_files import read_table
from electra.training.machine import prepare_machine

HELD_OUT = {"test": 2000, "dev": 500}
SETTINGS = (
    *("batch_size=256", "learning_rate=2e-3", "dropout_prob=0", "pooling=mean"),
    *("sequence_length=64", "reseeds=0", "score_epochs=last", "precision=float32"),
    *("threads=1", "device=cpu"),
)
FOUND = 100
"""Passages that are asked for: what recall@100 looks at."""
INDEX = """
import sys, time
from pathlib import Path
from electra.checkpoints.finetuned import read_finetuned
from electra.inference.search import build_index, load_searcher
searcher = load_searcher(read_finetuned(Path(sys.argv[1]), int(sys.argv[2])))
began = time.perf_counter(), time.process_time()
build_index(searcher, Path(sys.argv[3]), Path(sys.argv[4]))
seconds = time.perf_counter() - began[0], time.process_time() - began[1]
print(*seconds, searcher.model.machine.peak_memory)
"""
"""In a process of its own, whose memory is that of the index; its wall time and its CPU's."""


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_data(abstracts: Path, runs: Path, num_train: int | None) -> None:
    """Write the tables of the task, of the queries of test, and of the corpus."""
    rows = read_table(abstracts).rows
    rows.sort(key=lambda row: hashlib.sha256(row["id"].encode()).hexdigest())
    write_rows(runs / "corpus.jsonl", [{"id": row["id"], "text": row["text"]} for row in rows])
    begin, end = 0, len(rows) if num_train is None else sum(HELD_OUT.values()) + num_train
    for split, size in {**HELD_OUT, "train": end}.items():
        part = rows[begin : min(end, begin + size)]
        pairs = [{"query": row["title"], "positive": row["text"]} for row in part]
        write_rows(runs / ("test" if split == "test" else "data") / f"{split}.jsonl", pairs)
        begin += size


def ask_model(runs: Path, seed: int, queries: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """Return the scores of a seed on test, with the times and the memory of index and search."""
    folder, times = runs / f"index-{seed}", runs / f"index-{seed}.json"
    if not folder.exists():
        places = map(str, (runs / "tuned", seed, runs / "corpus.jsonl", folder))
        words = ["-c", INDEX, *places]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        wall, cpu, peak = map(float, done.stdout.split())
        write_json(times, {"index_seconds": wall, "index_cpu_seconds": cpu, "index_bytes": peak})
    searcher = load_searcher(read_finetuned(runs / "tuned", seed))
    index = open_index(folder, searcher)
    began = time.perf_counter(), time.process_time()
    found = search(searcher, index, queries, FOUND)
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    ranks = []
    for hits, right in zip(found, own, strict=True):
        texts = [hit.text for hit in hits]
        ranks.append(texts.index(right) + 1 if right in texts else len(index.places))
    took = {"search_seconds": wall, "search_cpu_seconds": cpu, "num_cut": index.facts["num_cut"]}
    return score_ranks(range(len(own)), ranks) | read_object(times) | took


def ask_bm25(runs: Path, queries: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """Return the scores of BM25 on test, and its time for index and search together."""
    path = runs / "bm25.json"
    if path.exists():
        return read_object(path)
    texts = tuple(row["text"] for row in read_table(runs / "corpus.jsonl").rows)
    began = time.perf_counter(), time.process_time()
    ranks = rank_by_bm25(tuple(queries), tuple(own), texts)
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    found = score_ranks(range(len(own)), ranks) | {"seconds": wall, "cpu_seconds": cpu}
    write_json(path, found)
    return found


def tabulate(results: dict[str, Any]) -> Table:
    """Return the scores of both, of several seeds mean and standard deviation."""
    rows = []
    for name, records in (("BM25", [results["bm25"]]), ("vectors", results["seeds"])):
        cells = []
        for metric in METRICS:
            values = [each[metric] for each in records]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        rows.append([name, *cells])
    return Table(["search", *METRICS], rows)


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("start", type=Path, help="the encoder")
    parser.add_argument("abstracts", type=Path, help="the table of abstracts")
    parser.add_argument("--runs", type=Path, help="folder of the fine-tunings; they continue there")
    parser.add_argument("--out", type=Path, help="the folder of the results")
    parser.add_argument("--train", type=int, help="pairs to train on; if not given, all others")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    runs, start = options.runs, find_model(options.start)
    if not (runs / "corpus.jsonl").exists():
        write_data(options.abstracts, runs, options.train)
    settings = (*SETTINGS, f"epochs={options.epochs}")
    config = override(finetune_preset(read_sizes(start)), settings)
    if not (runs / "tuned").exists():
        how: Any = {"seeds": options.seeds, "progress": ignore}
        finetune(start, "retrieval", runs / "data", runs / "tuned", config, **how)
    test = read_table(runs / "test" / "test.jsonl")
    queries, own = test.column("query"), test.column("positive")
    machine = prepare_machine("cpu", "float32", 0)
    tuned = read_object(runs / "tuned" / "results.json")
    results = {
        "start": options.start.name,
        "settings": tuned["config"],
        "num_examples": tuned["num_examples"] | {"test": len(queries)},
        "bm25": ask_bm25(runs, queries, own),
        "seeds": [ask_model(runs, seed, queries, own) for seed in range(options.seeds)],
        "train_seconds": tuned["train_seconds"],
        "trained_at": tuned["commit"],
        "device": machine.name,
        "commit": find_commit(),
    }
    make_folder(options.out)
    write_json(options.out / "results.json", results)
    count = tuned["num_examples"]["train"]
    said = f"{len(queries):,} titles in all abstracts; trained on {count:,} pairs; seeds:"
    head = f"`python -m benchmarks.retrieval`: {said} {options.seeds}."
    write_text(options.out / "README.md", f"{head}\n\n{to_markdown(tabulate(results))}\n")


if __name__ == "__main__":
    main()
