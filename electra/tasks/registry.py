"""Tasks by the name that a user types, and families by the name in a saved model."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from electra.config import FinetuneConfig, OwnTaskConfig
from electra.errors import UserError, did_you_mean, require
from electra.settings import override_from_toml
from electra.tasks.choice import MultipleChoice, read_swag
from electra.tasks.classification import Classification
from electra.tasks.conll import read_tagging_task
from electra.tasks.family import Family, Task
from electra.tasks.glue import GLUE, NAMES, read_glue_task
from electra.tasks.inputs import (
    Records,
    read_choice_records,
    read_question_records,
    read_text_records,
    read_token_records,
)
from electra.tasks.own import read_own_task
from electra.tasks.squad import SpanExtraction, read_squad_task
from electra.tasks.tagging import Tagging
from electra.text.tables import require_regular

OWN = "own"
SWAG = "swag"
TAGGING = "tagging"
SQUAD = ("squad-1.1", "squad-2.0")
TASKS = (*GLUE, *SQUAD, SWAG, TAGGING, OWN)
TASK_FILE = ".toml"
Reader = Callable[[Path, Sequence[str], dict[str, Any]], Records]
FAMILIES: dict[str, tuple[type[Family], Reader]] = {
    "classification": (Classification, read_text_records),
    "choice": (MultipleChoice, read_choice_records),
    "squad": (SpanExtraction, read_question_records),
    "tagging": (Tagging, read_token_records),
}
"""Each family by the name in a saved model's facts, and the reader of its records."""


def read_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of this name with the examples in `data`; names ignore case.

    A name that ends with .toml is a file with the fields of OwnTaskConfig.

    Raises:
        UserError: The name is unknown, a setting is for another task, or the files are not those of
            the task.
    """
    own, path = resolve_own(name, config).own, Path(name)
    if path.suffix == TASK_FILE:
        task = _read_own(data, own)
        return dataclasses.replace(task, files=(path, *task.files))
    name = NAMES.get(name.lower(), name.lower())
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}{did_you_mean(name, TASKS)}")
    for section, tasks in (("squad", SQUAD), ("tagging", (TAGGING,))):
        settings = getattr(config, section)
        for key, value in vars(settings).items():
            if name not in tasks and value != getattr(type(settings)(), key):
                raise UserError(f"{section}.{key} is for {' and '.join(tasks)}, not for {name}")
    if name == OWN:
        return _read_own(data, own)
    if name == SWAG:
        return read_swag(data)
    if name == TAGGING:
        columns = config.tagging
        return read_tagging_task(
            data, word_column=columns.word_column, tag_column=columns.tag_column
        )
    if name in SQUAD:
        squad = config.squad
        return read_squad_task(
            name,
            data,
            train=_split(squad.train),
            dev=_split(squad.dev),
            test=_split(squad.test),
            head=squad.head,
            reference=config.mode == "reference",
        )
    return read_glue_task(name, data, swap_pairs=config.swap_pairs)


def resolve_own(name: str, config: FinetuneConfig) -> FinetuneConfig:
    """Return the config with the fields of a task's file in `own`.

    Raises:
        UserError: The file does not fit, or `own` is set for a task that has a description
            already.
    """
    if name.lower() == OWN:
        return config
    default = OwnTaskConfig()
    is_file = Path(name).suffix == TASK_FILE
    if is_file:
        require_regular(Path(name))
    own = override_from_toml(default, Path(name)) if is_file else default
    for key, value in vars(config.own).items():
        if value not in (getattr(default, key), getattr(own, key)):
            raise UserError(f"own.{key} is for the task {OWN!r}; {name!r} says what its files are")
    return dataclasses.replace(config, own=own)


def _read_own(data: Path, own: OwnTaskConfig) -> Task:
    require(
        own.name.lower() not in {*NAMES, *TASKS} - {OWN},
        f"own.name {own.name!r} is the name of another task; choose one that is not",
    )
    return read_own_task(data, own)


def restore_family(facts: dict[str, Any]) -> Family:
    """Return the family of a saved model.

    Raises:
        UserError: The family is unknown.
    """
    family_type, _ = _find_family(facts)
    return family_type.from_facts(facts)


def read_records(facts: dict[str, Any], path: Path, columns: Sequence[str] = ()) -> Records:
    """Return the records in a file for a saved model to answer.

    Args:
        facts: Those of the model.
        path: The file, without labels; inputs.py says which formats a family reads.
        columns: Names of the columns to read, if they are not those of training.

    Raises:
        UserError: The family is unknown, or the file cannot be read, is empty or does not fit.
    """
    _, read = _find_family(facts)
    return read(path, columns, facts)


def _find_family(facts: dict[str, Any]) -> tuple[type[Family], Reader]:
    family = facts.get("family", "")
    if family not in FAMILIES:
        raise UserError(f"unknown family of tasks {family!r}{did_you_mean(family, FAMILIES)}")
    return FAMILIES[family]


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
