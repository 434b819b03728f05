"""Every task by the name that a user types."""

import dataclasses
from pathlib import Path

from electra.config import FinetuneConfig, OwnTaskConfig, UserError, did_you_mean, require
from electra.settings import override_from_toml
from electra.tasks.choice import MultipleChoice, read_swag
from electra.tasks.classification import Classification
from electra.tasks.glue import GLUE, NAMES, read_glue_task
from electra.tasks.own import read_own_task
from electra.tasks.task import Task

OWN = "own"
SWAG = "swag"
TASKS = (*GLUE, SWAG, OWN)


def read_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of this name with the examples in `data`; case does not matter.

    A name that ends with .toml is a file with the fields of OwnTaskConfig.

    Raises:
        UserError: The name is unknown, a setting of `own` is given for another task, or the files
            are not those of the task.
    """
    if name.lower() == OWN:
        return _read_own(data, config.own)
    for key, value in vars(config.own).items():
        if value != getattr(OwnTaskConfig(), key):
            raise UserError(f"own.{key} is for the task {OWN!r}; {name!r} says what its files are")
    path = Path(name)
    if path.suffix == ".toml":
        task = _read_own(data, override_from_toml(OwnTaskConfig(), path))
        return dataclasses.replace(task, files=(path, *task.files))
    if name.lower() == SWAG:
        return read_swag(data)
    if name.lower() in NAMES:
        return read_glue_task(NAMES[name.lower()], data, swap_pairs=config.swap_pairs)
    raise UserError(f"unknown task {name!r}{did_you_mean(name.lower(), TASKS)}")


def _read_own(data: Path, own: OwnTaskConfig) -> Classification | MultipleChoice:
    require(
        own.name.lower() not in (*NAMES, SWAG),
        f"own.name {own.name!r} is the name of another task; choose one that is not",
    )
    return read_own_task(data, own)
