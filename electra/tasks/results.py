"""What is written about a fine-tuned task: scores, failures, predictions, summary over seeds."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra.tasks.metrics import score, score_majority
from electra.tasks.rows import Rows, TaskRows
from electra.tasks.task import Task


def score_rows(task: Task, rows: Rows, logits: Tensor) -> dict[str, float]:
    """Return the scores of what the logits say; none where the labels are not known."""
    if not len(rows.labels) or rows.labels[0].isnan() or rows.labels[0] < 0:
        return {}
    return score(task.metrics, rows.labels.tolist(), decide(task, logits).tolist())


def decide(task: Task, logits: Tensor) -> Tensor:
    """Return the likeliest label of each row, or the number that was predicted, in [0, 1]."""
    return logits.argmax(dim=1) if task.labels else logits.squeeze(1)


def find_failures(
    task: Task, dev: Rows, logits: Tensor, history: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return whether a run collapsed to one answer, and notes on what went wrong."""
    notes = []
    predicted = decide(task, logits).unique()
    is_degenerate = len(predicted) == 1 and len(dev.labels.unique()) > 1
    if is_degenerate:
        answer = repr(task.labels[int(predicted)]) if task.labels else f"{predicted.item():.3f}"
        notes.append(f"every dev prediction is {answer}")
    if any(epoch["train_loss"] is None for epoch in history):
        notes.append("the loss is no longer finite")
    return {"degenerate": is_degenerate, "notes": notes}


def finite(value: float) -> float | None:
    """Return the value as JSON can hold it."""
    return value if math.isfinite(value) else None


def write_predictions(path: Path, task: Task, rows: Rows, logits: Tensor) -> None:
    """Write, for each example: its number from 0, label if known, prediction, probabilities.

    Of a regression: label and prediction as numbers of its range.
    """
    lines = [["index", "label", "prediction", *(f"prob_{label}" for label in task.labels)]]
    if task.label_range:
        least, greatest = task.label_range
        pairs = torch.stack([rows.labels, decide(task, logits)], dim=1)
        for number, pair in enumerate((pairs * (greatest - least) + least).tolist()):
            lines.append([str(number), *("" if math.isnan(x) else f"{x:.4f}" for x in pair)])
    else:
        names = (*task.labels, "")  # label -1 is unknown
        columns = rows.labels, decide(task, logits), logits.softmax(dim=1)
        for number, (label, guess, probs) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            lines.append([str(number), names[label], names[guess], *(f"{p:.6f}" for p in probs)])
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


def describe_task(task: Task, rows: TaskRows) -> dict[str, Any]:
    """Return what is known of a task before any training, the majority guess's scores included."""
    return {
        "task": task.name,
        "metric": task.headline,
        "labels": list(task.labels),
        "columns": list(task.columns),
        "num_train": len(task.train),
        "num_dev": len(task.dev),
        "num_test": len(task.test),
        "num_cut": {
            "train": rows.train.num_cut,
            "dev": rows.dev.num_cut,
            "test": rows.test.num_cut,
        },
        "majority": score_majority(
            task.metrics, rows.train.labels.tolist(), rows.dev.labels.tolist()
        ),
    }


def summarise(folder: Path, headline: str) -> dict[str, Any]:
    """Return the spread of the headline over every finished seed, failed ones included."""
    records = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in folder.glob("seed-*[0-9]/results.json")
    ]
    records.sort(key=lambda record: record["seed"])
    values = [record["scores"][headline] for record in records]
    return {
        "median": statistics.median(values),
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "num_degenerate": sum(record["degenerate"] for record in records),
        "notes": [
            f"seed {record['seed']}: {note}" for record in records for note in record["notes"]
        ],
        "train_seconds": sum(record["train_seconds"] for record in records),
        "examples_per_second": statistics.median(r["examples_per_second"] for r in records),
        "commit": " and ".join(sorted({str(record["commit"]) for record in records})),
        "seeds": {str(record["seed"]): record for record in records},
    }
