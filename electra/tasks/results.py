"""What is written about a fine-tuned task: facts, failures, summary over seeds."""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from electra.config import require
from electra.files import read_object
from electra.tasks.choice import MultipleChoice
from electra.tasks.classification import Classification
from electra.tasks.metrics import score
from electra.tasks.predictions import average, read_predictions
from electra.tasks.rows import Outputs, Rows
from electra.tasks.task import Constant, Task

CHANCE = 0.99
"""A run whose last steps have more than this share of the best constant answer's loss has learnt
nothing."""


def find_failures(
    task: Task, dev: Rows, outputs: Outputs, last_loss: float, constant: Constant
) -> dict[str, Any]:
    """Return whether a run collapsed, and notes on what went wrong.

    Args:
        task: The question.
        dev: Rows of dev.
        outputs: What was said of them.
        last_loss: Mean over the last steps of training.
        constant: What a constant answer would have given.
    """
    notes = [task.describe_collapse(dev, outputs)]
    if not math.isfinite(last_loss):
        notes.append("the loss is no longer finite")
    elif last_loss > CHANCE * constant.loss:
        notes.append(
            f"the loss ends at {last_loss:.3f}, that of a constant answer is {constant.loss:.3f}"
        )
    notes = [note for note in notes if note]
    return {"degenerate": bool(notes), "notes": notes}


def finite(value: float) -> float | None:
    """Return the value as JSON can hold it."""
    return value if math.isfinite(value) else None


def describe_task(task: Task, rows: dict[str, Rows], constant: Constant) -> dict[str, Any]:
    """Return what is known of a task before any training, the constant answer's scores included."""
    return {
        "task": task.name,
        "metric": task.headline,
        **task.facts(),
        "columns": list(task.columns),
        "num_examples": {split: len(examples) for split, examples in task.examples.items()},
        "num_items": {split: len(each) for split, each in rows.items()},
        "num_cut": {split: each.num_cut for split, each in rows.items()},
        "majority": constant.scores,
    }


SEED_KEYS = (
    *("seed", "scores", "degenerate", "notes"),
    *("train_seconds", "examples_per_second", "commit"),
)
"""What every seed's results.json has."""


def read_seed(path: Path) -> dict[str, Any]:
    """Return a finished seed's results.json.

    Raises:
        UserError: It is missing or damaged; without its folder the seed is run again.
    """
    record = read_object(path)
    missing = [key for key in SEED_KEYS if key not in record]
    require(
        not missing,
        f"{path} lacks {', '.join(missing)}; remove {path.parent} to run the seed again",
    )
    return record


def summarise(folder: Path, task: Task) -> dict[str, Any]:
    """Return the spread of the headline over every finished seed, failed ones included."""
    records = [read_seed(path) for path in folder.glob("seed-*[0-9]/results.json")]
    records.sort(key=lambda record: record["seed"])
    values = [record["scores"][task.headline] for record in records]
    return {
        "median": statistics.median(values),
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "ensemble": score_ensemble(folder, task),
        "num_degenerate": sum(record["degenerate"] for record in records),
        "notes": [
            f"seed {record['seed']}: {note}" for record in records for note in record["notes"]
        ],
        "train_seconds": sum(record["train_seconds"] for record in records),
        "examples_per_second": statistics.median(r["examples_per_second"] for r in records),
        "commit": " and ".join(sorted({str(record["commit"]) for record in records})),
        "seeds": {str(record["seed"]): record for record in records},
    }


def score_ensemble(folder: Path, task: Task) -> dict[str, float]:
    """Return dev's metrics of the mean of all seeds' probabilities, or numbers, as written.

    Nothing of a single seed, where a seed's answers are not finite, and of families whose answers
    are neither.
    """
    paths = sorted(folder.glob("seed-*[0-9]/predictions.tsv"))
    if len(paths) < 2 or not isinstance(task, Classification | MultipleChoice):
        return {}
    together = average([read_predictions(path) for path in paths])
    if not np.isfinite(together.values).all():
        return {}
    return score(task.metrics, together.right_answers, together.answers)
