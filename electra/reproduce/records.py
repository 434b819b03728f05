"""Findings of a suite: the record of each finished run, and comparisons over seeds."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import t as student

from electra.assignments import from_dict, to_dict
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import Branch, Flops, read_manifest
from electra.checkpoints.results_files import Count, RunResults, Scores, read_results
from electra.errors import UserError, require
from electra.files import check_hashes, read_object
from electra.reports.glossary import format_interval
from electra.reproduce.plan import Plan, PlannedRun, Setup, find_digest, require_same
from electra.reproduce.suite import Row, Suite
from electra.shapes import require_fields
from electra.training.config import PretrainConfig

LEAST_SEEDS = 3
"""With fewer, no row is called higher or lower: the spread behind the interval is unknown."""
TOO_FEW = "too few seeds"
POINTS = 100
"""Points of a score: the paper prints shares as per cent."""
Record = dict[str, Any]
"""A `RunRecord`."""


class RunRecord(TypedDict):
    """A run in results.json of a suite: what it cost, its scores, and where it was made.

    Fields by task have an entry for each task of the suite.
    """

    run: str
    """Name of its folder."""
    row: str
    fraction: float
    """Share of the budget."""
    seed: int
    steps: Count
    tokens: Count
    flops: Flops
    seconds: float
    heldout: dict[str, float | str | None] | None
    """The last held-out record."""
    scores: Scores
    """By task, as fractions."""
    metrics: dict[str, str]
    """By task, what the score is."""
    chosen: NotRequired[dict[str, str]]
    """By task, the combination of the grid that dev chose."""
    collapsed: list[str]
    """Tasks on which the fine-tuning is no better than a constant answer."""
    branched_from: Branch | None
    """The run whose stable part it shares, and the step."""
    commits: list[str]
    devices: list[str]
    shards: str
    """Digest of the shards."""
    config: dict[str, Any]
    """Settings of the pre-training."""
    finetune: dict[str, list[str]]
    """By task, settings of the fine-tuning, as field=value."""
    data: NotRequired[dict[str, str]]
    """By task, digest of its files; not in all of results/."""


class SuiteResults(TypedDict):
    """results.json of a suite; the fields that are read."""

    suite: dict[str, Any]
    records: list[RunRecord]
    """Names of the runs that its tables show."""
    others: list[RunRecord]
    """Seeds, rows and tasks that the last command left out."""


def find_known(
    out: Path, earlier: Sequence[Path], suite: Suite, plan: Plan, data: Mapping[str, str]
) -> tuple[dict[str, Record], list[str]]:
    """Return existing records of a plan's runs, by run, and the reasons why others do not fit.

    The folders of these runs are not needed: another machine can continue a suite, and suites can
    share runs. Records of `earlier` with other shards, settings or files of a task are passed over;
    in the suite's own results, they are refused.
    """
    planned = {run.name: run for run in plan.runs}
    known, reasons = {}, []
    for folder in (*earlier, out):
        for record in read_written(out) if folder == out else read_all_records(folder):
            run = planned.get(record["run"])
            scores = record["scores"]
            has_all = set(suite.tasks) <= set(scores)
            if run is None or not (has_all or folder == out):
                continue
            try:
                name = f"{folder / 'results.json'}: {record['run']}"
                if record["shards"] != plan.shards:
                    raise UserError(f"{name} was trained on other shards; choose another folder")
                require_same(name, _config(record), run.config)
                for task, settings in suite.finetune_settings_of(run.row).items():
                    if task not in scores:
                        continue
                    require(
                        record["finetune"][task] == settings,
                        f"{name} was fine-tuned on {task} with "
                        f"{' '.join(record['finetune'][task])}, not {' '.join(settings)}; choose "
                        "another folder",
                    )
                    require(
                        record.get("data", {}).get(task, data[task]) == data[task],
                        f"{name} was scored on other files of {task}; choose another folder",
                    )
            except UserError as error:
                if folder == out:
                    raise
                reasons.append(str(error).partition(";")[0])
                continue
            if has_all:  # another suite may write the row's name with other capitals
                known[record["run"]] = record | {"row": run.row.name}
    return known, reasons


def read_all_records(out: Path) -> list[Record]:
    """Return the records of a suite's results, also those that its tables leave out."""
    path = out / "results.json"
    require("suite" in read_object(path), f"{path} is not of a suite; choose another folder")
    found = read_object(path, SuiteResults)
    records = [*found["records"], *found["others"]]
    for record in records:
        require_fields(record["finetune"], record["scores"], f"{path}: {record['run']}: finetune")
    return records


