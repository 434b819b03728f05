"""GLUE, read from its own folder layout, or from that of the Hugging Face hub (nyu-mll/glue).

Source: gluebenchmark.com; classification_tasks.py of the reference.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from electra.errors import UserError
from electra.tasks.classification import Classification, read_names
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family, Task
from electra.tasks.own import Answers, label_all
from electra.tasks.record import Columns, Records, find_split, find_splits
from electra.tasks.regression import Regression, read_numbers
from electra.text.table_files import read_table
from electra.text.tables import TABLE_FORMATS


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
    files: tuple[tuple[str, str], ...] = (
        ("train", "train"),
        ("dev", "dev|validation"),
        ("test", "test"),
    )
    """Names of each split's file, without format, as a regular expression."""
    is_unordered: bool = False
    """Whether the order of a pair has no meaning, so that train may have it both ways."""
    hub_texts: tuple[str, ...] = ()
    """`texts` as the hub names them, if they are others; the label is `label` there."""
    hub_labels: tuple[str, ...] = ()
    """`labels` in the order of the hub's numbers, if it is another."""


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
        hub_texts=("sentence1", "sentence2"),
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
        folders=("QNLI",), texts=("question", "sentence"), labels=("entailment", "not_entailment")
    ),
    "rte": GlueTask(folders=("RTE",), labels=("entailment", "not_entailment"), epochs=10),
    "wnli": GlueTask(folders=("WNLI",)),
    "mnli": GlueTask(
        folders=("MNLI",),
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        files=(
            ("train", "train"),
            ("dev", "(dev|validation)_matched"),
            ("dev_mismatched", "(dev|validation)_mismatched"),
            ("test", "test_matched"),
            ("test_mismatched", "test_mismatched"),
            ("diagnostic", "diagnostic"),
        ),
        hub_texts=("premise", "hypothesis"),
        hub_labels=("entailment", "neutral", "contradiction"),
    ),
}
DIAGNOSTIC = ("diagnostic", "AX", "ax")
"""Folders beside MNLI's that may hold the diagnostic set (AX)."""
NAMES = {folder.lower(): name for name, task in GLUE.items() for folder in task.folders}
"""The task of each name that a user may type, in lower case."""


def read_glue_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return a GLUE task with its examples; test sets come without labels, as distributed."""
    task = GLUE[name]
    folder = _find_folder(task, data)
    files = find_splits(folder, TABLE_FORMATS, dict(task.files))
    if "diagnostic" in dict(task.files):
        for beside in (folder.parent / each for each in DIAGNOSTIC):
            names = "diagnostic|test"  # the second is the hub's
            is_there = beside.is_dir()
            found = find_split(beside, "diagnostic", TABLE_FORMATS, names) if is_there else []
            files |= {"diagnostic": found} if found and "diagnostic" not in files else {}
    records = {
        split: [_read(task, split, path) for path in paths] for split, paths in files.items()
    }
    has_pairs, limits = len(task.texts) > 1, task.label_range
    family: Family = Classification(task.metrics, task.labels, has_pairs=has_pairs)
    answers: Answers = partial(read_names, labels=task.labels)
    if limits:
        labels = records["train"][0].columns.labels
        family = Regression(task.metrics, labels, (limits,), has_pairs=has_pairs)
        answers = partial(read_numbers, limits=limits)
    swaps = config.swap_pairs and task.is_unordered  # Source: its double_unordered
    notes = [
        f"{table.path.name}: {table.num_short:,} of {len(table.rows) + table.num_short:,} "
        f"rows have fewer than {len(table.columns)} columns and are left out"
        for parts in records.values()
        for table in (part.table for part in parts)
        if table.num_short
    ]
    read = label_all(name, family, answers, records)
    return replace(read, epochs=task.epochs, swaps_pairs=swaps, notes=tuple(notes))


def _read(task: GlueTask, split: str, path: Path) -> Records:
    """Return the records of a file with GLUE's labels; those of a test set are not read."""
    is_labelled = split.startswith(("train", "dev"))
    table = read_table(path, task.columns if is_labelled else (), may_be_short=is_labelled)
    columns, hub = Columns(task.texts, (task.label,)), task.hub_texts or task.texts
    if {*hub} <= {*table.columns} and not {*task.texts, task.label} <= {*table.columns}:
        columns = Columns(hub, ("label",))
    texts, (label,) = columns
    labels = task.hub_labels or task.labels

    def spell(value: object) -> object:
        is_number = type(value) in (int, str) and str(value).isdecimal()
        place = int(str(value)) if is_number and str(value) not in labels else -1
        return labels[place] if 0 <= place < len(labels) else value

    rows = [row | {label: spell(row[label])} if label in row else row for row in table.rows]
    read = columns if is_labelled else Columns(texts, ("",))
    return Records(replace(table, rows=rows, names={}), read)


def _find_folder(task: GlueTask, data: Path) -> Path:
    names = [name for folder in task.folders for name in (folder, folder.lower())]
    for folder in (data, *(data / name for name in names)):
        if folder.is_dir() and find_split(folder, "train", TABLE_FORMATS):
            return folder
    raise UserError(
        f"{data} has neither a file named train ({', '.join(TABLE_FORMATS)}) nor a folder "
        f"{names[0]} with one; give GLUE's folder or the task's"
    )
