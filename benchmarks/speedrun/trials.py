"""Trials of recipes: pre-training without fine-tuning, and losses on the stored corruption."""

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speedrun.corruption import average, judge, read_corruption
from electra.checkpoints.manifest import read_manifest
from electra.errors import require, require_choice
from electra.files import read_object, sha256_file, write_json
from electra.finetuning.loop import ignore
from electra.pretraining.loop import pretrain
from electra.reports.rendering import Table, to_markdown
from electra.reproduce.plan import open_plan
from electra.reproduce.records import LEAST_SEEDS, TOO_FEW, Interval, estimate_gain
from electra.reproduce.suite import read_suite

KEPT = "config.json", "metrics.jsonl"
"""Files of a run that the results keep."""
JUDGED = "auc", "loss"
"""Measures on the stored corruption."""
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
    """Return a table of the trials in Markdown, with the noise of the reference over seeds.

    Differences are taken seed by seed, with the interval of `estimate_gain`; of a single seed there
    is none. The mean of checkpoints has the noise of its own run, and is paired with it alone.
    """
    found: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for record in records:
        trial = found.setdefault((record["trial"], record["average"]), {})
        trial[record["seed"]] = record

    def values(place: tuple[str, int], measure: str) -> dict[int, float]:
        return {seed: record[measure] for seed, record in found[place].items()}

    def differ(place: tuple[str, int], measure: str) -> Interval | None:
        reference = (REFERENCE, 1) if place[1] == 1 else (place[0], 1)
        own, base = values(place, measure), values(reference, measure)
        if place == reference or not own.keys() & base.keys():
            return None
        others = [
            values(other, measure)
            for other in found
            if other[1] == place[1] == 1 and other not in (place, reference)
        ]
        return estimate_gain(own, base, others)

    rows = []
    for place, runs in sorted(found.items()):
        first = next(iter(runs.values()))
        means = (statistics.fmean(values(place, measure).values()) for measure in MEASURES)
        rows.append(
            [
                *(first["date"], *map(str, place), str(len(runs)), f"{first['steps']:,}"),
                *(f"{mean:.4f}" for mean in means),
                *(_format(differ(place, measure)) for measure in JUDGED),
                _conclude(differ(place, "auc"), len(runs)),
            ]
        )
    headers = ["date", "trial", "checkpoints", "seeds", "steps", *MEASURES.values()]
    headers += [*(f"{MEASURES[measure]}, less {REFERENCE}" for measure in JUDGED), "gate (a)"]
    told = "A mean of several checkpoints is compared with the last one of the same run."
    lines = [to_markdown(Table(headers, rows)), "", told, ""]
    for measure in JUDGED:
        spread = [*values((REFERENCE, 1), measure).values()]
        if len(spread) > 1:
            noise = statistics.stdev(spread)
            lines.append(
                f"- {MEASURES[measure]}: sd {noise:.4f} over {len(spread)} seeds of {REFERENCE}"
            )
    return "\n".join(lines) + "\n"


def _format(gain: Interval | None) -> str:
    """Return a difference with its interval, if there is one."""
    if gain is None:
        return "-"
    return f"{gain.mean:+z.4f}" + ("" if gain.half_width is None else f" ± {gain.half_width:.4f}")


def _conclude(gain: Interval | None, num_seeds: int) -> str:
    """Return whether a trial passes, by its gain in AUC."""
    if gain is None:
        return "-"
    if num_seeds < LEAST_SEEDS:
        return TOO_FEW
    return "not separable" if not gain.excludes_zero else "passed" if gain.mean > 0 else "failed"
