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
    """Names of the task's folder in GLUE's; lower-cased they are names of the task."""
    metrics: tuple[str, ...]
    text: str
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    """Smallest and largest label of a regression."""
    text_b: str | None = None
    label: str = "label"
    columns: tuple[str, ...] = ()
    """Names of the columns of train and dev if these have no header."""
    epochs: int = 3
    files: tuple[tuple[str, str], ...] = (("train", "train"), ("dev", "dev"), ("test", "test"))
    """Name of each split's file, without .tsv; the splits after dev may be absent."""
    is_unordered: bool = False
    """Whether the order of a pair has no meaning, so that train may have it both ways."""


GLUE = {
    "cola": GlueTask(
        folders=("CoLA", "cola"),
        labels=("0", "1"),
        metrics=("mcc", "accuracy"),
        text="sentence",
        columns=("source", "label", "mark", "sentence"),
    ),
    "sst-2": GlueTask(
        folders=("SST-2", "sst-2", "SST2", "sst2", "SST", "sst"),
        labels=("0", "1"),
        metrics=("accuracy",),
        text="sentence",
    ),
    "mrpc": GlueTask(
        folders=("MRPC", "mrpc"),
        labels=("0", "1"),
        metrics=("accuracy", "f1"),
        text="#1 String",
        text_b="#2 String",
        label="Quality",
        is_unordered=True,
    ),
    "sts-b": GlueTask(
        folders=("STS-B", "sts-b", "STSB", "stsb", "STS", "sts"),
        label_range=(0.0, 5.0),
        metrics=("spearman", "pearson"),
        text="sentence1",
        text_b="sentence2",
        label="score",
        epochs=10,
        is_unordered=True,
    ),
    "qqp": GlueTask(
        folders=("QQP", "qqp"),
        labels=("0", "1"),
        metrics=("accuracy", "f1"),
        text="question1",
        text_b="question2",
        label="is_duplicate",
    ),
    "qnli": GlueTask(
        folders=("QNLI", "qnli"),
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
        text="question",
        text_b="sentence",
    ),
    "rte": GlueTask(
        folders=("RTE", "rte"),
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
        text="sentence1",
        text_b="sentence2",
        epochs=10,
    ),
    "wnli": GlueTask(
        folders=("WNLI", "wnli"),
        labels=("0", "1"),
        metrics=("accuracy",),
        text="sentence1",
        text_b="sentence2",
    ),
    "mnli": GlueTask(
        folders=("MNLI", "mnli"),
        labels=("contradiction", "entailment", "neutral"),
        metrics=("accuracy",),
        text="sentence1",
        text_b="sentence2",
        label="gold_label",
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
NAMES = {folder.lower(): name for name, glue_task in GLUE.items() for folder in glue_task.folders}


def read_glue_task(name: str, data: Path, *, swap_pairs: bool) -> Task:
    """Return a GLUE task with its examples; test sets come without labels, as distributed.

    Args:
        name: A key of GLUE.
        data: The task's folder, or GLUE's folder with the task's inside.
        swap_pairs: Whether to train on pairs in both orders if the order has no meaning.

    Raises:
        UserError: `data` is neither folder, or a file is not as GLUE distributes it.
    """
    glue_task = GLUE[name]
    folder = _find_folder(glue_task, data)
    found = {split: _find_file(folder, stem) for split, stem in glue_task.files}
    files = {split: path for split, path in found.items() if path is not None}
    require("dev" in files, f"{folder} has no {dict(glue_task.files)['dev']}.tsv")
    examples = {}
    for split, path in files.items():
        is_labelled = split.startswith(("train", "dev"))
        examples[split] = read_examples(
            read_table(path, glue_task.columns if is_labelled else ()),
            glue_task.label_range or glue_task.labels,
            text=glue_task.text,
            text_b=glue_task.text_b,
            label=glue_task.label if is_labelled else None,
        )
    swapped = []
    if swap_pairs and glue_task.is_unordered:  # Source: double_unordered in classification_tasks.py
        swapped = [Example(b, a, label) for a, b, label in examples["train"] if b is not None]
    return Task(
        name,
        Classification(
            glue_task.metrics,
            glue_task.labels,
            glue_task.label_range,
            has_pairs=glue_task.text_b is not None,
        ),
        examples,
        epochs=glue_task.epochs,
        files=tuple(files.values()),
        columns=tuple(
            column for column in (glue_task.text, glue_task.text_b, glue_task.label) if column
        ),
        swapped_pairs=tuple(swapped),
    )


def _find_folder(glue_task: GlueTask, data: Path) -> Path:
    for folder in (data, *(data / name for name in glue_task.folders)):
        if _find_file(folder, "train"):
            return folder
    raise UserError(
        f"{data} has neither a train.tsv nor a folder {glue_task.folders[0]} with one; give GLUE's "
        "folder or the task's"
    )


def _find_file(folder: Path, stem: str) -> Path | None:
    """Return a split's file, compressed or not."""
    beside = [folder.parent / name for name in DIAGNOSTIC] if stem == "diagnostic" else []
    found = (find_table(place, stem, ".tsv") for place in (folder, *beside))
    return next((path for path in found if path), None)
