"""GLUE, read from its own folder layout.

Source: gluebenchmark.com; classification_tasks.py of the reference.
"""

from dataclasses import dataclass
from pathlib import Path

from electra.errors import UserError, require
from electra.tasks.classification import Classification, Example, read_examples
from electra.tasks.family import Task
from electra.text.tables import find_table, read_table


@dataclass(frozen=True)
class GlueTask:
    """The files of a task and their columns."""

    folders: tuple[str, ...]
    """Names of the task's folder in GLUE's, as they are or in lower case; also of the task."""
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    """Column of the text, or of both texts of a pair."""
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    label_range: tuple[float, float] | None = None
    """Smallest and largest label of a regression."""
    metrics: tuple[str, ...] = ("accuracy",)
    columns: tuple[str, ...] = ()
    """Names of the columns of train and dev if these have no header."""
    epochs: int = 3
    files: tuple[tuple[str, str], ...] = (("train", "train"), ("dev", "dev"), ("test", "test"))
    """Name of each split's file, without .tsv; the splits after dev may be absent."""
    is_unordered: bool = False
    """Whether the order of a pair has no meaning, so that train may have it both ways."""


GLUE = {
    "cola": GlueTask(
        folders=("CoLA",),
        texts=("sentence",),
        metrics=("mcc", "accuracy"),
        columns=("source", "label", "mark", "sentence"),
    ),
    "sst-2": GlueTask(folders=("SST-2", "SST2", "SST"), texts=("sentence",)),
    "mrpc": GlueTask(
        folders=("MRPC",),
        texts=("#1 String", "#2 String"),
        label="Quality",
        metrics=("accuracy", "f1"),
        is_unordered=True,
    ),
    "sts-b": GlueTask(
        folders=("STS-B", "STSB", "STS"),
        label="score",
        labels=(),
        label_range=(0.0, 5.0),
        metrics=("spearman", "pearson"),
        epochs=10,
        is_unordered=True,
    ),
    "qqp": GlueTask(
        folders=("QQP",),
        texts=("question1", "question2"),
        label="is_duplicate",
        metrics=("accuracy", "f1"),
    ),
    "qnli": GlueTask(
        folders=("QNLI",),
        texts=("question", "sentence"),
        labels=("entailment", "not_entailment"),
    ),
    "rte": GlueTask(folders=("RTE",), labels=("entailment", "not_entailment"), epochs=10),
    "wnli": GlueTask(folders=("WNLI",)),
    "mnli": GlueTask(
        folders=("MNLI",),
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        files=(
            ("train", "train"),
            ("dev", "dev_matched"),
            ("dev_mismatched", "dev_mismatched"),
            ("test", "test_matched"),
            ("test_mismatched", "test_mismatched"),
            ("diagnostic", "diagnostic"),
        ),
    ),
}
DIAGNOSTIC = ("diagnostic", "AX", "ax")
"""Folders beside MNLI's that may hold the diagnostic set (AX)."""
NAMES = {folder.lower(): name for name, task in GLUE.items() for folder in task.folders}
"""The task of each name that a user may type, in lower case."""


def read_glue_task(name: str, data: Path, *, swap_pairs: bool) -> Task:
    """Return a GLUE task with its examples; test sets come without labels, as distributed.

    Args:
        name: A key of GLUE.
        data: The task's folder, or GLUE's folder with the task's inside.
        swap_pairs: Whether to train on pairs in both orders if the order has no meaning.

    Raises:
        UserError: `data` is neither folder, or a file is not as GLUE distributes it.
    """
    task = GLUE[name]
    folder = _find_folder(task, data)
    found = {split: _find_file(folder, stem) for split, stem in task.files}
    files = {split: path for split, path in found.items() if path is not None}
    require("dev" in files, f"{folder} has no {dict(task.files)['dev']}.tsv")
    examples = {}
    for split, path in files.items():
        is_labelled = split.startswith(("train", "dev"))
        table = read_table(path, task.columns if is_labelled else ())
        label = task.label if is_labelled else None
        examples[split] = read_examples(table, task.texts, label, task.label_range or task.labels)
    swapped = []
    if swap_pairs and task.is_unordered:  # Source: double_unordered in classification_tasks.py
        swapped = [Example(b, a, label) for a, b, label in examples["train"] if b is not None]
    has_pairs = len(task.texts) > 1
    return Task(
        name,
        Classification(task.metrics, task.labels, task.label_range, has_pairs),
        examples,
        epochs=task.epochs,
        files=tuple(files.values()),
        columns=(*task.texts, task.label),
        swapped_pairs=tuple(swapped),
    )


def _find_folder(task: GlueTask, data: Path) -> Path:
    names = [name for folder in task.folders for name in (folder, folder.lower())]
    for folder in (data, *(data / name for name in names)):
        if _find_file(folder, "train"):
            return folder
    raise UserError(
        f"{data} has neither a train.tsv nor a folder {names[0]} with one; give GLUE's folder or "
        "the task's"
    )


def _find_file(folder: Path, stem: str) -> Path | None:
    """Return a split's file, compressed or not."""
    beside = [folder.parent / name for name in DIAGNOSTIC] if stem == "diagnostic" else []
    found = (find_table(place, stem, ".tsv") for place in (folder, *beside))
    return next((path for path in found if path), None)
