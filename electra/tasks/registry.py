"""Tasks by the name that a user types, the user's own tasks, and families by their saved name."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra.config import OWN_METRICS, FinetuneConfig, OwnTaskConfig
from electra.errors import UserError, require, require_choice
from electra.files import require_regular
from electra.settings import override_from_toml
from electra.tasks.choice import MultipleChoice, choice_task, read_choice_questions, read_swag
from electra.tasks.classification import Classification, Example, read_examples
from electra.tasks.family import Family, Task
from electra.tasks.glue import GLUE, NAMES, read_glue_task
from electra.tasks.inputs import find_files
from electra.tasks.squad import SpanExtraction, read_squad_task
from electra.tasks.tagging import Tagging, read_tagging_task
from electra.text.tables import TABLE_FORMATS, TableFile, read_table

OWN = "own"
SWAG = "swag"
TAGGING = "tagging"
SQUAD = ("squad-1.1", "squad-2.0")
TASKS = (*GLUE, *SQUAD, SWAG, TAGGING, OWN)
TASK_FILE = ".toml"
FAMILIES: dict[str, type[Family]] = {
    "classification": Classification,
    "choice": MultipleChoice,
    "squad": SpanExtraction,
    "tagging": Tagging,
}
"""Each family by the name in a saved model's facts."""
OWN_FILES = {"train": "train", "dev": "dev|validation|valid|val", "test": "test"}
"""Names of the files of the user's own task, without format, as regular expressions."""
TEXT_COLUMNS = ("text", "sentence", "text_a", "sentence1")
TEXT_B_COLUMNS = ("text_b", "sentence2")


def read_task(name: str, data: Path, config: FinetuneConfig) -> Task:
    """Return the task of this name with the examples in `data`; names ignore case.

    A name that ends with .toml is a file with the fields of OwnTaskConfig.

    Raises:
        UserError: The name is unknown, a setting is for another task, or the files are not those of
            the task.
    """
    config, path = resolve_own(name, config), Path(name)
    if path.suffix == TASK_FILE:
        task = _read_own(data, config.own)
        return dataclasses.replace(task, files=(path, *task.files))
    name = NAMES.get(name.lower(), name.lower())
    require_choice("task", name, TASKS)
    for section, tasks in (("squad", SQUAD), ("tagging", (TAGGING,))):
        settings = getattr(config, section)
        for key, value in vars(settings).items():
            is_set = value != getattr(type(settings)(), key)
            require(
                name in tasks or not is_set,
                f"{section}.{key} is for {' and '.join(tasks)}, not for {name}",
            )
    if name == OWN:
        return _read_own(data, config.own)
    if name == SWAG:
        return read_swag(data)
    if name == TAGGING:
        return read_tagging_task(data, **vars(config.tagging))
    if name in SQUAD:
        return read_squad_task(name, data, config.squad, reference=config.mode == "reference")
    return read_glue_task(name, data, swap_pairs=config.swap_pairs)


def resolve_own(name: str, config: FinetuneConfig) -> FinetuneConfig:
    """Return the config with the fields of a task's file in `own`.

    Raises:
        UserError: The file does not fit, or `own` is set for a task that has a description
            already.
    """
    if name.lower() == OWN:
        return config
    default = own = OwnTaskConfig()
    if Path(name).suffix == TASK_FILE:
        require_regular(Path(name))
        own = override_from_toml(default, Path(name))
    for key, value in vars(config.own).items():
        require(
            value in (getattr(default, key), getattr(own, key)),
            f"own.{key} is for the task {OWN!r}; {name!r} says what its files are",
        )
    return dataclasses.replace(config, own=own)


def restore_family(facts: dict[str, Any]) -> Family:
    """Return the family of a saved model.

    Raises:
        UserError: The family is unknown.
    """
    family = facts.get("family", "")
    require_choice("family of tasks", family, FAMILIES)
    return FAMILIES[family].from_facts(facts)


