"""What a suite has found: the record of each finished run, and comparisons over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import t as student

from electra.config import PretrainConfig, require
from electra.files import read_object
from electra.reproduce.plan import Plan, require_same
from electra.reproduce.suite import Row, Suite
from electra.reproduce.work import finetuning_folder, is_done
from electra.runs.manifest import read_manifest
from electra.runs.pretrained import read_run_config
from electra.settings import from_dict, to_dict

CONFIDENCE = 0.95
LEAST_SEEDS = 3
"""Below, no row is called higher or lower: the interval rests on a spread that is not known."""
TOO_FEW = "too few seeds"
POINTS = 100
"""Points of a score: the paper prints shares as per cent."""


def find_known(
    written: Mapping[Path, Sequence[dict[str, Any]]], suite: Suite, plan: Plan
) -> dict[str, dict[str, Any]]:
    """Return the records, by run, that results already have of a plan.

    Their runs need not be at hand: what one machine has computed, another one completes, and what
    one suite has computed, others need not.

    Args:
        written: All records of the results in each folder, of this suite and of others.
        suite: The suite.
        plan: Its plan.

    Raises:
        UserError: A run of the plan has other shards or settings there.
    """
    planned = {run.name: run for run in plan.runs}
    known = {}
    found = [(folder, record) for folder, records in written.items() for record in records]
    for folder, record in found:
        name = f"{folder / 'results.json'}: {record['run']}"
        if record["run"] not in planned or not set(suite.tasks) <= set(record["scores"]):
            continue
        require(
            record["shards"] == plan.shards, f"{name} is of other shards; choose another folder"
        )
        begun = from_dict(PretrainConfig, record["config"])
        require_same(name, begun, planned[record["run"]].config)
        for task, settings in suite.finetune_settings.items():
            require(
                record["finetune"][task] == settings,
                f"{name} was fine-tuned on {task} with {' '.join(record['finetune'][task])}, not "
                f"{' '.join(settings)}; choose another folder",
            )
        # Another suite may write the row's name with other capitals.
        known[record["run"]] = record | {"row": planned[record["run"]].row.name}
    return known


def read_all_records(out: Path) -> list[dict[str, Any]]:
    """Return the records of a suite's results, also those that its tables leave out.

    Raises:
        UserError: The folder holds no results of a suite.
    """
    path = out / "results.json"
    found = read_object(path)
    require("suite" in found, f"{path} is not of a suite; choose another folder")
    return [*found["records"], *found.get("others", [])]  # not in results of older versions


def read_records(
    suite: Suite, plan: Plan, runs: Path, known: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a record of each finished run of a plan: its cost, its scores, and where it was made.

    Args:
        suite: The suite.
        plan: Its plan.
        runs: The folder of all runs.
        known: Records of runs that are not in the folder, from `find_known`.

    Raises:
        UserError: A file of a finished run is damaged.
    """
    records = []
    for run in plan.runs:
        if not is_done(suite, run, runs):
            if run.name in known:
                records.append(known[run.name])
            continue
        results = read_object(runs / run.name / "results.json")
        manifest = read_manifest(runs / run.name)
        finetunings = {
            task: read_object(finetuning_folder(runs, run, task) / "results.json")
            for task in suite.tasks
        }
        records.append(
            {
                "run": run.name,
                "row": run.row.name,
                "fraction": run.fraction,
                "seed": run.seed,
                "steps": run.config.train.steps,
                "tokens": results["tokens"],
                "flops": run.flops,
                "seconds": results["seconds"],
                "heldout": results["heldout"],
                "scores": {task: found["median"] for task, found in finetunings.items()},
                "metrics": {task: found["metric"] for task, found in finetunings.items()},
                "collapsed": [t for t, found in finetunings.items() if found["num_degenerate"]],
                "branched_from": manifest.get("branched_from"),
                "commits": sorted({str(each.get("commit")) for each in manifest["sessions"]}),
                "devices": sorted({_name_machine(each) for each in manifest["sessions"]}),
                "shards": manifest["shards"]["sha256"],
                "config": to_dict(read_run_config(runs / run.name)),
                "finetune": suite.finetune_settings,
            }
        )
    return records


