"""Every task by the name that a user types."""

from pathlib import Path

from electra.config import FinetuneConfig, OwnTaskConfig, UserError, did_you_mean
from electra.tasks.choice import read_swag
from electra.tasks.glue import GLUE, NAMES, read_glue_task
from electra.tasks.own import read_own_task
from electra.tasks.task import Task

OWN = "own"
SWAG = "swag"
TASKS = (*GLUE, SWAG, OWN)


def read_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of this name with the examples in `data`; case does not matter.

    Raises:
        UserError: The name is unknown, a setting of `own` is given for another task, or the files
            are not those of the task.
    """
    if name.lower() == OWN:
        return read_own_task(data, config.own)
    if name.lower() not in (*NAMES, SWAG):
        raise UserError(f"unknown task {name!r}{did_you_mean(name.lower(), TASKS)}")
    for key, value in vars(config.own).items():
        if value != getattr(OwnTaskConfig(), key):
            raise UserError(f"own.{key} is for the task {OWN!r}; {name!r} has its own files")
    if name.lower() == SWAG:
        return read_swag(data)
    return read_glue_task(NAMES[name.lower()], data, swap_pairs=config.swap_pairs)
