"""Does a continued pre-training on a domain's text pay, where labels are few?

    python -m benchmarks.domain ABSTRACTS OLD SCIENTIFIC --general RUN RUN --runs RUNS --out OUT

RUN are pre-trainings on OLD, a folder of shards with general text. Each is continued on ABSTRACTS,
a file of text, and, to separate the domain from the further steps, for as many steps on OLD. All
three are fine-tuned with few labels of SCIENTIFIC's tasks, with three seeds, and scored on dev.
What is complete in RUNS is kept.
"""

import argparse
import math
import statistics
from pathlib import Path

from electra.checkpoints.manifest import find_commit
from electra.cli import main as electra
from electra.files import read_object, write_json, write_text
from electra.reports.rendering import Table, to_markdown

STEPS = 2000
PRETRAIN = f"train.steps={STEPS}", "train.batch_size=16", "train.threads=1"
FINETUNE = "threads=1", "reseeds=0", "score_epochs=last", "learning_rate=1e-3", "dropout_prob=0"
TASKS: dict[str, tuple[str, ...]] = {
    "scicite": ("own.name=scicite", "train_examples=200", "epochs=20", "pooling=mean"),
    "acl-arc": ("own.name=acl-arc", "own.metric=macro_f1", "train_examples=500", "epochs=10",
                "pooling=mean"),
    "sciie": ("train_examples=300", "epochs=20"),
}  # fmt: skip
"""Settings of each task, whose few labels are the same in all rows."""
SEEDS = 3


def call(*words: object) -> None:
    """Run a command of electra, if its last word, the folder to write, is not there."""
    if not Path(str(words[-1])).exists():
        electra([str(word) for word in words])


def tune(start: Path, scientific: Path, out: Path) -> dict[str, list[float]]:
    """Return the headline score of each seed on each task."""
    scores = {}
    for task, settings in TASKS.items():
        kind = "tagging" if task == "sciie" else "own"
        given = ("--task", kind, "--data", scientific / task, "--seeds", SEEDS)
        call("finetune", start, *given, "--set", *FINETUNE, *settings, "--out", out / task)
        results = read_object(out / task / "results.json")
        scores[task] = [each["scores"][results["metric"]] for each in results["seeds"].values()]
    return scores


def compare(rows: dict[str, list[dict[str, list[float]]]], task: str) -> dict[str, float]:
    """Return how much better the continued encoders are than those trained longer on old text.

    The 95% interval is over the pairs of fine-tunings with the same seed: it does not hold for
    other pre-trainings than these.
    """
    pairs = zip(rows["continued"], rows["longer"], strict=True)
    gains = [[a - b for a, b in zip(new[task], old[task], strict=True)] for new, old in pairs]
    flat = [gain for each in gains for gain in each]
    half = statistics.stdev(flat) / math.sqrt(len(flat))
    return {"gain": statistics.mean(flat), "half_width": T_95[len(flat) - 1] * half}


T_95 = {2: 4.303, 5: 2.571, 8: 2.306}
"""97.5% points of Student's t by degrees of freedom."""


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("abstracts", type=Path)
    parser.add_argument("old", type=Path, help="the shards of the general text")
    parser.add_argument("scientific", type=Path, help="the folder of the tasks' folders")
    parser.add_argument("--general", type=Path, nargs="+", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    options = parser.parse_args()
    runs, new = options.runs, options.runs / "abstracts"
    tokenizer = options.general[0] / "tokenizer"
    call("prepare", options.abstracts, "--tokenizer", tokenizer, "--out", new)
    rows: dict[str, list[dict[str, list[float]]]] = {"general": [], "longer": [], "continued": []}
    losses = []
    for number, general in enumerate(options.general):
        starts = {"general": general}
        for name, shards in (("longer", options.old), ("continued", new)):
            starts[name] = runs / f"{name}-{number}"
            also = options.old if name == "continued" else new
            how = ("--init-from", general, "--also-evaluate", also, "--preset", "modern-tiny")
            call("pretrain", shards, *how, "--set", *PRETRAIN, f"train.seed={number}", "--out",
                 starts[name])  # fmt: skip
            kept = read_object(starts[name] / "results.json")
            ends = {"before": kept["before"], "end": kept["heldout"]}
            losses.append({"run": f"{name}-{number}", **ends})
        for name, start in starts.items():
            rows[name].append(tune(start, options.scientific, runs / f"{name}-{number}-tuned"))
    results = {
        "general": [read_object(each / "results.json")["tokens"] for each in options.general],
        "steps": STEPS,
        "scores": rows,
        "comparisons": {task: compare(rows, task) for task in TASKS},
        "losses": losses,
        "commit": find_commit(),
    }
    write_json(options.out, results)
    cells = []
    for name, found in rows.items():
        flat = {task: [s for each in found for s in each[task]] for task in TASKS}
        means = (f"{statistics.mean(v):.3f} ± {statistics.stdev(v):.3f}" for v in flat.values())
        cells.append([name, *means])
    table = to_markdown(Table(["encoder", *TASKS], cells))
    write_text(options.out.with_suffix(".md"), f"`python -m benchmarks.domain`.\n\n{table}\n")


if __name__ == "__main__":
    main()
