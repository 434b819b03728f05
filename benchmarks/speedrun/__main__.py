"""The encoder speedrun, a command a step (docs/SPEEDRUN.md).

    python -m benchmarks.speedrun pretrain SUITE SHARDS --runs FOLDER
"""

import argparse
from pathlib import Path

from electra.errors import UserError, require_choice
from electra.finetuning.loop import ignore
from electra.pretraining.loop import pretrain
from electra.reproduce.plan import open_plan
from electra.reproduce.suite import read_suite


def pretrain_rows(suite_file: Path, shards: Path, runs: Path, rows: list[str], seeds: int) -> None:
    """Pre-train rows of a suite, as `electra reproduce` does, which may fine-tune them later."""
    suite = read_suite(suite_file)
    for name in rows:
        require_choice("row", name, [row.name for row in suite.rows])
    plan = open_plan(suite, shards, runs, jobs=1)
    for run in plan.runs:
        folder = runs / run.name
        is_asked = run.seed < seeds and (not rows or run.row.name in rows)
        if is_asked and not (folder / "results.json").exists():
            print(f"{run.name}: {run.config.train.steps:,} steps", flush=True)
            pretrain(shards, folder, run.config, ignore)


def main() -> None:
    """Carry out one step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun")
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("pretrain", help="pre-train rows of a suite, without fine-tuning")
    step.add_argument("suite", type=Path)
    step.add_argument("shards", type=Path)
    step.add_argument("--runs", type=Path, required=True)
    step.add_argument("--rows", nargs="*", default=[], help="names of rows; none: all")
    step.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    pretrain_rows(options.suite, options.shards, options.runs, options.rows, options.seeds)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
