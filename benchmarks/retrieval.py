"""Titles to abstracts: queries that training did not have, searched in arXiv's abstracts.

    python -m benchmarks.retrieval english-tiny ABSTRACTS --runs FOLDER --out results/retrieval

ABSTRACTS is a table of JSON lines with `id`, `title` and `text`. By a hash of the id the first
titles are test, then dev, then train, each the query of its abstract. english-tiny read the
abstracts in its pre-training, those of test among them, and no title of theirs as a query. Nothing
is chosen on test; dev is scored over its own abstracts.

Each row of the table is fine-tuned with its seeds, which search the titles of test in the first
PART abstracts; one seed of the row LAST also searches all of them. BM25 searches the same titles in
the same abstracts; in abstracts that are cut as the rows are; and by those words of a title alone
that more than RARE abstracts have. Finished work is not repeated.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from electra.assignments import override
from electra.checkpoints.bundled import find_model
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model, read_sizes
from electra.checkpoints.manifest import find_commit
from electra.files import make_folder, read_object, write_json, write_text
from electra.finetuning.loop import finetune, ignore
from electra.inference.mining import mine
from electra.inference.search import load_searcher, open_index, search
from electra.presets import finetune_preset
from electra.reports.rendering import Table, to_markdown
from electra.tasks.retrieval import METRICS, rank_by_bm25, score_ranks, split_terms
from electra.text.passages import write_pairs
from electra.text.table_files import read_table
from electra.training.machine import prepare_machine

HELD_OUT = {"test": 2000, "dev": 500}
NUM_TRAIN = {"pairs": 6_400, "more-pairs": 25_600, "all-pairs": None}
PART = 10_000
RARE = 100
SETTINGS = (
    *("batch_size=64", "learning_rate=2e-3", "dropout_prob=0", "pooling=mean"),
    *("reseeds=0", "score_epochs=last", "precision=float32", "threads=1", "device=cpu"),
)
FOUND = 100
"""Passages that are asked for: what recall@100 looks at."""


class Variant(NamedTuple):
    """A row of the table."""

    data: str
    """pairs, more-pairs, all-pairs: titles and abstracts. mined-pairs: pairs with a negative each,
    which the row MINER found. neighbour-pairs: passages of abstracts, without titles."""
    settings: tuple[str, ...]
    seeds: int = 3
    epochs: int = 1
    start: str = ""
    """The row with whose best seed on dev it begins; empty: the encoder."""


VARIANTS = {
    "128": Variant("pairs", ("sequence_length=128",)),
    "four times the pairs": Variant("more-pairs", ("sequence_length=128",), 1),
    "mined": Variant("mined-pairs", ("sequence_length=128",)),
    "neighbours": Variant("neighbour-pairs", ("sequence_length=64", "train_examples=12800"), 1),
    "then": Variant("pairs", ("sequence_length=128",), start="neighbours"),
    "all pairs, twice": Variant("all-pairs", ("sequence_length=128",), 1, epochs=2),
}
BM25 = (
    *(("part", "whole", ""), ("all", "whole", ", all")),
    *(("part", "128", ", 128 tokens of each abstract"), ("part", "256", ", 256 tokens")),
    ("part", "frequent", ", without rare words"),
)
MINER, LAST = "128", "all pairs, twice"
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


def write_data(abstracts: Path, runs: Path) -> None:
    """Write the tables of the tasks, of the queries of test, and of both corpora."""
    rows = read_table(abstracts).rows
    rows.sort(key=lambda row: hashlib.sha256(row["id"].encode()).hexdigest())
    pairs = [{"query": row["title"], "positive": row["text"]} for row in rows]
    first, begin = HELD_OUT["test"], sum(HELD_OUT.values())
    write_rows(runs / "test" / "test.jsonl", pairs[:first])
    for name, size in NUM_TRAIN.items():
        write_rows(runs / name / "dev.jsonl", pairs[first:begin])
        write_rows(runs / name / "train.jsonl", pairs[begin:][:size])
    texts = runs / "texts.jsonl"  # without those of test and dev
    write_rows(texts, [{"text": row["text"]} for row in rows[begin:]])
    write_pairs(runs / "neighbour-pairs" / "train.jsonl", [str(texts)], 200)
    dev = runs.resolve() / "pairs" / "dev.jsonl"
    (runs / "neighbour-pairs" / "dev.jsonl").symlink_to(dev)
    for name, size in (("all", len(rows)), ("part", PART)):
        corpus = [{"id": row["id"], "text": row["text"]} for row in rows[:size]]
        write_rows(runs / f"{name}.jsonl", corpus)


def tune(start: Path, runs: Path, name: str) -> Path:
    """Return the folder of a row's fine-tuning."""
    variant, out = VARIANTS[name], runs / name
    if out.exists():
        return out
    if variant.data == "mined-pairs" and not (runs / "mined-pairs").exists():
        found = read_finetuned(runs / MINER)
        mine(load_searcher(found), found, runs / "pairs", runs / "mined-pairs", count=1)
    begin = runs / variant.start if variant.start else start
    data = runs / variant.data
    config = override(
        finetune_preset(read_sizes(begin)),
        (*SETTINGS, f"epochs={variant.epochs}", *variant.settings),
    )
    finetune(begin, "retrieval", data, out, config, seeds=variant.seeds, progress=ignore)
    return out


