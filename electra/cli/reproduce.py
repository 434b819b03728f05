"""reproduce: the paper's tables and figures, or a suite of your own."""

import dataclasses
import sys
import warnings
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.cli.options import DryRun, SetPretraining, refuse_url
from electra.errors import UserError, did_you_mean, require
from electra.files import hold
from electra.presets import PRESETS


def reproduce(
    name: str | None = None,
    *,
    shards: Path | None = None,
    glue: Path | None = None,
    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    runs: Path | None = None,
    out: Path | None = None,
    earlier: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    preset: Annotated[
        str | None, Parameter(help=f"One of {', '.join(PRESETS)}; if not given, the suite's.")
    ] = None,
    recipe: Annotated[
        Literal["paper", "best"] | None,
        Parameter(
            help="paper: settings as published. best: those found by experiment at the size of "
            "tiny. If not given, the suite's."
        ),
    ] = None,
    budget: float | None = None,
    seeds: int | None = None,
    tasks: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    set_: SetPretraining = (),
    jobs: int | None = None,
    dry_run: DryRun = False,
) -> None:
    """Repeat a table or figure of the paper at any size and budget, at equal compute.

    Every row is pre-trained with every seed and fine-tuned on every task; gains are told with
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
    earlier
        Results folders of other suites. Their runs of the same name are not computed again.
    budget
        What each row spends: true FLOPs, or steps or seconds if the suite holds these equal.
    seeds
        Pre-training seeds of each row.
    tasks
        Tasks whose mean is the score, instead of the suite's.
    jobs
        Runs that are computed at a time; if not given, one for each GPU, or one on a CPU. 0: none;
        the results of what is finished are written.
    """
    from electra.terminal.printing import command, print_done, print_table

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
    from electra.checkpoints.manifest import LOCK
    from electra.reports.glossary import format_seconds
    from electra.reproduce.plan import keep_plan, open_plan
    from electra.reproduce.records import (
        Cell,
        find_known,
        keep_scores,
        read_records,
        read_written,
    )
    from electra.reproduce.report import tabulate, write_results
    from electra.reproduce.run import carry_out, count_devices
    from electra.reproduce.suite import find_suite, read_suite
    from electra.reproduce.work import (
        count_finetunings,
        digest_files,
        estimate_seconds,
        find_work,
        is_done,
        read_tasks,
        require_same_data,
    )
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
        needed = {"--shards DIR": shards, "--runs DIR": runs, "--out DIR": out}
        raise UserError(
            f"reproduce {name} needs {' and '.join(n for n, each in needed.items() if not each)}"
        )
    jobs = count_devices() if jobs is None else jobs
    require(jobs >= 0, f"--jobs must be >= 0, not {jobs}")
    require(jobs > 0 or not dry_run, "--jobs 0 computes nothing: leave it or --dry-run away")
    folders = find_tasks(suite.tasks, glue, data)
    written = read_written(out)
    plan = open_plan(suite, shards, runs, jobs)
    questions = read_tasks(suite, plan, folders)
    digests = {task: digest_files(question) for task, question in questions.items()}
    require_same_data(digests, runs)
    known, reasons = find_known(out, earlier, suite, plan, digests)
    if reasons:
        count = f"{len(reasons)} records of --earlier are passed over"
        warnings.warn(f"{count}, such as {reasons[0]}", stacklevel=2)
    unfinished = plan.without(known)
    left = {run.name: run for run in unfinished.runs if not is_done(suite, run, runs)}
    finetunings: dict[tuple[str, str], float] = {}
    if left and jobs:
        finetunings = count_finetunings(suite, unfinished, shards, questions)
    if dry_run:
        planned = [
            (
                run.name,
                f"{run.config.train.steps:,}",
                f"{run.flops['true']:.2e}",
                f"{run.flops['paper']:.2e}",
                run.trunk or "-",
                "to do" if run.name in left else "done",
            )
            for run in plan.runs
        ]
        headers = ["run", "steps", "true FLOPs", "paper's FLOPs", "branches off", "state"]
        print_table(planned, headers)
        if not left:
            return print_done(f"all {len(plan.runs)} runs are done; nothing was written")
        work = {name: find_work(suite, each, runs, finetunings) for name, each in left.items()}
        pretraining, finetuning = estimate_seconds(unfinished, work)
        return print_done(
            f"{len(left)} of {len(plan.runs)} runs are left: about "
            f"{format_seconds(pretraining / jobs)} of pre-training and "
            f"{format_seconds(finetuning / jobs)} of fine-tuning on this machine, {jobs} at a "
            "time; nothing was written"
        )
    own_command = command(*sys.argv[1:])

    def save() -> list[Cell]:
        records = keep_scores(read_records(suite, plan, runs, known), written)
        found = {record["run"] for record in records}
        others = [each for each in written if each["run"] not in found]
        if not records:
            return []  # every row has failed so far; what is written stays
        return write_results(out, suite, records, others, len(plan.runs), own_command)

    cells = save() if len(left) < len(plan.runs) else []
    if left and jobs:
        runs.mkdir(parents=True, exist_ok=True)
        with (
            hold(runs / LOCK),
            Progress(f"reproducing {path.stem}", unit="TFLOP") as progress,
        ):
            keep_plan(suite, plan, runs)
            carry_out(
                *(suite, unfinished, shards, folders, runs, finetunings, jobs),
                progress.update,
                save,
            )
        cells = save()
    require(bool(cells), f"nothing was written: no run of {name} is finished")
    table = tabulate(suite, cells)
    print_table(table.rows, table.headers)
    print_done(
        f"wrote {out}: README.md, index.html, table.tex, figure.png, figure.svg, results.json"
    )


def find_tasks(tasks: tuple[str, ...], glue: Path | None, data: tuple[str, ...]) -> dict[str, Path]:
    """Return the folder of each task.

    Raises:
        UserError: A task has no folder, or a folder is not there.
    """
    from electra.tasks.glue import GLUE
    from electra.tasks.registry import TASKS

    given = {}
    for word in data:
        name, equals, path = word.partition("=")
        require(bool(equals), f"--data takes TASK=FOLDER, not {word!r}")
        choices = dict.fromkeys((*tasks, *TASKS))
        require(name in choices, f"--data: unknown task {name!r}{did_you_mean(name, choices)}")
        given[name] = Path(path)
    folders = {}
    for task in tasks:
        folder = given.get(task, glue if task in GLUE else None)
        need = "--glue DIR" if task in GLUE else f"--data {task}=DIR"
        if folder is None:
            require(task in TASKS, f"unknown task {task!r}{did_you_mean(task, TASKS)}")
            raise UserError(f"{task} has no folder: give {need}, or other --tasks")
        require(folder.is_dir(), f"{folder} is no folder; {task} needs {need}")
        folders[task] = folder
    return folders
