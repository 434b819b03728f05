"""reproduce: the paper's tables and figures, or a suite of your own."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from electra.cli.options import DryRun, Recipe, SetPretraining, refuse_url
from electra.config import UserError, require
from electra.presets import PRESETS


def reproduce(
    name: str | None = None,
    *,
    shards: Path | None = None,
    glue: Path | None = None,
    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    runs: Path | None = None,
    out: Path | None = None,
    preset: Annotated[
        str | None, Parameter(help=f"One of {', '.join(PRESETS)}; if not given, the suite's.")
    ] = None,
    recipe: Recipe = None,
    budget: float | None = None,
    seeds: int | None = None,
    tasks: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    set_: SetPretraining = (),
    jobs: int = 0,
    dry_run: DryRun = False,
) -> None:
    """Repeat a table or figure of the paper at any size and budget, at equal compute.

    Every row is pre-trained with every seed and fine-tuned on every task; differences are told with
    their intervals over the seeds, or as not separable. The same command continues a suite that was
    interrupted, and adds seeds and rows to one that is finished. Without NAME, it lists the suites.

    Example: electra reproduce table-5 --shards shards --glue glue --preset tiny --budget 1e14
    --runs runs --out results/table-5

    Parameters
    ----------
    name
        A suite that comes with electra, or a file of your own, NAME.toml.
    shards
        A folder that `electra prepare` wrote.
    glue
        The folder of GLUE's tasks.
    data
        Folders of other tasks, as TASK=FOLDER, such as squad-1.1=squad.
    runs
        The folder of all runs, which are kept.
    out
        The folder of the results: records, tables, figures, page.
    budget
        What each row spends: true FLOPs, or steps or seconds if the suite holds these equal.
    seeds
        Pre-training seeds of each row.
    tasks
        Tasks whose mean is the score, instead of the suite's.
    jobs
        Runs that are computed at a time; 0: one for each GPU, or one on a CPU.
    """
    from electra.terminal.printing import print_done, print_table

    if name is None:
        from electra.reproduce.suite import list_suites

        rows = [
            (key, each.title, len(each.rows), each.seeds) for key, each in list_suites().items()
        ]
        print_table(rows, ["suite", "title", "rows", "seeds"])
        return print_done(
            f"{len(rows)} suites", "electra reproduce NAME --shards SHARDS --glue GLUE --dry-run"
        )
    for folder in (runs, out):
        if folder is not None:
            refuse_url(folder)
    from electra.reports.glossary import format_seconds
    from electra.reproduce.plan import estimate_seconds, open_plan
    from electra.reproduce.records import Cell, read_earlier, read_records
    from electra.reproduce.report import tabulate, write_results
    from electra.reproduce.run import carry_out, count_devices, is_done
    from electra.reproduce.suite import find_suite, read_suite
    from electra.settings import setting_name
    from electra.terminal.live import Progress

    path = find_suite(name)
    suite = read_suite(path)
    given = {setting_name(setting) for setting in set_}
    kept = [setting for setting in suite.set if setting_name(setting) not in given]
    asked = tasks or suite.tasks
    suite = dataclasses.replace(
        suite,
        preset=preset or suite.preset,
        recipe=recipe or suite.recipe,
        budget=suite.budget if budget is None else budget,
        seeds=suite.seeds if seeds is None else seeds,
        tasks=asked,
        finetune={task: each for task, each in suite.finetune.items() if task in (*asked, "all")},
        set=(*kept, *set_),
    )
    if shards is None or runs is None or out is None:
        raise UserError("reproduce needs --shards DIR, --runs DIR and --out DIR")
    require(jobs >= 0, f"--jobs must be >= 0, not {jobs}")
    folders = find_tasks(suite.tasks, glue, data)
    jobs = jobs or count_devices()
    plan = open_plan(suite, shards, runs, jobs, write=not dry_run)
    earlier = read_earlier(out / "results.json", suite, plan)
    left = [run for run in plan.runs if run.name not in earlier and not is_done(suite, run, runs)]
    if dry_run:
        planned = [
            (
                run.name,
                f"{run.config.train.steps:,}",
                f"{run.flops['true']:.2e}",
                f"{run.flops['paper']:.2e}",
                run.trunk or "-",
                "done" if run not in left else "",
            )
            for run in plan.runs
        ]
        headers = ["run", "steps", "true FLOPs", "paper's FLOPs", "shares a part of", ""]
        print_table(planned, headers)
        time = format_seconds(estimate_seconds(plan, left) / jobs)
        return print_done(
            f"{len(left)} of {len(plan.runs)} runs are left: about {time} of pre-training on this "
            f"machine, {jobs} at a time, and their fine-tunings; nothing was written"
        )
    command = shlex.join(["electra", *sys.argv[1:]])

    def save() -> list[Cell]:
        records = read_records(suite, plan, runs, earlier)
        return write_results(out, suite, records, len(plan.runs), command)

    with Progress(f"reproducing {path.stem}", unit="TFLOP") as progress:
        unfinished = plan.without(earlier)
        carry_out(suite, unfinished, shards, folders, runs, jobs, progress.update, save)
    table = tabulate(suite, save())
    print_table(table.rows, table.headers)
    print_done(f"wrote {out}: README.md, table.tex, figure.png, figure.svg, index.html")


def find_tasks(tasks: tuple[str, ...], glue: Path | None, data: tuple[str, ...]) -> dict[str, Path]:
    """Return the folder of each task.

    Raises:
        UserError: A task has no folder, or a folder is not there.
    """
    from electra.tasks.glue import GLUE

    given = {}
    for word in data:
        name, equals, path = word.partition("=")
        require(bool(equals), f"--data takes TASK=FOLDER, not {word!r}")
        given[name] = Path(path)
    folders = {}
    for task in tasks:
        folder = given.get(task, glue if task in GLUE else None)
        need = "--glue DIR" if task in GLUE else f"--data {task}=DIR"
        if folder is None:
            raise UserError(f"{task} has no folder: give {need}, or other --tasks")
        require(folder.is_dir(), f"{folder} is no folder; {task} needs {need}")
        folders[task] = folder
    return folders
