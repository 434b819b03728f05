"""Several labels a text: the categories of arXiv's abstracts, beside a head for one label.

    electra tokenizer rest.jsonl --out vocabulary --set vocab_size=8192
    electra prepare rest.jsonl --tokenizer vocabulary --out shards
    electra pretrain shards --preset tiny --out run --set train.steps=2500
    python -m benchmarks.labels run ABSTRACTS --runs FOLDER --out results/labels.json

The run of the results was stopped at step 824. ABSTRACTS is a table of JSON lines with `id`,
`title`, `text` and `categories`. By a hash of the id the first texts are train, dev and test;
`--rest rest.jsonl` writes the others and trains nothing. A text is a title and its abstract; its
labels are the categories that COUNT texts have.

Each head is fine-tuned with three seeds on the same texts. The head for one label learns the first
category. It answers with the likeliest one, or, as the head for several does, with all whose
probability is above a threshold that dev chose for each. The guess gives all texts the labels that
fit train best. All are scored on test.
"""

import argparse
import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra.assignments import override
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model
from electra.checkpoints.manifest import find_commit
from electra.files import write_json, write_text
from electra.finetuning.loop import finetune, ignore
from electra.inference.predict import load_model
from electra.presets import finetune_preset
from electra.reports.rendering import Table, to_markdown
from electra.settings import to_dict
from electra.tasks.config import FinetuneConfig
from electra.tasks.multi_label import choose_thresholds, score_sets
from electra.tasks.registry import read_task
from electra.text.table_files import read_table

CATEGORY = re.compile(r"[a-z-]+(\.[A-Za-z-]{2,})?")
"""A category of arXiv's; the codes of other classifications are left out."""
COUNT = 1000
"""Texts that a category must have."""
SIZES = {"train": 1000, "dev": 500, "test": 1000}
METRICS = ("micro_f1", "macro_f1")
SETTINGS = ("epochs=5", "learning_rate=1e-3", "pooling=mean", "reseeds=0", "score_epochs=last")


def read_abstracts(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the texts in the order of the hashes of their ids, each once, and the categories."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_table(path).rows:
        text = f"{row['title']}. {row['text']}"
        names = list(filter(CATEGORY.fullmatch, row["categories"]))
        digest = hashlib.sha256(row["id"].encode()).hexdigest()
        found.setdefault(text, {"digest": digest, "text": text, "label": names})
    counts = Counter(name for row in found.values() for name in row["label"])
    kept = sorted(name for name, count in counts.items() if count >= COUNT)
    rows = sorted(found.values(), key=lambda row: str(row["digest"]))
    return [{**row, "label": [n for n in row["label"] if n in kept]} for row in rows], kept


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_tasks(folder: Path, splits: dict[str, list[dict[str, Any]]]) -> None:
    """Write the task of several labels, and that of the first one where train knows it."""
    known = {row["label"][0] for row in splits["train"] if row["label"]}
    for split, rows in splits.items():
        sets = [{"text": row["text"], "label": row["label"]} for row in rows]
        write_rows(folder / "sets" / f"{split}.jsonl", sets)
        if split != "test":
            firsts = [{**row, "label": row["label"][0]} for row in sets if row["label"]]
            firsts = [row for row in firsts if row["label"] in known]
            write_rows(folder / "first" / f"{split}.jsonl", firsts)


def ask(folder: Path, seed: int, texts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Return the probability of each label for each text, (N, C); 0 of labels it does not know."""
    answers = load_model(read_finetuned(folder, seed)).answer([{"text": each} for each in texts])
    return np.array([[each.get(f"prob_{n}", 0.0) for n in labels] for each in answers.records])


def compare(
    runs: Path, splits: dict[str, list[dict[str, Any]]], labels: Sequence[str], seeds: int
) -> dict[str, list[dict[str, float]]]:
    """Return the scores on test of each way to answer, a record for each seed."""
    gold = {
        split: np.array([[name in row["label"] for name in labels] for row in rows])
        for split, rows in splits.items()
    }
    found: dict[str, list[dict[str, float]]] = {}

    def add(name: str, said: np.ndarray) -> None:
        found.setdefault(name, []).append(score_sets(METRICS, gold["test"], said))

    sets = read_task("own", runs / "data" / "sets", override(FinetuneConfig(), KIND))
    rows = sets.encode(read_finetuned(runs / "sets", 0).tokenizer, 8)
    found["the same labels for all texts"] = [
        sets.family.find_constant(rows["train"], rows["test"]).scores
    ]
    for seed in range(seeds):
        for head in ("first", "sets"):
            texts = {split: [row["text"] for row in splits[split]] for split in ("dev", "test")}
            dev, test = (ask(runs / head, seed, texts[split], labels) for split in texts)
            if head == "first":
                likeliest = test.argmax(axis=1)[:, None] == np.arange(len(labels))
                add("one label, the likeliest", likeliest)
            name = "one label, thresholds" if head == "first" else "several labels, thresholds"
            add(name, test >= choose_thresholds(gold["dev"], dev, METRICS[0]))
    return found


KIND = ("own.kind=multi_label",)


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("start", type=Path, help="the encoder: a run, or a checkpoint")
    parser.add_argument("abstracts", type=Path, help="the table of abstracts")
    parser.add_argument("--runs", type=Path, help="folder of the fine-tunings; they continue there")
    parser.add_argument("--out", type=Path, help="the .json file to write")
    parser.add_argument("--rest", type=Path, help="write the texts that no split has, and stop")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows, labels = read_abstracts(options.abstracts)
    splits, begin = {}, 0
    for split, size in SIZES.items():
        splits[split] = rows[begin : begin + size]
        begin += size
    if options.rest:
        return write_rows(options.rest, [{"text": row["text"]} for row in rows[begin:]])
    write_tasks(options.runs / "data", splits)
    preset = finetune_preset(read_model(options.start).encoder)
    for head, kind in (("sets", KIND), ("first", ())):
        config = override(preset, (*SETTINGS, *kind, "threads=1", "device=cpu"))
        if not (options.runs / head).exists():
            data = options.runs / "data" / head
            out = options.runs / head
            finetune(options.start, "own", data, out, config, seeds=options.seeds, progress=ignore)
    found = compare(options.runs, splits, labels, options.seeds)
    facts = {
        "start": Path(read_model(options.start).source).name,
        "settings": to_dict(preset) | dict(each.split("=") for each in SETTINGS),
        "sizes": SIZES,
        "labels": labels,
        "device": "1 thread",
        "commit": find_commit(),
        "scores": found,
    }
    write_json(options.out, facts)
    table = []
    for name, scores in found.items():
        cells = []
        for metric in METRICS:
            values = [each[metric] for each in scores]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}")
        table.append([name, *cells])
    head = f"`python -m benchmarks.labels`: {len(labels)} categories, {options.seeds} seeds, test."
    written = to_markdown(Table(["answers", *METRICS], table))
    write_text(options.out.with_suffix(".md"), f"{head}\n\n{written}\n")
    return None


if __name__ == "__main__":
    main()