def _name_machine(session: Mapping[str, Any]) -> str:
    """Return device and dtype, which is not the same on every CPU."""
    return f"{session.get('device')}, {str(session.get('dtype')).removeprefix('torch.')}"


class Interval(NamedTuple):
    """A mean over seeds, and its 95% interval by Student's t; of a single seed, no interval."""

    mean: float
    half_width: float | None

    @property
    def excludes_zero(self) -> bool:
        """Return whether the whole interval lies on one side of 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def __str__(self) -> str:
        spread = "" if self.half_width is None else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{spread}"


def estimate(values: Sequence[float]) -> Interval:
    """Return the mean of some values and its 95% interval."""
    mean, number = statistics.fmean(values), len(values)
    if number < 2:
        return Interval(mean, None)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, number - 1))
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(number))


def estimate_gain(
    own: Mapping[int, float], base: Mapping[int, float], others: Sequence[Mapping[int, float]]
) -> Interval:
    """Return the mean gain over the seeds that both rows have, and its 95% interval.

    This is a two-way analysis of variance: rows, and seeds as blocks. With few seeds the noise of
    one pair of rows is known badly, so it is taken from all rows with these seeds, except those
    that are noisier than the rest. Where the pair is alone, or one of the two is noisier, the
    interval is that of the paired t-test.

    Args:
        own: Score by seed.
        base: The same of the row it is compared with; has a seed of `own`.
        others: The same of the other rows that are compared with `base`. They enter the noise, and
            only if they have all of the common seeds.
    """
    seeds = sorted(own.keys() & base.keys())
    mean = statistics.fmean(own[seed] - base[seed] for seed in seeds)
    if len(seeds) < 2:
        return Interval(mean, None)
    rows = [own, base, *(each for each in others if each.keys() >= set(seeds))]
    scores = _leave_out_noisier(np.array([[row[seed] for seed in seeds] for row in rows]))
    degrees = _count_degrees(scores)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, degrees))
    return Interval(mean, quantile * math.sqrt(2 * _sum_noise(scores) / degrees / len(seeds)))


def _leave_out_noisier(scores: np.ndarray) -> np.ndarray:
    """Return scores [rows, seeds] without rows that are noisier than the rest.

    The first two are the pair that is compared; if one of them is noisier, they stay alone. An
    F test compares what the noisiest row adds to the sum of squares with that of the rest, which is
    independent of it. Its level is divided by the number of rows, because the noisiest is tested.
    Two rows are too few to say that a third is noisier.
    """
    while len(scores) > 3:
        without = [_sum_noise(np.delete(scores, row, axis=0)) for row in range(len(scores))]
        noisiest = int(np.argmin(without))
        rest = np.delete(scores, noisiest, axis=0)
        own = (_sum_noise(scores) - _sum_noise(rest)) / (scores.shape[1] - 1)
        others = _sum_noise(rest) / _count_degrees(rest)
        level = (1 - CONFIDENCE) / len(scores)
        if own <= others * fisher.isf(level, scores.shape[1] - 1, _count_degrees(rest)):
            break
        scores = scores[:2] if noisiest < 2 else rest
    return scores


def _sum_noise(scores: np.ndarray) -> float:
    """Return the sum of squares of [rows, seeds] around the means of rows and of seeds."""
    noise = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
    return float((noise**2).sum())


def _count_degrees(scores: np.ndarray) -> int:
    """Return the degrees of freedom of the noise of [rows, seeds]."""
    return (scores.shape[0] - 1) * (scores.shape[1] - 1)


class Cell(NamedTuple):
    """A row of the suite after a fraction of the budget, over the seeds that are finished."""

    row: Row
    fraction: float
    name: str
    seeds: tuple[int, ...]
    flops: float
    """True FLOPs of a run."""
    paper_flops: float
    """FLOPs of a run by the paper's count."""
    score: Interval
    """Mean of the tasks, points."""
    tasks: dict[str, Interval]
    against: str
    """Name of the cell that it is compared with."""
    gain: Interval | None
    """Over that cell, seed by seed; None for that cell itself, or without a common seed."""
    num_pairs: int
    """Seeds that both rows have."""
    paper: float | None
    paper_gain: float | None
    shared: bool
    """Whether it shares the stable part of a longer run."""

    @property
    def verdict(self) -> str:
        """Return in words whether the row differs from the reference, and as in the paper."""
        if self.gain is None:
            return "-"
        if self.num_pairs < LEAST_SEEDS:
            return TOO_FEW
        if not self.gain.excludes_zero:
            return "not separable"
        side = "higher" if self.gain.mean > 0 else "lower"
        expected = self.row.side
        if self.paper_gain:
            expected = "higher" if self.paper_gain > 0 else "lower"
        if not expected:
            return side
        return f"{side}, {'as in' if side == expected else 'against'} the paper"


