"""The content of results.json: facts of the task, failures, summary over seeds."""

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from electra.errors import require
from electra.files import read_object
from electra.tasks.family import Constant, Family, Task
from electra.tasks.rows import Outputs, Rows

CHANCE = 0.99
"""A run has learnt nothing if its last steps have more than this share of the loss of the best
constant answer."""


def find_failures(
    family: Family, dev: Rows, outputs: Outputs, last_loss: float, constant: Constant
) -> dict[str, Any]:
    """Return whether a run collapsed ("degenerate"), and notes that say why.

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
    """Return the value, or None if it is NaN or infinite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def describe_task(task: Task, rows: dict[str, Rows], constant: Constant) -> dict[str, Any]:
    """Return the facts of a task, its sizes and the scores of the best constant answer."""
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
"""Keys of every seed's results.json."""


def read_seed(path: Path) -> dict[str, Any]:
    """Return a finished seed's results.json.

    Raises:
        UserError: The file is missing or damaged.
    """
    record = read_object(path)
    missing = [key for key in SEED_KEYS if key not in record]
    require(
        not missing,
        f"{path} lacks {', '.join(missing)}; remove {path.parent} to run the seed again",
    )
    return record


def summarise(folder: Path, task: Task) -> dict[str, Any]:
    """Return the statistics of the headline metric over the seeds as drawn.

    Collapsed seeds count. "with_replacements" has the same statistics with each collapsed seed
    replaced by its last replacement, which is a selection; None if no seed was replaced. Time and
    speed cover all runs.
    """
    runs = [read_seed(path) for path in folder.glob("seed-*[0-9]/results.json")]
    runs.sort(key=lambda record: record["seed"])
    drawn = {record["seed"]: record for record in runs if "replaces" not in record}
    others = {record["seed"]: record for record in runs if "replaces" in record}
    notes = [
        f"{_name_seed(record)} collapsed: {'; '.join(record['notes'])}"
        for record in runs
        if record["notes"]
    ]
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
    ensemble = {}
    if len(drawn) > 1:
        ensemble = task.family.score_ensemble([folder / f"seed-{seed}" for seed in drawn])
    return {
        **_measure_spread(task, drawn.values()),
        "with_replacements": with_replacements,
        "ensemble": ensemble,
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
    place = f", in place of seed {record['replaces']}," if "replaces" in record else ""
    return f"seed {record['seed']}{place}"
