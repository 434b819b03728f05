"""Trials of recipes: pre-training without fine-tuning, and losses on the stored corruption."""

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from benchmarks.speedrun.corruption import average, judge, read_corruption
from electra.checkpoints.manifest import read_manifest
from electra.errors import require, require_choice
from electra.files import read_object, sha256_file, write_json
from electra.finetuning.loop import ignore
from electra.pretraining.loop import pretrain
from electra.reports.rendering import Table, to_markdown
from electra.reproduce.plan import open_plan
from electra.reproduce.records import CONFIDENCE
from electra.reproduce.suite import read_suite

KEPT = "config.json", "metrics.jsonl"
"""Files of a run that the results keep."""
MEASURES = {"auc": "AUC", "loss": "loss", "own_auc": "AUC of its own"}
REFERENCE = "best"


def pretrain_rows(
    suite: Path, shards: Path, runs: Path, rows: Sequence[str], seeds: Sequence[int]
) -> None:
    """Pre-train rows of a suite, as `electra reproduce` does, which may fine-tune them later."""
    asked = read_suite(suite)
    for name in rows:
        require_choice("row", name, [row.name for row in asked.rows])
    for run in open_plan(asked, shards, runs, jobs=1).runs:
        folder = runs / run.name
        is_asked = run.row.name in (rows or [run.row.name]) and run.seed in (seeds or [run.seed])
        if is_asked and not (folder / "results.json").exists():
            print(f"{run.name}: {run.config.train.steps:,} steps", flush=True)
            pretrain(shards, folder, run.config, ignore)


def judge_runs(runs: Sequence[Path], stored: Path, last: Sequence[int], out: Path) -> None:
    """Judge the stored corruption with finished runs; write their records, and print a table.

    What the results have already is not computed again. A run's trial is its folder's name without
    the seed.
    """
    digest, path = sha256_file(stored), out / "heldout.json"
    new = {"corruption": digest, "records": {}}
    known: dict[str, Any] = read_object(path) if path.exists() else new
    require(known["corruption"] == digest, f"{path} is of another corruption than {stored}")
    corruption = read_corruption(stored)
    for run in runs:
        (out / run.name).mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copy(run / name, out / run.name)
        for number in last:
            if (name := f"{run.name}, mean of {number}") not in known["records"]:
                found = judge(average(run, number), corruption)
                known["records"][name] = _describe(run) | {"average": number} | found
        write_json(path, known)
    print(tabulate(list(known["records"].values())))


def _describe(run: Path) -> dict[str, Any]:
    """Return a run's trial, costs and origin, and the AUC on its own generator's tokens."""
    results, manifest = read_object(run / "results.json"), read_manifest(run)
    trial, _, seed = run.name.partition("-1-seed-")
    session = manifest["sessions"][-1]
    return {
        "trial": trial,
        "seed": int(seed),
        "date": session["started"][:10],
        **{key: results[key] for key in ("steps", "tokens", "seconds")},
        **{key: session[key] for key in ("flops", "commit", "device", "dtype")},
        "shards": manifest["shards"]["sha256"],
        "own_auc": results["heldout"]["disc_auc"],
    }


def tabulate(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the trials in Markdown, and the noise of the measures over seeds."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        found.setdefault((record["trial"], record["average"]), []).append(record)
    base, noises, rows = found[REFERENCE, 1], {}, []
    for measure in ("auc", "loss"):
        spreads = [[each[measure] for each in group] for group in found.values() if len(group) > 1]
        degrees = sum(len(values) - 1 for values in spreads)
        squares = sum((len(values) - 1) * statistics.variance(values) for values in spreads)
        noises[measure] = math.sqrt(squares / degrees) if degrees else math.nan, degrees

    def differ(group: Sequence[Mapping[str, Any]], measure: str) -> str:
        own, other = ([each[measure] for each in side] for side in (group, base))
        gain, (noise, degrees) = statistics.fmean(own) - statistics.fmean(other), noises[measure]
        quantile = student.ppf((1 + CONFIDENCE) / 2, degrees) if degrees else math.nan
        return f"{gain:+.4f} ± {quantile * noise * math.sqrt(1 / len(own) + 1 / len(other)):.4f}"

    for (trial, number), group in sorted(found.items()):
        means = {key: statistics.fmean(each[key] for each in group) for key in MEASURES}
        rows.append(
            [
                *(group[0]["date"], trial, str(number), str(len(group)), f"{group[0]['steps']:,}"),
                *(f"{means[key]:.4f}" for key in MEASURES),
                *(differ(group, measure) if group is not base else "-" for measure in noises),
            ]
        )
    headers = [
        *("date", "trial", "checkpoints", "seeds", "steps", *MEASURES.values()),
        *(f"{MEASURES[measure]}, less {REFERENCE}" for measure in noises),
    ]
    told = (
        f"Standard deviation over seeds: {MEASURES[measure]} {noise:.4f} ({degrees} degrees)."
        for measure, (noise, degrees) in noises.items()
    )
    return "\n".join([to_markdown(Table(headers, rows)), "", *told]) + "\n"