def read_written(out: Path) -> list[Record]:
    """Return all records of the results that are to be written, none if their folder is new."""
    if (out / "results.json").exists():
        return read_all_records(out)
    # A command that was killed when it began to write leaves the file without its name.
    is_new = not out.exists() or (
        out.is_dir() and {path.name for path in out.iterdir()} <= {"results.json.incomplete"}
    )
    require(is_new, f"{out} holds no results of a suite; choose a new folder")
    return []


def read_records(setup: Setup, plan: Plan, known: Mapping[str, Record]) -> list[Record]:
    """Return a record of each finished run of a plan."""
    return [
        _read_record(setup, run) if setup.is_done(run) else known[run.name]
        for run in plan.runs
        if setup.is_done(run) or run.name in known
    ]


def _read_record(setup: Setup, run: PlannedRun) -> Record:
    folder, finetune = setup.runs / run.name, setup.suite.finetune_settings_of(run.row)
    results, manifest = read_object(folder / "results.json", RunResults), read_manifest(folder)
    places = {task: setup.finetuning(run, task) for task in finetune}
    for place in places.values():
        check_hashes(place)
    finetunings = {
        task: read_results(place, "median", "metric", "num_degenerate")
        for task, place in places.items()
    }
    return {
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
        # For a suite with a grid.
        "chosen": {task: found["best"] for task, found in finetunings.items() if "best" in found},
        "collapsed": [task for task, found in finetunings.items() if found["num_degenerate"]],
        "branched_from": manifest.get("branched_from"),
        "commits": sorted({each["commit"] for each in manifest["sessions"] if each.get("commit")}),
        # The dtype is not the same on every CPU.
        "devices": sorted(
            {
                f"{each.get('device')}, {str(each.get('dtype')).removeprefix('torch.')}"
                for each in manifest["sessions"]
            }
        ),
        "shards": manifest["shards"]["sha256"],
        "config": to_dict(read_run_config(folder)),
        "finetune": finetune,
        "data": {task: find_digest(place) for task, place in places.items()},
    }


def keep_scores(records: Sequence[Record], written: Sequence[Record]) -> list[Record]:
    """Return records with the scores that the same runs had on other tasks."""
    before = {record["run"]: record for record in written}
    kept = []
    for record in records:
        old = before.get(record["run"])
        if old and old["shards"] == record["shards"] and _config(old) == _config(record):
            others = [task for task in old["collapsed"] if task not in record["scores"]]
            by_task = ("scores", "metrics", "chosen", "finetune", "data")
            record = {
                **record,
                **{key: {**old[key], **record.get(key, {})} for key in by_task if key in old},
                "collapsed": [*record["collapsed"], *others],
            }
        kept.append(record)
    return kept


def _config(record: Record) -> PretrainConfig:
    """Return the settings of a recorded run."""
    return from_dict(PretrainConfig, record["config"])


CONFIDENCE = 0.95
POOLING_LEVEL = 0.25
"""Level of the F test for a row noisier than the rest. A stricter one overlooks it at three seeds:
too many intervals of noisy rows without a gain then exclude 0."""


class Interval(NamedTuple):
    """A mean over seeds, and its 95% interval by Student's t; of a single seed, no interval."""

    mean: float
    half_width: float | None

    @property
    def excludes_zero(self) -> bool:
        """Return whether the whole interval is on one side of 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def __str__(self) -> str:
        return format_interval(self.mean, self.half_width)


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of some values and its interval."""
    mean, number = statistics.fmean(values), len(values)
    if number < 2:
        return Interval(mean, None)
    quantile = float(student.ppf((1 + confidence) / 2, number - 1))
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(number))


def estimate_gain(
    own: Mapping[int, float], base: Mapping[int, float], others: Sequence[Mapping[int, float]]
) -> Interval:
    """Return the mean gain over the seeds that both rows have, and its 95% interval.

    This is a two-way analysis of variance: rows, and seeds as blocks. With few seeds one
    pair of rows is a poor estimate of the noise, so all rows with these seeds are used, except
    those that are noisier than the rest. If there is no other row, or one of the pair is noisier,
    the interval is that of the paired t-test. The scores are by seed; `others` has those of the
    other rows that are compared with `base`, used if they have all of the common seeds.
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
    """Return scores [rows, seeds] without rows that an F test finds noisier than the rest."""
    while len(scores) > 3:  # two others are too few to say that a third is noisier
        without = [_sum_noise(np.delete(scores, row, axis=0)) for row in range(len(scores))]
        noisiest = int(np.argmin(without))
        rest = np.delete(scores, noisiest, axis=0)
        own = (_sum_noise(scores) - _sum_noise(rest)) / (scores.shape[1] - 1)
        others = _sum_noise(rest) / _count_degrees(rest)
        if own <= others * fisher.isf(POOLING_LEVEL, scores.shape[1] - 1, _count_degrees(rest)):
            break
        scores = scores[:2] if noisiest < 2 else rest  # the compared pair stays alone
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
        """Return in words if the row differs from the reference, and if the paper agrees."""
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


def compare(suite: Suite, records: Sequence[Record]) -> list[Cell]:
    """Return a cell for each row and fraction of which a run is finished, in the suite's order."""
    comparison = _Comparison(suite, records)
    return [
        comparison.cell(row, fraction)
        for row in suite.rows
        for fraction in sorted(suite.fractions_of(row))
        if (row.name, fraction) in comparison.found
    ]