def ask_model(runs: Path, name: str, seed: int, corpus: str) -> dict[str, Any]:
    """Return the scores of a seed on test, with the times and the memory of index and search."""
    folder, path = runs / f"index-{name}-{seed}-{corpus}", runs / f"{name}-{seed}-{corpus}.json"
    if path.exists():
        return read_object(path)
    places = map(str, (runs / name, seed, runs / f"{corpus}.jsonl", folder))
    words = [sys.executable, "-c", INDEX, *places]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    wall, cpu, peak = map(float, done.stdout.split())
    searcher = load_searcher(read_finetuned(runs / name, seed))
    index, (queries, own) = open_index(folder, searcher), read_queries(runs)
    began = time.perf_counter(), time.process_time()
    found, _ = search(searcher, index, queries, FOUND)
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    ranks = []
    for hits, right in zip(found, own, strict=True):
        texts = [hit.text for hit in hits]
        ranks.append(texts.index(right) + 1 if right in texts else len(index.places))
    facts = {"index_seconds": wall, "index_cpu_seconds": cpu, "index_bytes": peak}
    facts |= {"search_seconds": took[0], "search_cpu_seconds": took[1]}
    facts |= {"num_passages": len(index.places), "num_cut": index.facts["num_cut"]}
    scores = score_ranks(range(len(own)), ranks)
    write_json(path, {"seed": seed, **scores, **facts, **split_ranks(runs, ranks)})
    return read_object(path)


def split_ranks(runs: Path, ranks: Sequence[int]) -> dict[str, Any]:
    """Return nDCG@10 of the half of the titles whose rarest word is rarer, and of the other."""
    counts = count_words(runs)
    rarest = [min(map(counts.__getitem__, split_terms(each))) for each in read_queries(runs)[0]]
    order = sorted(range(len(ranks)), key=rarest.__getitem__)
    half = len(order) // 2
    parts = {"rarer": order[:half], "commoner": order[half:]}
    return {
        f"ndcg@10 {name}": score_ranks(range(len(part)), [ranks[n] for n in part])["ndcg@10"]
        for name, part in parts.items()
    } | {"rarest": rarest[order[half]]}


@cache
def count_words(runs: Path) -> Counter[str]:
    """Return in how many abstracts each word is."""
    texts = read_table(runs / "all.jsonl").column("text")
    return Counter(word for text in texts for word in {*split_terms(text)})


@cache
def read_queries(runs: Path) -> tuple[list[str], list[str]]:
    """Return the titles of test, and their abstracts."""
    table = read_table(runs / "test" / "test.jsonl")
    return table.column("query"), table.column("positive")