def compare(suite: Suite, records: Sequence[dict[str, Any]]) -> list[Cell]:
    """Return a cell for each row and fraction of which a run is finished, in the suite's order."""
    found: dict[tuple[str, float], dict[int, dict[str, Any]]] = {}
    for record in records:
        found.setdefault((record["row"], record["fraction"]), {})[record["seed"]] = record
    rows = {row.name: row for row in suite.rows}
    scores = {
        place: {seed: _score(suite, record) for seed, record in own.items()}
        for place, own in found.items()
    }
    references = {
        (row.name, fraction): _find_reference(suite, rows[row.against or suite.reference], fraction)
        for row in suite.rows
        for fraction in row.fractions or suite.fractions
    }
    cells = []
    for row in suite.rows:
        for fraction in sorted(row.fractions or suite.fractions):
            place = (row.name, fraction)
            own = found.get(place)
            if not own:
                continue
            reference = references[place]
            paper = _find_paper(row, suite, fraction)
            base_paper = _find_paper(rows[reference[0]], suite, reference[1])
            base = scores.get(reference, {})
            others = [
                scores[each]
                for each, its_reference in references.items()
                if its_reference == reference and each in scores and each not in (place, reference)
            ]
            common = own.keys() & base.keys()
            some = next(iter(own.values()))
            cells.append(
                Cell(
                    row,
                    fraction,
                    name_cell(*place),
                    tuple(sorted(own)),
                    some["flops"]["true"],
                    some["flops"]["paper"],
                    estimate(list(scores[place].values())),
                    {
                        task: estimate([POINTS * record["scores"][task] for record in own.values()])
                        for task in suite.tasks
                    },
                    name_cell(*reference),
                    estimate_gain(scores[place], base, others)
                    if common and place != reference
                    else None,
                    len(common),
                    paper,
                    None if paper is None or base_paper is None else paper - base_paper,
                    any(record["branched_from"] for record in own.values()),
                )
            )
    return cells


def name_cell(row: str, fraction: float) -> str:
    """Return the name of a row after a fraction of the budget."""
    return row if fraction == 1 else f"{row} after {100 * fraction:.4g}%"


def _find_reference(suite: Suite, reference: Row, fraction: float) -> tuple[str, float]:
    """Return row and fraction of the cell to compare with: of the same fraction, or the largest."""
    fractions = reference.fractions or suite.fractions
    return reference.name, fraction if fraction in fractions else max(fractions)


def _find_paper(row: Row, suite: Suite, fraction: float) -> float | None:
    fractions = row.fractions or suite.fractions
    return row.paper[fractions.index(fraction)] if row.paper else None


def _score(suite: Suite, record: dict[str, Any]) -> float:
    """Return the mean over the suite's tasks, points; a run may have been scored on more."""
    return POINTS * statistics.fmean(record["scores"][task] for task in suite.tasks)
