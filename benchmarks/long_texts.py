"""Long texts: the first category of arXiv's abstracts, from cut texts and from windows.

    python -m benchmarks.long_texts english-tiny ABSTRACTS --runs FOLDER --out long-texts.json

ABSTRACTS is the table of `benchmarks.labels`. A text is a title and its abstract; its label is its
first category, if 1,000 texts have it. By a hash of the id the first texts are train, dev and test.
Each way to read them is fine-tuned with the same seeds. All are scored on test, which no setting
was chosen on.
"""

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.labels import read_abstracts, write_rows
from electra.assignments import override
from electra.checkpoints.bundled import find_model
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.results_files import read_results
from electra.files import write_json, write_text
from electra.finetuning.loop import finetune, ignore
from electra.presets import finetune_preset
from electra.reports.rendering import Table, to_markdown
from electra.tasks.registry import read_task

METRICS = ("accuracy", "macro_f1")
SIZES = {"train": 500, "dev": 250, "test": 500}
SETTINGS = (
    *("epochs=3", "batch_size=8", "learning_rate=1e-3", "pooling=mean"),
    *("reseeds=0", "score_epochs=last"),
)
WAYS = {"cut": ("sequence_length=64",), "windows": ("sequence_length=64", "max_windows=8")}


def write_task(folder: Path, abstracts: Path) -> None:
    """Write the splits of the texts whose first category is a label that train has."""
    rows, _ = read_abstracts(abstracts)
    begin, known = 0, set[str]()
    for split, size in SIZES.items():
        part = [row for row in rows[begin : begin + size] if row["label"]]
        lines = [{"text": row["text"], "label": row["label"][0]} for row in part]
        known = known or {line["label"] for line in lines}  # of train
        write_rows(folder / f"{split}.jsonl", [line for line in lines if line["label"] in known])
        begin += size


def describe(folder: Path) -> dict[str, Any]:
    """Return what a fine-tuning read and said: the scores on test, and the join of each seed."""
    results = read_results(folder, "metric")
    seeds = results["seeds"]
    windows = [read_finetuned(folder, int(seed)).facts.get("windows", {}) for seed in seeds]
    return {
        "num_cut": results["num_cut"],
        "test": [seed["other_scores"]["test"] for seed in seeds.values()],
        "joins": [each["join"] for each in windows if each],
        "commit": results["commit"],
    }


def tabulate(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row for each way to read the texts."""
    rows = []
    for name, each in found.items():
        cells = [[seed[metric] for seed in each["test"]] for metric in METRICS]
        spread = (f"{statistics.mean(c):.3f} ± {statistics.stdev(c):.3f}" for c in cells)
        told = f"{name} ({', '.join(WAYS[name])})"
        rows.append([told, f"{each['num_cut']['test']:,}", ", ".join(each["joins"]), *spread])
    return to_markdown(Table(["texts", "cut in test", "joined by", *METRICS], rows))


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("start", type=Path, help="the encoder: a run, or a checkpoint")
    parser.add_argument("abstracts", type=Path, help="the table of abstracts")
    parser.add_argument("--runs", type=Path, help="folder of the fine-tunings; they continue there")
    parser.add_argument("--out", type=Path, help="the .json file to write")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data, start = options.runs / "data", find_model(options.start)
    if not data.exists():
        write_task(data, options.abstracts)
    preset = finetune_preset(read_model(start).encoder)
    found = {}
    for name, settings in WAYS.items():
        config = override(preset, (*SETTINGS, *settings, "threads=1", "device=cpu"))
        folder = options.runs / name
        if not folder.exists():
            finetune(start, "own", data, folder, config, seeds=options.seeds, progress=ignore)
        found[name] = describe(folder)
    task = read_task("own", data, config)
    labels, num_test = task.family.facts()["labels"], len(task.examples["test"])
    facts = {
        "start": options.start.name,
        "settings": list(SETTINGS),
        "ways": WAYS,
        "labels": labels,
        "num_test": num_test,
        "device": "1 thread",
        "commit": find_commit(),
        "scores": found,
    }
    write_json(options.out, facts)
    told = f"{len(labels)} first categories, {num_test:,} texts of test, {options.seeds} seeds"
    head = f"`python -m benchmarks.long_texts`: {told}."
    write_text(options.out.with_suffix(".md"), f"{head}\n\n{tabulate(found)}\n")


if __name__ == "__main__":
    main()
