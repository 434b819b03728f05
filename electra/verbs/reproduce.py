"""All steps at once: quickstart, and reproduce for the paper's tables or a suite of your own."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from electra.assignments import differences, flatten, override_from_toml, to_dict
from electra.errors import UserError, command, require
from electra.presets import PRESETS
from electra.processes import Interrupted
from electra.quickstart.config import BEGUN, QUICKSTART, REPORT
from electra.reports.glossary import format_seconds
from electra.tasks.config import FinetuneConfig
from electra.terminal.live import Progress
from electra.terminal.printing import (
    as_word,
    print_done,
    print_lines,
    print_note,
    print_step,
    print_table,
)
from electra.verbs.arguments import as_path, as_paths, as_words, keeping, parse_share, refuse_url
from electra.verbs.options import (
    PRESET,
    DryRun,
    Places,
    Planned,
    Set,
    SetPretraining,
    Toml,
    Words,
    completed,
    settings_of,
)

if TYPE_CHECKING:
    from electra.reproduce.plan import PlannedRun
    from electra.reproduce.run import Session


def quickstart(
    *,
    text: Words = (),
    out: Path = Path("quickstart"),
    set_: Annotated[Set, settings_of(QUICKSTART)] = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Run every step once, in some minutes on two cores, and show the results.

    Without --text, the corpus is the documentation that Python and its installed packages carry.
    Before each step it prints the command that does the same by hand.

    Example: electra quickstart --text notes/*.txt --out quickstart

    Args:
        text: Your own text: files, folders or globs, as for `electra tokenizer`.
        out: The folder to write. An interrupted quickstart continues in its folder; if anything
            else is there, a number is added to the name.
    """
    settings = override_from_toml(QUICKSTART, as_path(config), as_words(set_))
    refuse_url(out)
    out = _next_free(out)
    if dry_run:
        source = ", ".join(text) or "the documentation of Python and its packages"
        raise Planned(settings, f"read {source} and write {out}")
    from electra.quickstart.run import quickstart as run_quickstart

    try:
        run_quickstart(text, out, settings)
    except (KeyboardInterrupt, Interrupted):
        if out.exists():
            print_note(f"the same command continues in {out}")
        raise


def _next_free(out: Path) -> Path:
    require(bool(out.name), f"{out} exists already; name a folder in it, as {out / 'quickstart'}")
    free, number = out, 2
    while free.exists() and ((free / REPORT).exists() or not (free / BEGUN).exists()):
        free, number = out.with_name(f"{out.name}-{number}"), number + 1
    return free