def ask_bm25(runs: Path, start: Path, corpus: str, way: str) -> dict[str, Any]:
    """Return the scores of BM25 on test, and its time for index and search together.

    The way is whole, the number of tokens of a row, or frequent, for which titles have no rare
    words.
    """
    path = runs / f"bm25-{corpus}-{way}.json"
    if path.exists():
        return read_object(path)
    texts = read_table(runs / f"{corpus}.jsonl").column("text")
    queries, own = read_queries(runs)
    if way == "frequent":
        counts = count_words(runs)
        queries = [" ".join(w for w in split_terms(each) if counts[w] > RARE) for each in queries]
    elif way != "whole":
        cut = make_cutter(start, int(way))
        texts, own = list(map(cut, texts)), list(map(cut, own))
    began = time.perf_counter(), time.process_time()
    ranks = rank_by_bm25(tuple(queries), tuple(own), tuple(texts))
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    facts = {"seconds": took[0], "cpu_seconds": took[1], "num_passages": len(texts)}
    write_json(path, score_ranks(range(len(own)), ranks) | facts | split_ranks(runs, ranks))
    return read_object(path)


def make_cutter(start: Path, length: int) -> Callable[[str], str]:
    """Return a function that cuts a text to a row's tokens."""
    tokenizer = read_model(start).tokenizer

    def cut(text: str) -> str:
        _, places = tokenizer.encode_with_offsets(text)
        return text[: places[: length - 2][-1][1]]

    return cut


def tabulate(searches: dict[str, list[dict[str, Any]]]) -> Table:
    """Return the scores of each search, of several seeds mean and standard deviation.

    Its costs are those of the first seed: seconds of a core for the index and for all queries, of
    BM25 for both, and the memory of the process that makes the index.
    """
    names = (*METRICS, "ndcg@10 rarer", "ndcg@10 commoner")
    rows = []
    for name, records in searches.items():
        cells = [name, f"{records[0]['num_passages']:,}", str(len(records))]
        for metric in names:
            values = [each[metric] for each in records]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        rows.append([*cells, *_list_costs(records[0])])
    costs = ("index, s", "queries, s", "memory, MB")
    return Table(["search", "abstracts", "seeds", *names, *costs], rows)


def _list_costs(record: dict[str, Any]) -> list[str]:
    if "cpu_seconds" in record:
        return ["", f"{record['cpu_seconds']:.1f}", ""]
    seconds = (f"{record[f'{name}_cpu_seconds']:.1f}" for name in ("index", "search"))
    return [*seconds, f"{record['index_bytes'] / 1e6:,.0f}"]


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("start", type=Path, help="the encoder")
    parser.add_argument("abstracts", type=Path, help="the table of abstracts")
    parser.add_argument("--runs", type=Path, help="folder of the fine-tunings; they continue there")
    parser.add_argument("--out", type=Path, help="the folder of the results")
    options = parser.parse_args()
    runs, start = options.runs, find_model(options.start)
    if not (runs / "all.jsonl").exists():
        write_data(options.abstracts, runs)
    searches = {f"BM25{words}": [ask_bm25(runs, start, *how)] for *how, words in BM25}
    tunings: dict[str, Any] = {}
    write_results(options.out, options.start.name, searches, tunings)
    for name, variant in VARIANTS.items():
        tuned = read_object(tune(start, runs, name) / "results.json")
        kept = ("config", "num_examples", "train_seconds", "commit", "device", "mean", "notes")
        tunings[name] = {key: tuned[key] for key in kept}
        for corpus in ("part", "all") if name == LAST else ("part",):
            seeds = range(variant.seeds if corpus == "part" else 1)
            searches[f"{name}, {corpus}"] = [ask_model(runs, name, n, corpus) for n in seeds]
        write_results(options.out, options.start.name, searches, tunings)


def write_results(
    out: Path, start: str, searches: dict[str, list[dict[str, Any]]], tunings: dict[str, Any]
) -> None:
    """Write what is there: each row takes minutes."""
    results = {
        "start": start,
        "num_queries": HELD_OUT["test"],
        "searches": searches,
        "tunings": tunings,
        "device": prepare_machine("cpu", "float32", 1).name,
        "commit": find_commit(),
    }
    make_folder(out)
    write_json(out / "results.json", results)
    head = f"`python -m benchmarks.retrieval`: {HELD_OUT['test']:,} titles of test."
    write_text(out / "README.md", f"{head}\n\n{to_markdown(tabulate(searches))}\n")


if __name__ == "__main__":
    main()
