"""What the GLUE server takes: a zip of the answers to its test sets, from fine-tuning folders.

Source: gluebenchmark.com, where a submission is a .tsv a test set, of `index` and `prediction`.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.config import UserError, require
from electra.files import read_object
from electra.tasks.glue import GLUE
from electra.tasks.predictions import Predictions, average, predictions_name, read_predictions

SUBMISSION_FILES = {
    "CoLA.tsv": ("cola", "test"),
    "SST-2.tsv": ("sst-2", "test"),
    "MRPC.tsv": ("mrpc", "test"),
    "STS-B.tsv": ("sts-b", "test"),
    "QQP.tsv": ("qqp", "test"),
    "MNLI-m.tsv": ("mnli", "test"),
    "MNLI-mm.tsv": ("mnli", "test_mismatched"),
    "QNLI.tsv": ("qnli", "test"),
    "RTE.tsv": ("rte", "test"),
    "WNLI.tsv": ("wnli", "test"),
    "AX.tsv": ("mnli", "diagnostic"),
}
"""Each file of a submission: the task and the split whose answers it holds."""
WNLI = "WNLI.tsv"
WNLI_MAJORITY, WNLI_ROWS = "0", 146
"""The commonest label of WNLI's train, 323 of 635, and the rows of its test set. Answering it is
hard to beat there, since dev and test contradict train."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""When every file of the zip was made, so that the same answers give the same zip."""


@dataclass(frozen=True)
class SubmissionFile:
    """One file of a submission."""

    name: str
    predictions: list[str]
    origin: str
    """The folder and seeds they come from."""


def submit(
    folders: Sequence[Path], out: Path, *, ensemble: bool = False, partial: bool = False
) -> list[SubmissionFile]:
    """Write a submission to the GLUE server and return what is in it.

    WNLI is answered with train's majority unless a fine-tuning on it is given.

    Args:
        folders: Finished fine-tunings on GLUE's tasks, one a task.
        out: The .zip file to write; must not exist.
        ensemble: Answer with the mean over the seeds as drawn, not with the seed that is best on
            dev, which may be one that took a collapsed one's place.
        partial: Leave out what no folder has answers to.

    Raises:
        UserError: A folder is no finished fine-tuning on a task of GLUE, two are on one task, one
            has another number of answers than its test set has rows, or a test set is not answered.
    """
    require(not out.exists(), f"{out} exists already; remove it or choose another --out")
    finished = _read_results(folders)
    answers, missing = [], []
    for name, (task, split) in SUBMISSION_FILES.items():
        folder, results = finished.get(task, (None, {}))
        if folder and split in results["num_items"]:
            answers.append(_answer(name, task, split, folder, results, ensemble=ensemble))
        elif name == WNLI and not folder:
            answers.append(SubmissionFile(name, [WNLI_MAJORITY] * WNLI_ROWS, "majority of train"))
        else:
            missing.append(f"{name} ({split} of {task})")
    require(
        partial or not missing,
        f"no answers for {', '.join(missing)}; give finished fine-tunings whose data have these "
        "sets, or --partial",
    )
    _write_zip(out, answers)
    return answers


def _read_results(folders: Sequence[Path]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return each folder and its results, by task."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        results = read_object(folder / "results.json")
        task = str(results.get("task"))
        require(
            task in GLUE and "seeds" in results,
            f"{folder} is no fine-tuning on a task of GLUE, but on {task!r}; leave it out",
        )
        if task in found:
            raise UserError(f"{found[task][0]} and {folder} are both on {task}; give one of them")
        found[task] = folder, results
    return found


def _answer(
    name: str, task: str, split: str, folder: Path, results: Mapping[str, Any], *, ensemble: bool
) -> SubmissionFile:
    scores = {
        seed: record["scores"][results["metric"]]
        for seed, record in (results["seeds"] | results.get("replacements", {})).items()
    }
    best = max(scores, key=lambda seed: scores[seed])
    seeds = list(results["seeds"]) if ensemble else [best]
    read = [_read_split(folder / f"seed-{seed}", split, results["num_items"]) for seed in seeds]
    what = f"mean of {len(seeds)} seeds" if ensemble else f"seed {best}"
    return SubmissionFile(name, _format(average(read), GLUE[task].label_range), f"{folder}, {what}")


def _read_split(folder: Path, split: str, num_items: Mapping[str, int]) -> Predictions:
    path = folder / predictions_name(split)
    read = read_predictions(path)
    count = len(read.gold)
    require(
        count == num_items[split],
        f"{path} has {count} answers; its test set has {num_items[split]} rows",
    )
    require(bool(np.isfinite(read.values).all()), f"{path} has answers that are not numbers")
    return read


def _format(predictions: Predictions, label_range: tuple[float, float] | None) -> list[str]:
    """Return the answers as GLUE names them; numbers lie within its range."""
    if label_range is None:
        return [predictions.labels[place] for place in predictions.answers]
    return [f"{number:.3f}" for number in predictions.values[:, 0].clip(*label_range)]


def _write_zip(out: Path, answers: Sequence[SubmissionFile]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    incomplete = out.with_name(out.name + ".incomplete")
    with zipfile.ZipFile(incomplete, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in answers:
            rows = (f"{number}\t{answer}\n" for number, answer in enumerate(each.predictions))
            entry = zipfile.ZipInfo(each.name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, "index\tprediction\n" + "".join(rows))
    incomplete.replace(out)
