"""GLUE, read from its own folder layout.

Source: gluebenchmark.com; classification_tasks.py of the reference.
"""

from dataclasses import dataclass
from pathlib import Path

from electra.config import UserError
from electra.tasks.table import read_table
from electra.tasks.task import Task, read_examples


@dataclass(frozen=True)
class GlueTask:
    """Where a task's files stand and what is in them."""

    folders: tuple[str, ...]
    """Names of its folder within GLUE's; lower-cased they are the task's names, too."""
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    text: str
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
    # To come, one entry each: mrpc, sts-b (a label that is a number), qqp, mnli (two dev files),
    # qnli, rte, wnli, and the diagnostic set (no labels).
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
    files = {split: folder / f"{split}.tsv" for split in ("train", "dev", "test")}
    if not files["test"].exists():
        del files["test"]
    examples = {
        split: read_examples(
            read_table(path, () if split == "test" else glue_task.columns),
            glue_task.labels,
            text=glue_task.text,
            text_b=glue_task.text_b,
            label=None if split == "test" else glue_task.label,
        )
        for split, path in files.items()
    }
    return Task(
        name=name,
        labels=glue_task.labels,
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
        if (folder / "train.tsv").is_file():
            return folder
    raise UserError(
        f"{data} has neither a train.tsv nor a folder {glue_task.folders[0]} with one; give GLUE's "
        "folder or the task's"
    )