def reproduce(
    name: Annotated[
        str | None, completed(lambda: import_module("electra.reproduce.suite").list_suites())
    ] = None,
    *,
    shards: Path | None = None,
    glue: Path | None = None,
    data: Words = (),
    runs: Path | None = None,
    out: Path | None = None,
    earlier: Places = (),
    preset: Annotated[
        str | None,
        PRESET,
        Parameter(help=f"One of {', '.join(PRESETS)}; if not given, the suite's."),
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
    tasks: Words = (),
    set_: SetPretraining = (),
    jobs: int | None = None,
    engine: Literal["local", "ray"] = "local",
    task: str | None = None,
    dry_run: DryRun = False,
) -> None:
    """Repeat a table or figure of the paper at any size and budget, at equal compute.

    Every row is pre-trained with every seed and fine-tuned on every task; gains are printed with
    their intervals over the seeds, or as not separable. The same command continues an interrupted
    suite, and adds new seeds and rows to a finished one. Without NAME, it lists the suites.

    Example: electra reproduce table-5 --shards shards --glue glue --preset tiny --budget 1e14
    --runs runs --out results/table-5

    Args:
        name: A suite that comes with electra, or a file of your own, NAME.toml.
        shards: A folder that `electra prepare` wrote.
        glue: The folder of GLUE's tasks.
        data: Folders of other tasks, as TASK=FOLDER, such as squad-1.1=squad. A name that is not a
            known task is a task of your own. minimal-pairs takes a file, as for `electra score`.
        runs: The folder of all runs, which are kept.
        out: The folder of the results: records, tables, figures, page.
        earlier: Results folders of other suites. Their runs of the same name are not computed
            again.
        budget: The cost of each row: true FLOPs, or steps or seconds if the suite holds these
            equal.
        seeds: Pre-training seeds of each row.
        tasks: Tasks whose mean is the score, instead of the suite's.
        jobs: Number of runs at the same time; if not given, one per GPU, or one on a CPU. 0:
            compute nothing, and write the results of finished runs.
        engine: local: processes on this machine. ray: a Ray cluster whose machines see the same
            folders; --jobs sets how many runs share a machine's cores.
        task: I/N: only share I of N of the rows and seeds, from 0/N to (N-1)/N, as one job of a
            queue. Then the command with --jobs 0 instead of --task writes the results.
    """
    if name is None:
        given = (shards, glue, runs, out, preset, recipe, budget, seeds, jobs, task)
        given_any = any((*(each is not None for each in given), data, earlier, tasks, set_))
        require(not given_any, "give the NAME of a suite; electra reproduce alone lists them")
        return _print_suites()
    for folder in (runs, out):
        if folder is not None:
            refuse_url(folder)
    from electra.reproduce.plan import Setup
    from electra.reproduce.report import tabulate
    from electra.reproduce.run import Session, find_tasks
    from electra.reproduce.suite import change_suite, find_suite, read_suite

    path = find_suite(name)
    changes = {"preset": preset, "recipe": recipe, "budget": budget, "seeds": seeds}
    suite = change_suite(read_suite(path), as_words(set_), tasks=tasks, **changes)
    if shards is None or runs is None or out is None:
        needed = {"--shards DIR": shards, "--runs DIR": runs, "--out DIR": out}
        raise UserError(
            f"reproduce {name} needs {' and '.join(n for n, each in needed.items() if not each)}"
        )
    require(jobs != 0 or not dry_run, "--jobs 0 computes nothing: leave it or --dry-run out")
    require(jobs != 0 or task is None, "--jobs 0 computes nothing: leave it or --task out")
    share = None if task is None else parse_share(task)
    setup = Setup(suite, shards, find_tasks(suite.tasks, glue, data), runs)
    session = Session(setup, out, as_paths(earlier), jobs, engine, share)
    if dry_run:
        return _print_session(session)
    # --jobs 0 computes nothing of what the command of the results repeats.
    own_command = re.sub(" --jobs[= ]0(?= |$)", "", command(*sys.argv[1:]))
    cells = session.write(own_command) if len(session.left) < len(session.plan.runs) else []
    if session.left and session.jobs:
        kept = keeping(runs, "run", "*/manifest.json")
        with kept, Progress(f"reproducing {path.stem}", unit="TFLOP") as progress:
            session.carry_out(progress.update, lambda: session.write(own_command))
        cells = session.write(own_command)
    if share:
        return print_done(f"share {task} is done; --jobs 0 in place of --task writes the results")
    require(bool(cells), f"nothing was written: no run of {name} is finished")
    table = tabulate(suite, cells)
    print_table(table.rows, table.headers)
    print_done(
        f"wrote {out}: README.md, index.html, table.tex, figure.png, figure.svg, results.json"
    )


def _print_suites() -> None:
    from electra.reproduce.suite import list_suites

    rows = [(key, each.title, len(each.rows), each.seeds) for key, each in list_suites().items()]
    print_table(rows, ["suite", "title", "rows", "seeds"])
    print_done(
        f"{len(rows)} suites",
        "electra reproduce NAME --shards DIR --glue DIR --runs DIR --out DIR --dry-run",
    )


def _name_state(session: "Session", run: "PlannedRun") -> str:
    """Return what is left of a run."""
    if run.name not in session.left:
        return "done"
    tasks = ", ".join(session.setup.unfinished_tasks(run))
    is_pretrained = session.setup.is_pretrained(run)
    return f"pre-trained; left: {tasks}" if is_pretrained else "to do"


def _print_settings(session: "Session") -> None:
    """Print all settings of the reference's pre-training, and what the other rows change."""
    # Print the settings of each task's fine-tunings that are not the usual ones.
    from electra.reproduce.plan import finetune_configs

    suite, runs = session.setup.suite, {run.row.name: run for run in session.plan.runs}
    first = runs.get(suite.reference) or session.plan.runs[0]
    print_step(f"Pre-training of {first.row.name}")
    settings = flatten(to_dict(first.config))
    print_lines([f"{name}={as_word(value)}" for name, value in settings])
    changes = {name: differences(first.config, run.config) for name, run in runs.items()}
    own = {
        f"{name}, pre-training": each for name, each in changes.items() if name != first.row.name
    }
    for task in suite.tasks:
        for name, config in finetune_configs(suite, first.row, first.config, task).items():
            own[f"{task} {name}".strip()] = differences(FinetuneConfig(), config)
    rows = [
        [
            name,
            ", ".join(f"{setting}={as_word(value)}" for setting, (_, value) in each.items()) or "-",
        ]
        for name, each in own.items()
    ]
    print_table(rows, ["row or task", "settings that differ"])
    print_step("Runs")


def _print_session(session: "Session") -> None:
    """Print the settings and the runs of a suite, and how long what is left takes."""
    _print_settings(session)
    rows = [
        (
            run.name,
            f"{run.config.train.steps:,}",
            f"{run.flops['true']:.2e}",
            f"{run.flops['paper']:.2e}",
            run.trunk or "-",
            _name_state(session, run),
        )
        for run in session.plan.runs
    ]
    print_table(rows, ["run", "steps", "true FLOPs", "paper's FLOPs", "branches off", "state"])
    if not session.left:
        return print_done(f"all {len(rows)} runs are done; nothing was written")
    pretraining, finetuning = map(format_seconds, session.estimate())
    print_done(
        f"{len(session.left)} of {len(rows)} runs are left: about {pretraining} of pre-training "
        f"and {finetuning} of fine-tuning on this machine, {session.jobs} at a time; nothing was "
        "written"
    )
