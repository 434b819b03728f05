"""Tasks by the name that a user types, and families by their saved name."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.assignments import differences, override_from_toml
from electra.errors import UserError, refuse_unlike, require, tell_place
from electra.files import require_regular
from electra.outside import load_outside, require_known
from electra.tasks.choice import MultipleChoice, read_swag
from electra.tasks.classification import Classification
from electra.tasks.config import FinetuneConfig, OwnTaskConfig
from electra.tasks.family import Family, Task
from electra.tasks.glue import GLUE, NAMES, read_glue_task
from electra.tasks.multi_label import MultiLabel
from electra.tasks.own import read_own_task, read_swag_task
from electra.tasks.record import Asked, Columns, Converter, Inputs
from electra.tasks.regression import Regression
from electra.tasks.retrieval import Retrieval, read_retrieval_task
from electra.tasks.squad import SpanExtraction, read_squad_task
from electra.tasks.tagging import Tagging, read_tagging_task
from electra.tasks.texts import Texts
from electra.text.streams import open_source
from electra.text.tables import SEPARATED_FORMATS, SEPARATORS, format_of

OWN = "own"
TAGGING = "tagging"
RETRIEVAL = "retrieval"
SQUAD = ("squad-1.1", "squad-2.0")
READERS: dict[str, Callable[[str, Path, FinetuneConfig], Task]] = {
    **dict.fromkeys(GLUE, read_glue_task),
    **dict.fromkeys(SQUAD, read_squad_task),
    "swag": read_swag_task,
    TAGGING: read_tagging_task,
    RETRIEVAL: read_retrieval_task,
    OWN: read_own_task,
}
"""Readers of the files of each task, from its name, the folder and the settings."""
TASKS = tuple(READERS)
TASK_FILE = ".toml"
FAMILIES: dict[str, type[Family]] = {
    "classification": Classification,
    "multi_label": MultiLabel,
    "regression": Regression,
    "choice": MultipleChoice,
    "squad": SpanExtraction,
    "tagging": Tagging,
    "retrieval": Retrieval,
}
"""Each family by the name in a saved model's facts."""
CONVERTERS: Mapping[str, Converter] = {"swag": read_swag}
"""Converters of the inputs of a task's files to records, if that is not `Family.convert`."""


def read_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of this name with the examples in `data`; names ignore case.

    A name that ends with .toml is a file with the fields of OwnTaskConfig. The task has a dev set:
    `dev_fraction` of train if it is set, else that of its files.
    """
    config, path = resolve_own(name, config), Path(name)
    if path.suffix == TASK_FILE:
        task = _read_named(OWN, data, config)
        task = dataclasses.replace(task, files=(path, *task.files))
    else:
        task = _read_named(NAMES.get(name.lower(), name.lower()), data, config)
    if config.max_windows > 1:
        task = _read_windows(task, config.max_windows)
    if config.dev_fraction:
        return task.hold_out(config.dev_fraction)
    require(
        "dev" in task.examples,
        f"{data} has no dev file; add one named dev, or make a share of train the dev set: "
        "dev_fraction=0.1",
    )
    return task


def _read_windows(task: Task, max_windows: int) -> Task:
    """Return a task whose long texts are read in windows; refuse a task without single texts."""
    family = task.family
    if not isinstance(family, Texts) or family.has_pairs:
        raise UserError(
            f"max_windows {max_windows} is for labels and numbers of single texts, not for "
            f"{task.name}; leave it out"
        )
    return dataclasses.replace(task, family=dataclasses.replace(family, max_windows=max_windows))


def _read_named(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of a name in TASKS, as its files have it."""
    require_known("task", name, TASKS, "families")
    sections = {"squad": SQUAD, "tagging": (TAGGING,), "retrieval": (RETRIEVAL,)}
    for setting in differences(FinetuneConfig(), config):
        tasks = sections.get(setting.partition(".")[0], (name,))
        require(name in tasks, f"{setting} is for {' and '.join(tasks)}, not for {name}")
    if name == OWN:
        _refuse_taken("own.name", config.own.name)
    outside = load_outside("families", name, Family) if name not in READERS else None
    task: Task = (outside.read_task if outside else READERS[name])(name, data, config)
    if name == TAGGING:
        _refuse_taken("the folder", task.name)
    return task


def _refuse_taken(what: str, name: str) -> None:
    taken = {*NAMES, *TASKS} - {OWN, TAGGING}
    require(
        name.lower() not in taken,
        f"{what} {name!r} is the name of another task; choose one that is not",
    )


def resolve_own(name: str, config: FinetuneConfig) -> FinetuneConfig:
    """Return the config with the fields of a task's file in `own`; refuse `own` for other tasks."""
    if name.lower() == OWN:
        return config
    default = own = OwnTaskConfig()
    if Path(name).suffix == TASK_FILE:
        require_regular(Path(name))
        own = override_from_toml(default, Path(name))
    for key, value in vars(config.own).items():
        if value not in (getattr(default, key), getattr(own, key)):
            raise UserError(
                f"own.{key} applies only to --task {OWN}; {name!r} defines its own files"
            )
    return dataclasses.replace(config, own=own)


def restore_family(facts: dict[str, Any]) -> Family:
    """Return the family of a saved model; refuse an unknown one."""
    name = str(facts.get("family", ""))
    require_known("family of tasks", name, FAMILIES, "families")
    family: type[Family] = FAMILIES.get(name) or load_outside("families", name, Family)
    place = f"config.json of a fine-tuned {name} model"
    with tell_place(place), refuse_unlike("these are not its facts"):
        return family.from_facts(facts)


def read_inputs(facts: dict[str, Any], path: Path, columns: Sequence[str] = ()) -> Inputs:
    """Return the inputs in a file for a saved model with these facts to answer.

    There is one for each line, row or question. Labels in the file are ignored. The separator of a
    .csv or .tsv is that of training, unless its first line has only other separators.

    Args:
        facts: Facts of the family, and the task's name, columns and separator.
        path: The file, compressed or not.
        columns: Names of the columns to read; empty: those of training.

    Raises:
        UserError: The file cannot be read, is empty or does not fit.
    """
    family, separator = restore_family(facts), facts.get("separator", "")
    if separator and format_of(path) in SEPARATED_FORMATS:
        with open_source(path) as (_, stream):
            first = stream.readline().decode("utf-8", "replace")
        if separator not in first and any(map(first.count, SEPARATORS)):
            separator = ""  # its first line decides
    trained = Columns(tuple(facts["columns"]), tuple(facts["label_columns"]))
    asked = Asked(trained, tuple(columns), separator, tuple(facts.get("labels", ())))
    records = CONVERTERS.get(facts["task"], family.convert)(path, asked)
    found = [dict(each.fields) for each in records.asked(family.fields, family.lists)]
    return Inputs(found, records.kept or records.table.rows)
