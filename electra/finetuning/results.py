"""What is written about a fine-tuned task: facts, failures, summary over seeds."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra.config import require
from electra.files import read_object
from electra.tasks.choice import MultipleChoice
from electra.tasks.classification import Classification
from electra.tasks.family import Constant, Family
from electra.tasks.metrics import score
from electra.tasks.predictions import average, read_predictions
from electra.tasks.rows import Outputs, Rows
from electra.tasks.task import Task

CHANCE = 0.99
"""A run whose last steps have more than this share of the best constant answer's loss has learnt
nothing."""


def find_failures(
    family: Family, dev: Rows, outputs: Outputs, last_loss: float, constant: Constant
) -> dict[str, Any]:
    """Return whether a run collapsed, and notes on what went wrong.

    Args:
        family: The family of the task.
        dev: Rows of dev.
        outputs: The network's outputs for them.
        last_loss: Mean loss over the last steps of training.
        constant: The best constant answer.
    """
    notes = [family.describe_collapse(dev, outputs)]
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
        "metric": task.family.headline,
        **task.family.facts(),
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
    """Return the spread of the headline over the seeds as drawn, failed ones included.

    Beside it stands that with each collapsed seed replaced by the last run in its place, which is a
    selection: None if no seed was replaced. Time and speed are of all runs.
    """
    runs = [read_seed(path) for path in folder.glob("seed-*[0-9]/results.json")]
    runs.sort(key=lambda record: record["seed"])
    drawn = {record["seed"]: record for record in runs if "replaces" not in record}
    others = {record["seed"]: record for record in runs if "replaces" in record}
    notes = [f"{_name_seed(record)}: {note}" for record in runs for note in record["notes"]]
    with_replacements = None
    if others:
        last = {record["replaces"]: seed for seed, record in others.items()}
        standing = {seed: last.get(seed, seed) for seed in drawn}
        spread = _measure_spread(task, [(drawn | others)[seed] for seed in standing.values()])
        with_replacements = {**spread, "seeds": {str(n): other for n, other in standing.items()}}
        changes = ", ".join(f"seed {other} in place of {n}" for n, other in sorted(last.items()))
        notes.append(
            f"the median is that of the seeds as drawn; with {changes} it is {spread['median']:.3f}"
        )
    return {
        **_measure_spread(task, drawn.values()),
        "with_replacements": with_replacements,
        "ensemble": score_ensemble(folder, task, list(drawn)),
        "num_degenerate": sum(record["degenerate"] for record in drawn.values()),
        "notes": notes,
        "train_seconds": sum(record["train_seconds"] for record in runs),
        "examples_per_second": statistics.median(r["examples_per_second"] for r in runs),
        "commit": " and ".join(sorted({str(record["commit"]) for record in runs})),
        "seeds": {str(seed): record for seed, record in drawn.items()},
        "replacements": {str(seed): record for seed, record in others.items()},
    }


def _measure_spread(task: Task, records: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    values = [record["scores"][task.family.headline] for record in records]
    return {
        "median": statistics.median(values),
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
    }


def _name_seed(record: dict[str, Any]) -> str:
    place = f", in place of seed {record['replaces']}" if "replaces" in record else ""
    return f"seed {record['seed']}{place}"


def score_ensemble(folder: Path, task: Task, seeds: Sequence[int]) -> dict[str, float]:
    """Return dev's metrics of the mean of these seeds' probabilities, or numbers, as written.

    Nothing of a single seed, where a seed's answers are not finite, and of families whose answers
    are neither.
    """
    if len(seeds) < 2 or not isinstance(task.family, Classification | MultipleChoice):
        return {}
    together = average([read_predictions(folder / f"seed-{n}/predictions.tsv") for n in seeds])
    if not np.isfinite(together.values).all():
        return {}
    return score(task.family.metrics, together.right_answers, together.answers)
