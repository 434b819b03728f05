"""What a suite has found: the record of each finished run, and comparisons over seeds."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.config import PretrainConfig
from electra.errors import UserError, require
from electra.files import read_object
from electra.reproduce.intervals import Interval, estimate, estimate_gain
from electra.reproduce.plan import Plan, PlannedRun, require_same
from electra.reproduce.suite import Row, Suite
from electra.reproduce.work import find_digest, finetuning_folder, is_done
from electra.settings import from_dict, to_dict

LEAST_SEEDS = 3
"""Below, no row is called higher or lower: the interval rests on a spread that is not known."""
TOO_FEW = "too few seeds"
POINTS = 100
"""Points of a score: the paper prints shares as per cent."""


def find_known(
    out: Path, earlier: Sequence[Path], suite: Suite, plan: Plan, data: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the records, by run, that results already have of a plan.

    Their runs need not be at hand: what one machine has computed, another one completes, and what
    one suite has computed, others need not.

    Args:
        out: The folder of the suite's own results.
        earlier: Folders of results of other suites. Their runs of the same name may be others.
        suite: The suite.
        plan: Its plan.
        data: Digest of the files of each task.

    Returns:
        The records, and why others of `earlier` are passed over.

    Raises:
        UserError: A run of the plan has other shards, settings or files of a task in the suite's
            own results.
    """
    planned = {run.name: run for run in plan.runs}
    known, reasons = {}, []
    for folder in (*earlier, out):
        for record in read_written(out) if folder == out else read_all_records(folder):
            run = planned.get(record["run"])
            if run is None or not set(suite.tasks) <= set(record["scores"]):
                continue
            name = f"{folder / 'results.json'}: {record['run']}"
            try:
                _require_fit(name, record, run, suite, plan, data)
            except UserError as error:
                if folder == out:
                    raise
                reasons.append(str(error).partition(";")[0])
                continue
            # Another suite may write the row's name with other capitals.
            known[record["run"]] = record | {"row": run.row.name}
    return known, reasons


def _require_fit(
    name: str,
    record: Mapping[str, Any],
    run: PlannedRun,
    suite: Suite,
    plan: Plan,
    data: Mapping[str, str],
) -> None:
    require(record["shards"] == plan.shards, f"{name} is of other shards; choose another folder")
    require_same(name, _config(record), run.config)
    for task, settings in suite.finetune_settings.items():
        require(
            record["finetune"][task] == settings,
            f"{name} was fine-tuned on {task} with {' '.join(record['finetune'][task])}, not "
            f"{' '.join(settings)}; choose another folder",
        )
        scored = record.get("data", {}).get(task, data[task])  # not in records of older versions
        require(
            scored == data[task],
            f"{name} was scored on other files of {task}; choose another folder",
        )


def read_all_records(out: Path) -> list[dict[str, Any]]:
    """Return the records of a suite's results, also those that its tables leave out.

    Raises:
        UserError: The folder holds no results of a suite.
    """
    path = out / "results.json"
    found = read_object(path)
    require("suite" in found, f"{path} is not of a suite; choose another folder")
    return [*found["records"], *found.get("others", [])]  # not in results of older versions


def read_written(out: Path) -> list[dict[str, Any]]:
    """Return all records of the results that are to be written, none if their folder is new.

    Raises:
        UserError: The folder holds something else.
    """
    if (out / "results.json").exists():
        return read_all_records(out)
    is_new = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    require(is_new, f"{out} holds no results of a suite; choose a new folder")
    return []


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
                "data": {
                    task: find_digest(finetuning_folder(runs, run, task)) for task in suite.tasks
                },
            }
        )
    return records


def keep_scores(
    records: Sequence[dict[str, Any]], written: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return records with the scores that the same runs had on other tasks.

    Args:
        records: The records of the suite's tasks.
        written: The records that the results had.
    """
    before = {record["run"]: record for record in written}
    kept = []
    for record in records:
        old = before.get(record["run"])
        if old and old["shards"] == record["shards"] and _config(old) == _config(record):
            others = [task for task in old.get("collapsed", ()) if task not in record["scores"]]
            by_task = ("scores", "metrics", "finetune", "data")
            record = {
                **record,
                **{key: {**old[key], **record.get(key, {})} for key in by_task if key in old},
                "collapsed": [*record.get("collapsed", ()), *others],
            }
        kept.append(record)
    return kept


def _config(record: Mapping[str, Any]) -> PretrainConfig:
    """Return the settings of a recorded run; an older version may have had fewer."""
    return from_dict(PretrainConfig, record["config"])


def _name_machine(session: Mapping[str, Any]) -> str:
    """Return device and dtype, which is not the same on every CPU."""
    return f"{session.get('device')}, {str(session.get('dtype')).removeprefix('torch.')}"


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
        (row.name, fraction): _find_reference(suite, rows[suite.references[row.name]], fraction)
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
            # Scores of one row after several fractions share its noise, so each row enters once.
            others = []
            for other in suite.rows:
                shares = [
                    share
                    for share in sorted(other.fractions or suite.fractions)
                    if references[other.name, share] == reference and (other.name, share) in scores
                ]
                if shares and other.name not in (row.name, reference[0]):
                    share = fraction if fraction in shares else shares[-1]
                    others.append(scores[other.name, share])
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


def compare_further(suite: Suite, records: Sequence[dict[str, Any]]) -> list[Cell]:
    """Return the cells of the rows in the suite's `orderings`, each against the row it names.

    The noise is that of all rows that are otherwise compared with the same reference.
    """
    cells = []
    for each in suite.orderings:
        usual = suite.references
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
