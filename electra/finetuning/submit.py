"""Submissions to the GLUE server: a zip with predictions on its test sets, from fine-tunings.

Source: gluebenchmark.com; a submission has a .tsv file for each test set, with the columns `index`
and `prediction`.
"""

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra.checkpoints.manifest import find_best
from electra.checkpoints.results_files import read_results
from electra.errors import UserError, require
from electra.files import check_hashes, make_folder, new_file, refuse_existing
from electra.shapes import require_fields
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
"""The task and the split of each file of a submission."""
WNLI = "WNLI.tsv"
WNLI_MAJORITY, WNLI_ROWS = "0", 146
"""The most frequent label of WNLI's train, 323 of 635, and the number of rows of its test set. This
constant answer is hard to beat because dev and test contradict train."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Timestamp of every file in the zip, so that the same answers give the same zip."""


@dataclass(frozen=True)
class SubmissionFile:
    """One file of a submission."""

    name: str
    predictions: list[str]
    origin: str
    """The folder and the seeds of the predictions."""


def submit(
    folders: Sequence[Path], out: Path, *, ensemble: bool = False, partial: bool = False
) -> list[SubmissionFile]:
    """Write a submission to the GLUE server, as `electra.submit`; of a grid the best is taken."""
    refuse_existing(out)
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
    make_folder(out.parent)
    with new_file(out) as incomplete, zipfile.ZipFile(incomplete, "w") as archive:
        for each in answers:
            rows = (f"{number}\t{answer}\n" for number, answer in enumerate(each.predictions))
            entry = zipfile.ZipInfo(each.name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, "index\tprediction\n" + "".join(rows))
    return answers


def _read_results(folders: Sequence[Path]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return the folder and the results of each task."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in map(find_best, folders):
        is_finished = (folder / "results.json").is_file()
        require(is_finished, f"{folder} is not a finished fine-tuning: it has no results.json")
        check_hashes(folder)
        results = read_results(folder, "task")
        task = results["task"]
        require(
            task in GLUE and "seeds" in results,
            f"{folder} is a fine-tuning on {task!r}, not on a task of GLUE; leave it out",
        )
        require_fields(results, ("metric", "num_items"), folder / "results.json")
        if task in found:
            raise UserError(f"{found[task][0]} and {folder} are both on {task}; give one of them")
        found[task] = folder, results
    return found


def _answer(
    name: str, task: str, split: str, folder: Path, results: Mapping[str, Any], *, ensemble: bool
) -> SubmissionFile:
    scores = {
        seed: record.get("scores", {}).get(results["metric"], -math.inf)
        for seed, record in (results["seeds"] | results.get("replacements", {})).items()
    }
    best = max(scores, key=lambda seed: scores[seed])
    seeds = list(results["seeds"]) if ensemble else [best]
    read = [_read_split(folder / f"seed-{seed}", split, results["num_items"]) for seed in seeds]
    together, limits = average(read), GLUE[task].label_range
    said = (
        [together.labels[place] for place in together.values.argmax(axis=1)]
        if limits is None
        else [f"{number:.3f}" for number in together.values[:, 0].clip(*limits)]
    )
    what = f"mean of {len(seeds)} seeds" if ensemble else f"seed {best}"
    return SubmissionFile(name, said, f"{folder}, {what}")


def _read_split(folder: Path, split: str, num_items: Mapping[str, int]) -> Predictions:
    check_hashes(folder)
    path = folder / predictions_name(split)
    read = read_predictions(path)
    count = len(read.gold)
    if count != num_items[split]:
        raise UserError(f"{path} has {count} answers; its test set has {num_items[split]} rows")
    require(bool(np.isfinite(read.values).all()), f"{path} has answers that are not numbers")
    return read
