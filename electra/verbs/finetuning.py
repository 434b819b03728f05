"""finetune, and submit, which sends what it answered to GLUE."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from electra.assignments import override_from_toml
from electra.errors import command
from electra.presets import FINETUNE_PRESETS
from electra.tasks.config import FinetuneConfig
from electra.terminal.live import Progress, show_finetuning
from electra.terminal.printing import print_done, print_note, print_table
from electra.verbs.arguments import (
    as_list,
    as_path,
    as_paths,
    as_words,
    ignore,
    keeping,
    refuse_existing,
    refuse_file,
)
from electra.verbs.options import (
    DryRun,
    Place,
    Places,
    Planned,
    Set,
    Show,
    Toml,
    Words,
    completed,
    settings_of,
    verb,
)

if TYPE_CHECKING:
    from electra.finetuning.start import Job
    from electra.finetuning.submit import SubmissionFile

MAX_LABELS = 10
"""Labels that a dry run prints, the most frequent first."""


@verb
def finetune(
    start: Place,
    *,
    task: Annotated[str, completed(lambda: import_module("electra.tasks.registry").TASKS)],
    data: Place,
    out: Place,
    seeds: int = 1,
    from_scratch: bool = False,
    teacher: Places = (),
    grid: Words = (),
    settings: Annotated[Set, settings_of(FINETUNE_PRESETS["tiny"])] = (),
    config: Toml = None,
    dry_run: DryRun = False,
    show: Show = ignore,
) -> dict[str, Any]:
    """Fine-tune an encoder on a labelled task and score it, over one or more seeds.

    The tasks are those of GLUE by name (cola, sst-2, ... mnli), squad-1.1, squad-2.0, swag,
    `tagging` (named entities, chunks or parts of speech, in CoNLL's columns or JSON lines),
    `retrieval` (tables with the columns query and positive, and perhaps negative), and `own`, a
    task of yours: a folder with a train and a dev file, and perhaps a test file, as .tsv, .csv,
    .jsonl or .parquet. Without a dev file, `--set dev_fraction=0.1` makes a tenth of train the dev
    set. Each row holds a text, a pair of texts, or a text and choices, with a label, a number, or
    several of them (own.kind). `--set own.field=value` names the files and columns; so does `--task
    FILE.toml`, a file of the same fields.

    After an interruption, the same command continues after the last finished seed. If all seeds are
    finished, it prints the results.

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
        teacher: Fine-tunings of the same task, of any encoder, whose answers replace the labels in
            training; the same as --set teacher.folders=FOLDER. teacher.text adds text without
            labels.
        grid: Settings as field=value,value. Every combination is fine-tuned into a folder of its
            own in OUT, and the one with the best score on dev is chosen.
        show: Called with records of the progress.

    Returns:
        The contents of results.json.
    """
    from electra.checkpoints.folder import read_model, read_sizes
    from electra.checkpoints.saved import is_finetuned
    from electra.finetuning.grid import combine, tabulate
    from electra.finetuning.loop import require_seeds
    from electra.finetuning.results import read_finished
    from electra.finetuning.start import read_job
    from electra.presets import finetune_preset
    from electra.reports.runs import finetuning_table, read_finetuning

    start, data, out, words = Path(start), Path(data), Path(out), as_words(settings)
    if teachers := as_paths(teacher):
        words = [*words, f"teacher.folders={','.join(map(str, teachers))}"]
    preset = finetune_preset(read_sizes(start))
    if grid:  # it compares seeds as they are drawn
        preset = dataclasses.replace(preset, reseeds=0)
    resolved = override_from_toml(preset, as_path(config), words)
    combinations = combine(resolved, words, as_list(grid))  # without a grid it is one
    is_finished = not grid and is_finetuned(out) and (out / "results.json").exists()
    if not is_finished:
        refuse_existing(out)
    require_seeds(seeds)
    if is_finished or dry_run:
        pretrained = read_model(start)
        for each in reversed(combinations.values()):  # all are checked, the first is described
            job = read_job(pretrained, task, data, each, from_scratch=from_scratch)
    if is_finished:
        results = read_finished(out, job.settings(), seeds)
    if dry_run:
        times = f"{seeds} times" if seeds > 1 else "once"
        many = f" with each of {' '.join(combinations)}" if grid else ""
        raise _plan(job, f"fine-tune {times}{many}, write {out}")
    if not is_finished:
        how: dict[str, Any] = {"seeds": seeds, "from_scratch": from_scratch}
        results = _train(start, task, data, out, combinations, show, is_grid=bool(grid), **how)
    scores = out / results["best"] if grid else out
    table = tabulate(results) if grid else finetuning_table([read_finetuning(out / "results.json")])
    print_table(table.rows, table.headers)
    did = "wrote" if not is_finished else "read"
    _print_end(start, out, scores, results["notes"], did, is_search=task.lower() == "retrieval")
    return results


def _train(
    start: Path,
    task: str,
    data: Path,
    out: Path,
    combinations: Mapping[str, FinetuneConfig],
    show: Show,
    *,
    is_grid: bool,
    **how: Any,
) -> dict[str, Any]:
    """Fine-tune with the settings, or each combination of a grid, and show the progress."""
    from electra.finetuning.grid import search
    from electra.finetuning.loop import finetune as run_finetune

    kept = keeping(out.with_name(f"{out.name}.incomplete"), "finished seed", "**/seed-*[0-9]")
    with kept, Progress(f"fine-tuning on {task}", unit="steps") as progress:
        display = show_finetuning(progress, how["seeds"] * len(combinations))

        def tell(record: dict[str, Any]) -> None:
            display(record)
            show(record)

        if is_grid:
            return search(start, task, data, out, combinations, **how, progress=tell)
        return run_finetune(start, task, data, out, *combinations.values(), **how, progress=tell)


def _plan(job: "Job", rest: str) -> Planned:
    """Return what would be done, with what was found of a task; print its notes."""
    question = job.task
    files, columns = ", ".join(map(str, question.files)), ", ".join(chain(*question.columns))
    found = ", ".join(f"{len(each):,} in {split}" for split, each in question.examples.items())
    if counts := question.family.tally(question.examples["train"]):
        told = [f"{name} {count:,}" for name, count in counts.most_common()]
        told[MAX_LABELS:] = [f"and {len(told) - MAX_LABELS} more"] * (len(told) > MAX_LABELS)
        found = f"{found}; labels of train: {', '.join(told)}"
    for note in question.notes:
        print_note(note)
    return Planned(job.config, f"read {files} (columns {columns}; {found}), {rest}")


def _print_end(
    start: Path, out: Path, scores: Path, notes: list[str], did: str, *, is_search: bool
) -> None:
    for note in notes:
        print_note(note)
    is_run = (start / "metrics.jsonl").is_file()  # only of a run there is a page
    report_it = command("report", start, scores, "--out", "report.html")
    use_it = command("predict", scores, "--input", "FILE")
    if is_search:
        use_it = command("search", scores, "a query", "--corpus", "FILE")
    print_done(f"{did} {out}", report_it if is_run and not is_search else use_it)


@verb
def submit(
    folders: Sequence[Place],
    *,
    out: Place = Path("submission.zip"),
    ensemble: bool = False,
    partial: bool = False,
    dry_run: DryRun = False,
) -> "list[SubmissionFile]":
    """Write the answers to GLUE's test sets as the zip that gluebenchmark.com takes.

    The answers come from the seed with the best score on dev, including replacements of collapsed
    seeds. WNLI is answered with the most frequent label of its train set, unless a fine-tuning on
    WNLI is given.

    Example: electra submit cola sst-2 mrpc sts-b qqp mnli qnli rte --out submission.zip

    Args:
        folders: Finished fine-tuning folders, one per task, whose data held the test sets.
        out: The .zip file to write.
        ensemble: Answer with the mean of the probabilities, or of the numbers, of all seeds except
            replacements of collapsed seeds.
        partial: Leave out the test sets that no folder has answers to, instead of refusing.

    Returns:
        The files of the zip, and what answered each.
    """
    from electra.finetuning.submit import submit as run_submit

    listed, out = as_paths(folders), Path(out)
    refuse_file(out, (".zip",))
    if dry_run:
        raise Planned(None, f"read {', '.join(map(str, listed))} and write {out}")
    answers = run_submit(listed, out, ensemble=ensemble, partial=partial)
    rows = [(each.name, len(each.predictions), each.origin) for each in answers]
    print_table(rows, ["file", "rows", "answered by"])
    print_done(f"wrote {out}")
    return answers
