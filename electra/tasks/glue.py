"""GLUE, read from its own folder layout, or from that of the Hugging Face hub (nyu-mll/glue).

Source: gluebenchmark.com; classification_tasks.py of the reference.
"""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.tasks.classification import Classification, read_names
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Columns, Family, Task, find_split, find_splits
from electra.tasks.regression import Regression, read_numbers
from electra.tasks.texts import combine, read_pairs
from electra.text.table_files import TableFile, read_table
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
    examples: dict[str, list[Any]] = {}
    notes = []
    read = Columns()
    for split, paths in files.items():
        is_labelled = split.startswith(("train", "dev"))
        columns, label = (task.columns, task.label) if is_labelled else ((), "")
        examples[split] = []
        for path in paths:
            table = read_table(path, columns, may_be_short=is_labelled)
            if split == "train":
                read = _columns_of(task, table)
            table = _translate(task, table)
            pairs = read_pairs(table, task.texts)
            labels = (
                read_numbers(table, split, [label], task.label_range)
                if task.label_range
                else read_names(table, split, label, task.labels)
            )
            examples[split] += combine(pairs, labels)
            if table.num_short:
                notes.append(
                    f"{path.name}: {table.num_short:,} of {len(table.rows) + table.num_short:,} "
                    f"rows have fewer than {len(table.columns)} columns and are left out"
                )
    has_pairs = len(task.texts) > 1
    family: Family = (
        Regression(task.metrics, read.labels, (task.label_range,), has_pairs=has_pairs)
        if task.label_range
        else Classification(task.metrics, task.labels, has_pairs=has_pairs)
    )
    return Task(
        name,
        family,
        examples,
        epochs=task.epochs,
        files=tuple(path for paths in files.values() for path in paths),
        columns=read,
        swaps_pairs=config.swap_pairs and task.is_unordered,  # Source: its double_unordered
        notes=tuple(notes),
    )


def _columns_of(task: GlueTask, table: TableFile) -> Columns:
    """Return the columns of texts and label: GLUE's own, or the hub's if the table has those."""
    own, hub = Columns(task.texts, (task.label,)), task.hub_texts or task.texts
    is_hub = {*hub} <= {*table.columns} and not {*task.texts, task.label} <= {*table.columns}
    return Columns(hub, ("label",)) if is_hub else own


def _translate(task: GlueTask, table: TableFile) -> TableFile:
    """Return a table with GLUE's own columns and labels, whichever it has."""
    renamed = dict(zip(chain(*_columns_of(task, table)), (*task.texts, task.label), strict=True))
    labels = task.hub_labels or task.labels

    def spell(label: object) -> object:
        is_number = type(label) in (int, str) and str(label).isdecimal()
        place = int(str(label)) if is_number and str(label) not in labels else -1
        return labels[place] if 0 <= place < len(labels) else label

    rows = [{renamed.get(name, name): row[name] for name in row} for row in table.rows]
    for row in rows:
        if task.label in row:
            row[task.label] = spell(row[task.label])
    columns = tuple(renamed.get(name, name) for name in table.columns)
    return replace(table, columns=columns, rows=rows, names={})


def _find_folder(task: GlueTask, data: Path) -> Path:
    names = [name for folder in task.folders for name in (folder, folder.lower())]
    for folder in (data, *(data / name for name in names)):
        if folder.is_dir() and find_split(folder, "train", TABLE_FORMATS):
            return folder
    raise UserError(
        f"{data} has neither a file named train ({', '.join(TABLE_FORMATS)}) nor a folder "
        f"{names[0]} with one; give GLUE's folder or the task's"
    )
