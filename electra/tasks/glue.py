"""GLUE, read from its own folder layout.

Source: gluebenchmark.com; classification_tasks.py of the reference.
"""

from dataclasses import dataclass
from pathlib import Path

from electra.config import UserError, require
from electra.corpus.compression import DECOMPRESSORS
from electra.tasks.table import read_table
from electra.tasks.task import Task, read_examples


@dataclass(frozen=True)
class GlueTask:
    """Where a task's files stand and what is in them."""

    folders: tuple[str, ...]
    """Names of its folder within GLUE's; lower-cased they are the task's names, too."""
    metrics: tuple[str, ...]
    text: str
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    """Least and greatest label where it is a number."""
    text_b: str | None = None
    label: str = "label"
    columns: tuple[str, ...] = ()
    """Names of the columns of train and dev where these have no header."""
    epochs: int = 3


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
    ),
    "sts-b": GlueTask(
        folders=("STS-B", "sts-b", "STSB", "stsb", "STS", "sts"),
        label_range=(0.0, 5.0),
        metrics=("spearman", "pearson"),
        text="sentence1",
        text_b="sentence2",
        label="score",
        epochs=10,
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
    # To come: mnli (two dev files), and the diagnostic set (no labels).
}
NAMES = {folder.lower(): name for name, glue_task in GLUE.items() for folder in glue_task.folders}


def read_glue_task(name: str, data: Path) -> Task:
    """Return a GLUE task with its examples; the test set comes without labels, as distributed.

    Args:
        name: A key of GLUE.
        data: The task's folder, or GLUE's folder with the task's inside.

    Raises:
        UserError: The folder is neither, or a file is not as GLUE distributes it.
    """
    glue_task = GLUE[name]
    folder = _find_folder(glue_task, data)
    found = {split: _find_file(folder, split) for split in ("train", "dev", "test")}
    files = {split: path for split, path in found.items() if path is not None}
    require("dev" in files, f"{folder} has no dev.tsv")
    examples = {
        split: read_examples(
            read_table(path, () if split == "test" else glue_task.columns),
            glue_task.label_range or glue_task.labels,
            text=glue_task.text,
            text_b=glue_task.text_b,
            label=None if split == "test" else glue_task.label,
        )
        for split, path in files.items()
    }
    return Task(
        name=name,
        labels=glue_task.labels,
        label_range=glue_task.label_range,
        metrics=glue_task.metrics,
        train=examples["train"],
        dev=examples["dev"],
        test=examples.get("test", []),
        epochs=glue_task.epochs,
        files=tuple(files.values()),
        columns=tuple(
            column for column in (glue_task.text, glue_task.text_b, glue_task.label) if column
        ),
    )


def _find_folder(glue_task: GlueTask, data: Path) -> Path:
    for folder in (data, *(data / name for name in glue_task.folders)):
        if _find_file(folder, "train"):
            return folder
    raise UserError(
        f"{data} has neither a train.tsv nor a folder {glue_task.folders[0]} with one; give GLUE's "
        "folder or the task's"
    )


def _find_file(folder: Path, split: str) -> Path | None:
    """Return a split's file, compressed or not."""
    paths = (folder / f"{split}.tsv{suffix}" for suffix in ("", *DECOMPRESSORS))
    return next((path for path in paths if path.is_file()), None)
