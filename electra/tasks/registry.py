"""Every task by the name that a user types."""

from pathlib import Path
from typing import Any

from electra.config import FinetuneConfig, UserError, did_you_mean
from electra.tasks.conll import read_tagging_task
from electra.tasks.glue import GLUE, NAMES, read_glue_task
from electra.tasks.own import read_own_task
from electra.tasks.squad import read_squad_task
from electra.tasks.task import Task

TAGGING = "tagging"
OWN = "own"
SQUAD = ("squad-1.1", "squad-2.0")
TASKS = (*GLUE, *SQUAD, TAGGING, OWN)
SECTIONS = {"own": (OWN,), "squad": SQUAD, "tagging": (TAGGING,)}
"""Settings that only some tasks read."""


def read_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of this name with the examples in `data`; case does not matter.

    Raises:
        UserError: The name is unknown, a setting is for another task, or the files are not those of
            the task.
    """
    name = name.lower()
    name = NAMES.get(name, name)
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}{did_you_mean(name, TASKS)}")
    for section, tasks in SECTIONS.items():
        _refuse_changes(name, section, tasks, getattr(config, section))
    if name == OWN:
        return read_own_task(data, config.own)
    if name == TAGGING:
        tagging = config.tagging
        return read_tagging_task(
            data, word_column=tagging.word_column, tag_column=tagging.tag_column
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


def _refuse_changes(name: str, section: str, tasks: tuple[str, ...], settings: Any) -> None:
    for key, value in vars(settings).items():
        if name not in tasks and value != getattr(type(settings)(), key):
            raise UserError(
                f"{section}.{key} is for the task {' or '.join(map(repr, tasks))}, not for {name!r}"
            )


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