def compare_further(suite: Suite, records: Sequence[Record]) -> list[Cell]:
    """Return the cells of the rows in the suite's `orderings`, each against the row it names.

    The noise is that of all rows that are otherwise compared with the same reference.
    """
    cells, usual = [], suite.references
    for each in suite.orderings:
        rows = tuple(
            dataclasses.replace(row, against=each.against, side=each.side)
            if usual[row.name] == usual[each.row]
            else row
            for row in suite.rows
        )
        compared = compare(dataclasses.replace(suite, rows=rows, orderings=()), records)
        cells += [cell for cell in compared if cell.row.name == each.row and cell.gain]
    return cells


def name_cell(row: str, fraction: float) -> str:
    """Return the name of a row after a fraction of the budget."""
    return row if fraction == 1 else f"{row} after {100 * fraction:.4g}%"


class _Comparison:
    """The runs of a suite by row, fraction and seed, and what each is compared with."""

    def __init__(self, suite: Suite, records: Sequence[Record]):
        self.suite = suite
        self.found: dict[tuple[str, float], dict[int, Record]] = {}
        for record in records:
            self.found.setdefault((record["row"], record["fraction"]), {})[record["seed"]] = record
        self.scores = {
            place: {seed: self._score(record) for seed, record in own.items()}
            for place, own in self.found.items()
        }
        self.rows = {row.name: row for row in suite.rows}
        self.references = {
            (row.name, fraction): self._find_reference(row, fraction)
            for row in suite.rows
            for fraction in suite.fractions_of(row)
        }

    def cell(self, row: Row, fraction: float) -> Cell:
        place = row.name, fraction
        own, reference = self.found[place], self.references[place]
        base = self.scores.get(reference, {})
        num_pairs = len(own.keys() & base.keys())
        gain = None
        if num_pairs and place != reference:
            gain = estimate_gain(self.scores[place], base, self._others(*place))
        paper, base_paper = self._find_paper(*place), self._find_paper(*reference)
        tasks = {
            task: [POINTS * each["scores"][task] for each in own.values()]
            for task in self.suite.tasks
        }
        return Cell(
            row,
            fraction,
            name_cell(*place),
            tuple(sorted(own)),
            next(iter(own.values()))["flops"]["true"],
            estimate(list(self.scores[place].values())),
            {task: estimate(scores) for task, scores in tasks.items()},
            name_cell(*reference),
            gain,
            num_pairs,
            paper,
            None if paper is None or base_paper is None else paper - base_paper,
            any(record["branched_from"] for record in own.values()),
        )

    def _score(self, record: Record) -> float:
        """Return the mean over the suite's tasks, points; a run may have been scored on more."""
        return POINTS * statistics.fmean(record["scores"][task] for task in self.suite.tasks)

    def _find_reference(self, row: Row, fraction: float) -> tuple[str, float]:
        """Return the place to compare with: of the same fraction, or else of the largest."""
        name = self.suite.references[row.name]
        fractions = self.suite.fractions_of(self.rows[name])
        return name, fraction if fraction in fractions else max(fractions)

    def _find_paper(self, name: str, fraction: float) -> float | None:
        row = self.rows[name]
        return row.paper[self.suite.fractions_of(row).index(fraction)] if row.paper else None

    def _others(self, name: str, fraction: float) -> list[Mapping[int, float]]:
        """Return the scores of other rows with the same reference, at one fraction for each."""
        reference = self.references[name, fraction]
        others: list[Mapping[int, float]] = []
        for row in self.suite.rows:
            other = row.name
            shares = [
                share
                for share in self.suite.fractions_of(row)
                if (other, share) in self.scores and self.references[other, share] == reference
            ]
            if shares and other not in (name, reference[0]):
                others.append(self.scores[other, fraction if fraction in shares else max(shares)])
        return others
