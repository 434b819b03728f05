"""What the tests of tasks and of fine-tuning share."""

from pathlib import Path

import pytest
from runs import ignore as ignore

from electra.assignments import override
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Task
from electra.tasks.record import Inputs
from electra.tasks.registry import read_inputs, read_task


class PowerCut(Exception):
    """The end of a fine-tuning that nobody announced."""


def cut_at(**facts):
    """What shows the records of a fine-tuning, and ends it at the first one with these facts."""

    def show(record):
        if facts.items() <= record.items():
            raise PowerCut

    return show


def small_finetune(**changes) -> FinetuneConfig:
    """Settings of a quick fine-tuning of the toy encoder."""
    usual = {"learning_rate": 2e-3, "layer_lr_decay": 0.9, "batch_size": 16, "epochs": 2}
    machine = {"reseeds": 0, "precision": "float32", "device": "cpu", "threads": 1}
    return FinetuneConfig(**{**usual, **machine, **changes})


def write_files(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_parquet(path: Path, **columns: list) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)


def read(name: str, folder: Path, *settings: str) -> Task:
    return read_task(name, folder, override(FinetuneConfig(), settings))


def ask_file(task: Task, path: Path, *columns: str, **facts) -> Inputs:
    """What a model that was fine-tuned on a task reads of a file."""
    read = dict(zip(("columns", "label_columns"), task.columns, strict=True))
    return read_inputs(task.family.facts() | read | {"task": task.name} | facts, path, columns)
