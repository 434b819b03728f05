"""The encoder speedrun, a command a step (docs/SPEEDRUN.md).

python -m benchmarks.speedrun pretrain SUITE SHARDS --runs RUNS
python -m benchmarks.speedrun corrupt RUN SHARDS --out FILE.npz
python -m benchmarks.speedrun judge RUN [RUN ...]
    python -m benchmarks.speedrun list
"""

import argparse
from pathlib import Path

from benchmarks.speedrun.corruption import corrupt
from benchmarks.speedrun.records import write_list
from benchmarks.speedrun.trials import judge_runs, pretrain_rows
from electra.errors import UserError

RESULTS = Path("results", "speedrun")
STORED = Path(__file__).with_name("corruption.npz")


def main() -> None:
    """Carry out one step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun")
    steps = parser.add_subparsers(dest="step", required=True)

    step = steps.add_parser("pretrain", help="pre-train rows of a suite, without fine-tuning")
    step.add_argument("suite", type=Path)
    step.add_argument("shards", type=Path)
    step.add_argument("--runs", type=Path, required=True)
    step.add_argument("--rows", nargs="*", default=[], help="names of rows; none: all")
    step.add_argument("--seeds", nargs="*", type=int, default=[], help="none: all of the suite")
    step.set_defaults(carry_out=pretrain_rows)

    step = steps.add_parser("corrupt", help="let a run's generator replace held-out tokens, once")
    step.add_argument("run", type=Path)
    step.add_argument("shards", type=Path)
    step.add_argument("--num-rows", type=int, default=2048)
    step.add_argument("--out", type=Path, default=STORED)
    step.set_defaults(carry_out=corrupt)

    step = steps.add_parser("judge", help="measure finished runs on the stored corruption")
    step.add_argument("runs", type=Path, nargs="+", help="folders TRIAL-1-seed-N")
    step.add_argument("--stored", type=Path, default=STORED)
    step.add_argument("--last", nargs="*", type=int, default=[1], help="checkpoints of an average")
    step.add_argument("--out", type=Path, default=RESULTS / "trials")
    step.set_defaults(carry_out=judge_runs)

    step = steps.add_parser("list", help="write the list of claims and trials")
    step.add_argument("--claims", type=Path, default=Path("benchmarks", "claims"))
    step.add_argument("--results", type=Path, default=RESULTS)
    step.set_defaults(carry_out=write_list)

    options = vars(parser.parse_args())
    del options["step"]
    options.pop("carry_out")(**options)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
