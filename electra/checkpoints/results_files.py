"""The shapes of results and of a fine-tuning's settings; docs/ARTEFACTS.md has their meaning."""

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from electra.checkpoints.manifest import Flops
from electra.errors import require
from electra.files import read_object
from electra.settings import AtLeast
from electra.shapes import require_fields

Scores = dict[str, float]
"""Scores by metric."""
Count = Annotated[int, AtLeast(0)]


class RunResults(TypedDict):
    """results.json of a pre-training."""

    steps: Count
    tokens: Count
    seconds: float
    flops: Flops
    heldout: dict[str, float | str | None] | None


class SeedResults(TypedDict, total=False):
    """results.json of a seed, and its record in that of the fine-tuning."""

    seed: int
    scores: Scores
    other_scores: dict[str, Scores]
    degenerate: bool
    notes: list[str]
    train_seconds: float
    examples_per_second: float
    commit: str | None
    replaces: int
    max_windows: int
    join: str


class Replaced(TypedDict):
    """The statistics with the replacements of collapsed seeds."""

    median: float
    seeds: dict[str, int]


class Results(TypedDict, total=False):
    """results.json of a fine-tuning, or of a grid, which has "best" in place of "seeds"."""

    task: str
    metric: str
    start: str
    source: str
    after: str
    from_scratch: bool
    columns: list[str]
    label_columns: list[str]
    guess: str
    majority: dict[str, float | None]
    num_examples: dict[str, Count]
    num_items: dict[str, Count]
    median: float
    std: float | None
    num_degenerate: Count
    with_replacements: Replaced | None
    seeds: dict[str, SeedResults]
    replacements: dict[str, SeedResults]
    best: str
    commit: str | None
    device: str | None
    notes: list[str]


class Begun(TypedDict):
    """config.json of a fine-tuning or a grid."""

    task: str
    start: str
    files: dict[str, str]
    config: NotRequired[dict[str, Any]]
    grid: NotRequired[dict[str, dict[str, Any]]]


def read_results(folder: Path, *needed: str) -> dict[str, Any]:
    """Return the `Results` of a fine-tuning or a grid; one that lacks a needed field is refused.

    Seeds are named by their numbers, and what they score has the metric.
    """
    path = folder / "results.json"
    results = read_object(path, Results)
    require_fields(results, needed, path)
    for part in ("seeds", "replacements"):
        for number, record in results.get(part, {}).items():
            metrics = [results["metric"]] if "metric" in results and "scores" in record else []
            require_fields(record.get("scores", {}), metrics, path, part, number, "scores")
            require(number.isdecimal(), f"{path}: {part} must be named by numbers, not {number!r}")
    return results