def read_records(
    facts: dict[str, Any], path: Path, columns: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the records in a file for a saved model to answer.

    Args:
        facts: Those of the model.
        path: The file, without labels; `Family.read_records` says which formats a family reads.
        columns: Names of the columns to read, if they are not those of training.

    Raises:
        UserError: The family is unknown, or the file cannot be read, is empty or does not fit.
    """
    return restore_family(facts).read_records(path, columns, facts["columns"])


def _read_own(data: Path, config: OwnTaskConfig) -> Task:
    """Return a task from a folder's train, dev and, if there is one, test file.

    The labels are those of train, sorted; whole numbers are names. The range of a regression is
    that of train; labels of the other files may be outside.
    """
    require(
        config.name.lower() not in {*NAMES, *TASKS} - {OWN},
        f"own.name {config.name!r} is the name of another task; choose one that is not",
    )
    tables = {}
    for split, names in OWN_FILES.items():
        named = getattr(config, split)
        chosen = [] if named is None else [named]
        for path in find_files(data, split, names, TABLE_FORMATS, chosen=chosen, setting=OWN):
            tables[split] = read_table(path)
    label_of = {split: config.label for split in tables}
    if "test" in tables and config.label not in tables["test"].columns:
        del label_of["test"]
    texts = _choose_texts(tables["train"], config)
    if config.kind == "choice":
        columns = [column.strip() for column in (config.choices or "").split(",")]
        questions = {
            split: read_choice_questions(table, texts[0], columns, label_of.get(split))
            for split, table in tables.items()
        }
        return choice_task(config.name, tables, questions, [texts[0], *columns, config.label])
    is_regression = config.kind == "regression"
    labels = () if is_regression else _collect_labels(tables["train"], config.label)
    examples = {
        split: read_examples(table, texts, label_of.get(split), labels or (-math.inf, math.inf))
        for split, table in tables.items()
    }
    label_range = _find_range(tables, examples, config.label) if is_regression else None
    metrics = OWN_METRICS[config.kind]
    headline = config.metric or metrics[0]
    metrics = (headline, *(metric for metric in metrics if metric != headline))
    return Task(
        config.name,
        Classification(metrics, labels, label_range, has_pairs=len(texts) > 1),
        examples,
        files=tuple(table.path for table in tables.values()),
        columns=(*texts, config.label),
    )


def _choose_texts(train: TableFile, config: OwnTaskConfig) -> list[str]:
    """Return the column of the text, or those of both texts of a pair."""
    text, text_b = config.text, config.text_b
    if text is None:
        text = next((column for column in TEXT_COLUMNS if column in train.columns), "")
        require(
            text != "",
            f"{train.path}: no column named {', '.join(TEXT_COLUMNS)}; choose one of "
            f"{', '.join(train.columns)} with own.text",
        )
        detected = (column for column in TEXT_B_COLUMNS if column in train.columns)
        text_b = text_b or next(detected, None)
    return [text] if text_b is None else [text, text_b]


def _collect_labels(train: TableFile, column: str) -> tuple[str, ...]:
    """Return the names of a classification's labels, sorted."""
    names = train.column(column)
    labels = tuple(sorted(set(names)))
    require(
        len(labels) > 1, f"{train.path}: every {column!r} is {labels[0]!r}; two labels are needed"
    )
    require(
        2 * len(labels) <= len(names),
        f"{train.path}: {column!r} has {len(labels)} labels in {len(names)} rows; a label must "
        "occur twice on average. Choose another column with own.label, or own.kind=regression if "
        "it holds numbers",
    )
    for name in labels:
        if name == "" or not name.isprintable():
            place = train.place(names.index(name))
            raise UserError(f"{place}: the label {name!r} must be printable and not empty")
    return labels


def _find_range(
    tables: dict[str, TableFile], examples: dict[str, list[Example]], column: str
) -> tuple[float, float]:
    """Return the least and the greatest label of train, if every label can be scaled by them."""
    numbers = [example.label for example in examples["train"] if example.label is not None]
    least, greatest = float(min(numbers)), float(max(numbers))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        size = np.float32(greatest) - np.float32(least)
        require(
            size != 0,
            f"{tables['train'].path}: every {column!r} is {least:g} in float32; two different "
            "numbers are needed",
        )
        for split, table in tables.items():
            for number, (_, _, label) in enumerate(examples[split]):
                if label is None or np.isfinite((np.float32(label) - np.float32(least)) / size):
                    continue
                raise UserError(
                    f"{table.place(number)}: the label {label:g} is beyond float32 on the scale "
                    f"from {least:g} to {greatest:g}"
                )
    return least, greatest
