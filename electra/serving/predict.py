"""Prediction: a fine-tuned model and a file without labels in, an answer to each input out."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.config import UserError, require
from electra.corpus.vocabulary import replace_surrogates
from electra.files import write_text
from electra.finetuning.network import load_network
from electra.finetuning.network import predict as run_network
from electra.runs.finetuned import Finetuned
from electra.tasks.registry import read_inputs
from electra.tasks.task import Task
from electra.training.machine import choose_device, prepare_process

FORMATS = (".jsonl", ".tsv")
SPLIT = "input"


class Answers(NamedTuple):
    """What a model says of a file."""

    records: list[dict[str, Any]]
    """One for each input, in their order; `Task.describe_answers` tells what is in them."""
    num_cut: int
    """Inputs of which tokens were cut off."""


def ask(finetuned: Finetuned, path: Path, columns: Sequence[str] = ()) -> Task:
    """Return the model's task with the inputs of a file.

    Args:
        finetuned: The model.
        path: The file; inputs.py tells what may be in it.
        columns: Names of its columns, where they are not those of training.

    Raises:
        UserError: The file cannot be read, is empty, or does not fit.
    """
    return read_inputs(finetuned.facts, SPLIT, path, columns)


def answer(
    finetuned: Finetuned,
    task: Task,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Answers:
    """Return the model's answers to all inputs of a task.

    On the machine it was trained on they are those that training wrote, digit by digit.

    Args:
        finetuned: The model.
        task: From `ask`.
        progress: Is told the items done, and all.
    """
    config = finetuned.config
    prepare_process(config.threads)
    device = choose_device("cpu" if config.device == "cpu" else "auto")
    model = load_network(finetuned, task, device)
    rows = task.encode(finetuned.tokenizer, config.sequence_length)[SPLIT]
    outputs = run_network(model, rows, device, progress)
    return Answers(task.describe_answers(SPLIT, rows, outputs), rows.num_cut)


def check_format(path: Path) -> None:
    """Refuse a file that answers cannot be written to.

    Raises:
        UserError: It is neither .jsonl nor .tsv, or exists.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UserError(f"--out {path} must be a {' or '.join(FORMATS)} file, not {kind!r}")
    require(not path.exists(), f"{path} exists already; remove it or choose another --out")


def write_answers(path: Path, answers: Answers) -> None:
    """Write the records, whole or not at all: JSON lines, or a table with their names above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_table = path.suffix.lower() == ".tsv"
    lines = list_rows(answers) if is_table else list_json(answers)
    write_text(path, "".join(line + "\n" for line in lines))


def list_json(answers: Answers) -> list[str]:
    """Return each record as a line of JSON."""
    return [replace_surrogates(json.dumps(each, ensure_ascii=False)) for each in answers.records]


def list_rows(answers: Answers) -> list[str]:
    """Return the names and each record's values with tabs between.

    Tabs and line breaks in a text become spaces. The texts of a list are parted by spaces, and
    white space in them becomes "_".
    """
    rows = [list(answers.records[0]), *(list(each.values()) for each in answers.records)]
    return [replace_surrogates("\t".join(map(_cell, row))) for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join("_".join(text.split()) or "_" for text in value)
    return "".join(" " if char in "\t\r\n" else char for char in str(value))
