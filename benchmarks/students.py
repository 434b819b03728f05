"""Teachers, text without labels, and a smaller vocabulary, on SciCite (three kinds of citation).

    python -m benchmarks.students english-tiny SCICITE --runs RUNS --out results/students.json

Each row is fine-tuned with three seeds and scored on dev. What is complete in RUNS is kept. The
teachers of a row are all seeds of another. FEW labels are the same in each row that has them, and
"text" is all of train, without its labels.
"""

import argparse
import math
from pathlib import Path

from electra.checkpoints.folder import read_sizes
from electra.checkpoints.manifest import find_commit
from electra.cli import main as electra
from electra.files import read_object, write_json, write_text
from electra.reports.rendering import Table, to_markdown

FEW = 200
SETTINGS = "own.name=scicite", "threads=1", "reseeds=0", "score_epochs=last"
LESS = f"train_examples={FEW}", "epochs=20"
T_97 = 4.303
"""97.5% point of Student's t with 2 degrees of freedom: three seeds."""


def run(start: Path, data: Path, runs: Path) -> dict[str, Path]:
    """Fine-tune what is missing, and return the folder of each row."""
    text = sorted(data.glob("train.*"))[0]
    smaller = runs / "smaller"
    if not smaller.exists():
        words = ("--keep-vocabulary", text, *sorted(data.glob("dev.*")), "--out", smaller)
        call("import", start, *words)
    full, few = runs / "full", runs / "few"
    rows: dict[str, tuple[Path, Path, tuple[object, ...]]] = {
        "all labels": (full, start, ()),
        "all labels, smaller vocabulary": (runs / "kept", smaller, ()),
        "a teacher's answers to train": (runs / "taught", start, (f"teacher.folders={full}",)),
        f"{FEW} labels": (few, start, LESS),
        f"a teacher of {FEW} labels, the same texts": (
            *(runs / "few-taught", start),
            (*LESS, f"teacher.folders={few}"),
        ),
        f"a teacher of {FEW} labels, and text": (
            *(runs / "few-text", start),
            (LESS[0], "epochs=3", f"teacher.folders={few}", f"teacher.text={text}"),
        ),
    }
    for out, begin, settings in rows.values():
        if not out.exists():
            given = ("--seeds", 3, "--set", *SETTINGS, *settings, "--out", out)
            call("finetune", begin, "--task", "own", "--data", data, *given)
    return {name: out for name, (out, *_) in rows.items()}


def call(*words: object) -> None:
    """Run a command of electra."""
    electra([str(word) for word in words])


def describe(folder: Path) -> dict[str, float]:
    """Return the mean accuracy of the seeds with its 95% interval, and the macro F1."""
    results = read_object(folder / "results.json")
    scores = [each["scores"] for each in results["seeds"].values()]
    return {
        "accuracy": results["mean"],
        "interval": T_97 * results["std"] / math.sqrt(len(scores)),
        "f1": sum(each["f1"] for each in scores) / len(scores),
        "ensemble": results["ensemble"]["accuracy"],
        "train_seconds": results["train_seconds"] / len(scores),
    }


def main() -> None:
    """Write the results and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("start", type=Path)
    parser.add_argument("data", type=Path, help="the folder of SciCite")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the .json file to write")
    given = parser.parse_args()
    rows = {name: describe(out) for name, out in run(given.start, given.data, given.runs).items()}
    sizes = {name: read_sizes(given.runs / name).vocab_size for name in ("full", "kept")}
    facts = {"seeds": 3, "vocabulary": sizes, "commit": find_commit(), "rows": rows}
    write_json(given.out, facts)
    cells = [
        [name, f"{row['accuracy']:.3f} ± {row['interval']:.3f}", f"{row['f1']:.3f}"]
        + [f"{row['ensemble']:.3f}", f"{row['train_seconds']:.0f}"]
        for name, row in rows.items()
    ]
    head = ["learns", "accuracy", "macro F1", "its ensemble", "seconds a seed"]
    begin = "`python -m benchmarks.students`: SciCite, dev, three seeds, 95% intervals."
    write_text(given.out.with_suffix(".md"), f"{begin}\n\n{to_markdown(Table(head, cells))}\n")


if __name__ == "__main__":
    main()
