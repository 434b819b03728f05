"""Records of the speedrun: claims that were written before their runs, and what the runs gave."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.speedrun.trials import REFERENCE, tabulate
from electra.assignments import parse_toml, parse_value
from electra.errors import require
from electra.files import read_object, write_text
from electra.reports.rendering import Table, to_markdown
from electra.reproduce.records import POINTS, estimate

TASKS = "tagging", "sst-2", "sts-b", "qnli", "mnli", "cola"
TARGET = 69.83
"""Score of `best` at 6.8e14 FLOPs, points: RTD in results/one-gpu/objectives-modern, three
seeds."""
BUDGET = 6.8e14
"""True FLOPs after which the target is to be reached."""
LEAST_SEEDS = 5
LEVEL = 0.01
"""Of the one-sided test that the mean score is above the target."""

ROUNDING = 1e-3
"""Of the steps that spend a budget."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a run is to show, written down before it begins."""

    date: str
    what: str
    """The change of the recipe, in a sentence."""
    track: Literal["loads everywhere", "free body"]
    row: str
    """Row of the suite benchmarks/speedrun/NAME.toml of the claim's name."""
    flops: float
    """True FLOPs of a run."""


def write_list(claims: Path, results: Path) -> None:
    """Write RECORDS.md, the list of all claims and of all trials, from the files that runs wrote.

    `claims` is the folder of the files NAME.toml, `results` that of the folders NAME of a suite's
    results, and of the folder trials.
    """
    headers = ("date", "claim", "track", "FLOPs", "less by", "score", "time", "result")
    rows = [row for path in sorted(claims.glob("*.toml")) for row in _list_claim(path, results)]
    trials = read_object(results / "trials" / "heldout.json")["records"]
    lines = [
        "# Records of the encoder speedrun",
        "",
        "Written by `python -m benchmarks.speedrun list`; rules and words: "
        "[SPEEDRUN.md](../../docs/SPEEDRUN.md).",
        "",
        f"Target: {TARGET} points, the score of `best` at {BUDGET:.1e} true FLOPs.",
        "",
        to_markdown(Table(headers, rows)) if rows else "No claim has been made yet.",
        "",
        "## Trials",
        "",
        tabulate(list(trials.values())),
    ]
    write_text(results / "RECORDS.md", "\n".join(lines))
    print("\n".join(lines))


def _list_claim(path: Path, results: Path) -> Iterator[list[str]]:
    """Yield the line of a claim."""
    claim: Claim = parse_value(str(path), parse_toml(path), Claim)
    found = results / path.stem / "results.json"
    told = ("-", "-", "not run yet")
    if found.exists():
        told = judge_claim(claim, read_object(found))
    cost = f"{claim.flops:.2e}", f"{BUDGET / claim.flops:.2f}"
    yield [claim.date, f"{path.stem}: {claim.what}", claim.track, *cost, *told]


def judge_claim(claim: Claim, results: dict[str, Any]) -> tuple[str, str, str]:
    """Return the score of a claim's row, its time beside the baseline's, and if it is a record.

    The one-sided test at LEVEL is the lower end of the interval with a confidence of 1 - 2 LEVEL.
    """
    own = [each for each in results["records"] if each["row"] == claim.row]
    base = [each for each in results["records"] if each["row"] == REFERENCE]
    require(bool(own), f"the results have no row {claim.row}")
    scores = [POINTS * statistics.fmean(each["scores"][task] for task in TASKS) for each in own]
    score = estimate(scores, 1 - 2 * LEVEL)
    flops = max(each["flops"]["true"] for each in own)
    failures = {
        f"{len(own)} seeds, not {LEAST_SEEDS}": len(own) < LEAST_SEEDS,
        f"{flops:.3e} FLOPs": flops > (1 + ROUNDING) * min(claim.flops, BUDGET),
        f"not above the target at p < {LEVEL}": (
            score.half_width is None or score.mean - score.half_width <= TARGET
        ),
    }
    failed = [what for what, is_so in failures.items() if is_so]
    seconds = [statistics.fmean(each["seconds"] for each in side) for side in (own, base) if side]
    time = f"{seconds[0] / seconds[1]:.2f}" if base else "-"
    return str(score), time, f"no: {', '.join(failed)}" if failed else "record"
