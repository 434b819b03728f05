"""finetune, and submit, which sends what it answered to GLUE."""

import dataclasses
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from electra.assignments import override_from_toml
from electra.cli.options import (
    DryRun,
    Set,
    Toml,
    Words,
    completed,
    keeping,
    print_dry_run,
    refuse_existing,
    refuse_file,
    settings_of,
)
from electra.errors import command
from electra.presets import FINETUNE_PRESETS
from electra.terminal.live import Progress, show_finetuning
from electra.terminal.printing import print_done, print_note, print_table

if TYPE_CHECKING:
    from electra.finetuning.start import Job

MAX_LABELS = 10
"""Labels that a dry run tells, the most frequent first."""


def finetune(
    start: Path,
    *,
    task: Annotated[str, completed(lambda: import_module("electra.tasks.registry").TASKS)],
    data: Path,
    out: Path,
    seeds: int = 1,
    from_scratch: bool = False,
    grid: Words = (),
    set_: Annotated[Set, settings_of(FINETUNE_PRESETS["tiny"])] = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune an encoder on a labelled task and score it, over one or more seeds.

    The tasks are those of GLUE by name (cola, sst-2, ... mnli), squad-1.1, squad-2.0, swag,
    `tagging` (named entities, chunks or parts of speech, in CoNLL's columns or JSON lines), and
    `own`, a task of yours: a folder with a train and a dev file, and perhaps a test file, as .tsv,
    .csv, .jsonl or .parquet. Without a dev file, `--set dev_fraction=0.1` makes a tenth of train
    the dev set. Each row holds a text, a pair of texts, or a text and choices, with a label, a
    number, or several of them (own.kind). `--set own.field=value` names the files and columns; so
    does `--task FILE.toml`, a file of the same fields.

    A command that was interrupted continues after its last finished seed when it is given again.

    Example: electra finetune run --task cola --data glue/CoLA --seeds 5 --out cola

    Args:
        start: The encoder: a run folder that `electra pretrain` wrote, one of its checkpoints, a
            Hugging Face folder, english-tiny, or a folder written by `electra finetune`; its best
            seed on dev is fine-tuned further.
        task: The task's name, or a .toml file that describes one.
        data: The folder of the task's files, or the training file alone.
        out: The folder of scores and models to write.
        seeds: Number of fine-tunings, each with a seed of its own; their median is the score.
        from_scratch: Take the encoder's sizes but not its weights; the comparison shows what
            pre-training is worth.
        grid: Settings as field=value,value. Every combination is fine-tuned into a folder of its
            own in OUT, and the one with the best score on dev is chosen.
    """
    from electra.checkpoints.folder import read_model, read_sizes
    from electra.finetuning.grid import combine, search, tabulate
    from electra.finetuning.loop import finetune as run_finetune
    from electra.finetuning.loop import require_seeds
    from electra.finetuning.start import read_job
    from electra.presets import finetune_preset
    from electra.reports.runs import finetuning_table, read_finetuning

    preset = finetune_preset(read_sizes(start))
    if grid:  # it compares seeds as they are drawn
        preset = dataclasses.replace(preset, reseeds=0)
    settings = override_from_toml(preset, config, set_)
    combinations = combine(settings, set_, grid)  # without a grid it is one
    refuse_existing(out)
    require_seeds(seeds)
    if dry_run:
        times = f"{seeds} times" if seeds > 1 else "once"
        each = f" with each of {' '.join(combinations)}" if grid else ""
        pretrained = read_model(start)
        for settings in reversed(combinations.values()):  # all are checked, the first is printed
            job = read_job(pretrained, task, data, settings, from_scratch=from_scratch)
        return _print_plan(job, f"fine-tune {times}{each}, write {out}")
    incomplete = out.with_name(f"{out.name}.incomplete")
    kept = keeping(incomplete, "finished seed", "**/seed-*[0-9]")
    with kept, Progress(f"fine-tuning on {task}", unit="steps") as progress:
        show = show_finetuning(progress, seeds * len(combinations))
        how: dict[str, Any] = {"seeds": seeds, "from_scratch": from_scratch, "progress": show}
        if grid:
            results = search(start, task, data, out, combinations, **how)
            scores, table = out / results["best"], tabulate(results)
        else:
            results = run_finetune(start, task, data, out, *combinations.values(), **how)
            scores, table = out, finetuning_table([read_finetuning(out / "results.json")])
    print_table(table.rows, table.headers)
    _print_end(start, out, scores, results["notes"])


def _print_plan(job: "Job", rest: str) -> None:
    """Print what was found of a task, and what would be done."""
    question = job.task
    files, columns = ", ".join(map(str, question.files)), ", ".join(chain(*question.columns))
    found = ", ".join(f"{len(each):,} in {split}" for split, each in question.examples.items())
    if counts := question.family.tally(question.examples["train"]):
        told = [f"{name} {count:,}" for name, count in counts.most_common()]
        told[MAX_LABELS:] = [f"and {len(told) - MAX_LABELS} more"] * (len(told) > MAX_LABELS)
        found = f"{found}; labels of train: {', '.join(told)}"
    for note in question.notes:
        print_note(note)
    print_dry_run(job.config, f"read {files} (columns {columns}; {found}), {rest}")


def _print_end(start: Path, out: Path, scores: Path, notes: list[str]) -> None:
    for note in notes:
        print_note(note)
    is_run = (start / "metrics.jsonl").is_file()  # only of a run there is a page
    report_it = command("report", start, scores, "--out", "report.html")
    predict_it = command("predict", scores, "--input", "FILE")
    print_done(f"wrote {out}", report_it if is_run else predict_it)


def submit(
    folders: tuple[Path, ...],
    *,
    out: Path = Path("submission.zip"),
    ensemble: bool = False,
    partial: bool = False,
    dry_run: DryRun = False,
) -> None:
    """Write the answers to GLUE's test sets as the zip that gluebenchmark.com takes.

    Of several seeds, the one with the best score on dev answers; seeds that were run in place of
    collapsed ones are among them. WNLI is answered with the most frequent label of its train set,
    unless a fine-tuning on WNLI is given.

    Example: electra submit cola sst-2 mrpc sts-b qqp mnli qnli rte --out submission.zip

    Args:
        folders: Finished fine-tuning folders, one per task, whose data held the test sets.
        out: The .zip file to write.
        ensemble: Answer with the mean of the probabilities, or of the numbers, of all seeds but
            those that were run in place of collapsed ones.
        partial: Leave out the test sets that no folder has answers to, instead of refusing.
    """
    from electra.finetuning.submit import submit as run_submit

    refuse_file(out, (".zip",))
    if dry_run:
        return print_dry_run(None, f"read {', '.join(map(str, folders))} and write {out}")
    answers = run_submit(folders, out, ensemble=ensemble, partial=partial)
    rows = [(each.name, len(each.predictions), each.origin) for each in answers]
    print_table(rows, ["file", "rows", "answered by"])
    print_done(f"wrote {out}")
