"""The verbs and their words: the only place that parses arguments. Programs are imported when used.

Exit status: 0 done; 1 a bug, with a traceback; 2 a user's mistake, or what the system refuses (a
full disk, no permission, a name that is too long), in one line; 130 interrupted.
"""

import dataclasses
import errno
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Parameter

import electra
from electra.config import (
    PrepareConfig,
    PretrainConfig,
    TokenizerConfig,
    UserError,
    did_you_mean,
    require,
    require_schedule,
)
from electra.presets import PRESETS, QUICKSTART
from electra.settings import (
    flatten,
    override,
    override_from_toml,
    override_values,
    read_toml,
    to_dict,
)

app = App(
    name="electra",
    help="""Pre-train text encoders by replaced token detection, and prove how good they are.

From text to a scored, exported encoder, a verb a step, each reading what the one before wrote:
tokenizer, prepare, pretrain, finetune, report, predict, export. `electra quickstart` does most of
them in five minutes. Files and folders are described in docs/ARTEFACTS.md.""",
    version=electra.__version__,
    help_format="markdown",
)
app.register_install_completion_command(help="Install completion for this shell.")

Text = Annotated[
    tuple[str, ...],
    Parameter(
        help="Files, folders or globs of .txt, .jsonl or .parquet, also .gz, .xz or .zst; - is "
        "standard input."
    ),
]
Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative=(),
        consume_multiple=True,
        help="Settings as field=value, or section.field=value; see --dry-run for all of them.",
    ),
]
Toml = Annotated[
    Path | None, Parameter(name="--config", help="A TOML file of settings; --set comes after it.")
]
DryRun = Annotated[
    bool,
    Parameter(
        name="--dry-run",
        negative=(),
        help="Print the resolved settings and what would be done, and do nothing.",
    ),
]

ConfigType = TypeVar("ConfigType")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What writing to an open file may meet; such an error has no path."""
RUST_ERROR = re.compile(r"\(os error (\d+)\)")
"""How safetensors and tokenizers, which have exceptions of their own, tell what the system said."""


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line; every way out is an exit status."""
    from electra.terminal import print_error, print_note

    given = sys.argv[1:] if tokens is None else tokens
    # The parser would take a lone - for an option.
    words = ["./-" if word == "-" else word for word in given]
    try:
        for word in words:
            # Such a name could be read, but not written into a manifest.
            require(
                _is_text(word), f"{word!r} is not UTF-8, or has a NUL in it; choose another name"
            )
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print_note(str(message))
            app(words, exit_on_error=False, print_error=False, result_action="return_none")
    except CycloptsError as error:
        print_error(" ".join(str(error).split()))
        sys.exit(2)
    except UserError as error:
        print_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        print_error("interrupted; nothing half-written was left")
        sys.exit(130)
    except Exception as error:
        if not (refusal := _describe_refusal(error)):
            raise
        print_error(refusal)
        sys.exit(2)


def _is_text(word: str) -> bool:
    is_utf8 = word == word.encode("utf-8", "replace").decode()
    return is_utf8 and "\0" not in word


def _describe_refusal(error: Exception) -> str:
    """Return what the system refused, with the path where there is one; of a bug, nothing."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"writing failed: {error.strerror}"
    if not isinstance(error, OSError) and (number := RUST_ERROR.search(str(error))):
        return f"writing failed: {os.strerror(int(number[1]))}"
    return ""


@app.command
def tokenizer(
    text: Text,
    *,
    out: Path,
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Train a WordPiece vocabulary from text: the same text always gives the same file.

    Example: electra tokenizer corpus/*.txt.xz --out vocabulary --set vocab_size=30522

    Parameters
    ----------
    out
        The tokenizer folder to write.
    """
    from electra.corpus.text import TextCounts, read_documents
    from electra.corpus.tokenizer import Tokenizer
    from electra.terminal import Progress, print_done

    settings = _resolve(TokenizerConfig(), config, set_)
    reading = PrepareConfig()
    files = _find_text(text)
    _refuse_existing(out)
    if dry_run:
        return _print_plan(settings, f"read {_describe(files)} and write the tokenizer {out}")
    counts = TextCounts()
    with Progress("vocabulary", unit="documents") as progress:

        def lines() -> Any:
            documents = read_documents(
                files, border=reading.border, text_field=reading.text_field, counts=counts
            )
            for number, document in enumerate(documents):
                progress.update(number, None)
                yield from document

        made = Tokenizer.train(lines(), settings)
    made.save(out)
    print_done(
        f"wrote {out}: {made.vocab_size:,} tokens from {counts.characters / 1e6:,.0f} M characters",
        f"electra prepare {shlex.join(text)} --tokenizer {out} --out shards",
    )


@app.command
def prepare(
    text: Text,
    *,
    tokenizer: Path,
    out: Path,
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Turn text into token shards with a held-out part, once for every sequence length.

    A document ends at a blank line; --set border=line or border=file if yours end otherwise.
    Records of .jsonl and rows of .parquet are documents of their own; --set text_field=NAME names
    their field or column.

    Example: electra prepare corpus/*.txt.xz --tokenizer vocabulary --out shards

    Parameters
    ----------
    tokenizer
        A folder of `electra tokenizer`, a Hugging Face folder, or BERT's vocab.txt.
    out
        The shards folder to write.
    """
    from electra.corpus.prepare import prepare as run_prepare
    from electra.corpus.tokenizer import Tokenizer
    from electra.terminal import Progress, print_done

    settings = _resolve(PrepareConfig(), config, set_)
    files = _find_text(text)
    loaded = Tokenizer.load(tokenizer)
    _refuse_existing(out)
    if dry_run:
        return _print_plan(settings, f"read {_describe(files)} and write the shards {out}")
    with Progress("preparing", unit="bytes") as progress:
        manifest = run_prepare(
            text,
            loaded,
            out,
            settings,
            lambda done, total, tokens: progress.update(done, total, f"{tokens:,} tokens"),
        )
    parts, source = manifest["parts"], manifest["text"]
    notes = [
        f"{parts['train']['num_tokens']:,} tokens in {parts['train']['num_documents']:,} documents",
        f"held out {parts['heldout']['num_tokens']:,} in {parts['heldout']['num_documents']:,}",
        f"unknown tokens {manifest['unk_tokens']:,}",
    ]
    if source["invalid_sequences"]:
        notes.append(f"invalid UTF-8 replaced {source['invalid_sequences']:,} times")
    print_done(f"wrote {out}: {'; '.join(notes)}", f"electra pretrain {out} --out run")


@app.command
def pretrain(
    shards: Path | None = None,
    *,
    preset: Annotated[
        str | None, Parameter(help=f"One of {', '.join(PRESETS)}; tiny if not given.")
    ] = None,
    out: Path | None = None,
    resume: Path | None = None,
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Pre-train an encoder by replaced token detection.

    The first Ctrl-C (or SIGTERM) writes a checkpoint and stops; --resume continues as if nothing
    had happened, bit for bit on a CPU.

    Example: electra pretrain shards --preset small --out run --set train.steps=200000

    Parameters
    ----------
    shards
        A folder of `electra prepare`. With --resume: where the shards are now, if they have moved.
    out
        The run folder to write.
    resume
        A run folder to continue; its own settings count.
    """
    from electra.reports.glossary import describe_heldout
    from electra.terminal import Display, print_done

    if resume is not None:
        require(out is None, "--resume continues in its own folder; leave --out away")
        require(
            not set_ and config is None and preset is None,
            "--resume keeps the run's settings; leave --set, --config and --preset away",
        )
        from electra.runs.pretrained import read_run_config

        settings = read_run_config(resume)
        if dry_run:
            return _print_plan(settings, f"continue {resume}")
    else:
        settings = _resolve_pretraining(preset or "tiny", config, set_)
        if shards is None or out is None:
            raise UserError("pretrain needs SHARDS and --out RUN, or --resume RUN")
        _refuse_existing(out)
        if dry_run:
            return _print_plan(settings, f"read the shards {shards} and write the run {out}")
    from electra.pretraining.loop import Interrupted
    from electra.pretraining.loop import pretrain as run_pretrain
    from electra.pretraining.loop import resume as run_resume

    run = resume or out
    assert run is not None
    try:
        with Display(steps=settings.train.steps) as display:
            if resume is not None:
                results = run_resume(resume, display.show, shards)
            else:
                assert shards is not None
                results = run_pretrain(shards, run, settings, display.show)
    except Interrupted as stop:
        print_done(
            f"stopped at step {stop.step:,}; {run} is safe", f"electra pretrain --resume {run}"
        )
        sys.exit(130)
    wrote = f"wrote {run}"
    if results["heldout"]:
        reached = describe_heldout(results["heldout"]).items()
        wrote += f": {', '.join(f'{name} {value}' for name, value in reached)} on held-out text"
    print_done(
        wrote,
        f"electra finetune {run} --task own --data FOLDER --out results",
    )


@app.command
def plan(
    *,
    preset: Annotated[str, Parameter(help=f"One of {', '.join(PRESETS)}.")] = "small",
    steps: int | None = None,
    probe_seconds: float = 10,
    set_: Set = (),
    config: Toml = None,
) -> None:
    """Tell what a pre-training run will take, from steps timed on this machine.

    Example: electra plan --preset small --steps 100000

    Parameters
    ----------
    steps
        Optimizer steps, in place of the preset's; the same as --set train.steps=N.
    probe_seconds
        How long steps are timed.
    """
    from electra.pretraining.plan import plan as run_plan
    from electra.reports.glossary import format_count, format_seconds
    from electra.terminal import Progress, print_done, print_table

    given = [*set_, *([f"train.steps={steps}"] if steps is not None else [])]
    settings = _resolve_pretraining(preset, config, given)
    with Progress("timing steps", unit="seconds") as progress:
        found = run_plan(
            settings,
            probe_seconds,
            lambda seconds: progress.update(round(seconds), round(probe_seconds)),
        )
    train, length = settings.train, settings.examples.sequence_length
    rows = [
        ("parameters of the kept encoder", f"{found.kept_parameters:,}"),
        ("parameters in training", f"{found.parameters:,}"),
        ("steps", f"{found.steps:,} of {train.batch_size} x {length}"),
        ("tokens", format_count(found.tokens)),
        ("FLOPs, true count", f"{found.flops['true']:.3e}"),
        ("FLOPs, the paper's count", f"{found.flops['paper']:.3e}"),
        ("memory, about", f"{found.memory / 2**30:.1f} GiB"),
        ("speed, about", f"{format_count(found.tokens / found.seconds)} tokens/s"),
        ("time, about", format_seconds(found.seconds)),
        ("on", found.device),
    ]
    print_table(rows, ["what", "how much"])
    words = shlex.join(["--set", *given]) if given else ""
    print_done("planned", f"electra pretrain SHARDS --preset {preset} --out run {words}".rstrip())


@app.command
def flops(
    *,
    preset: Annotated[str, Parameter(help=f"One of {', '.join(PRESETS)}.")] = "small",
    set_: Set = (),
    config: Toml = None,
) -> None:
    """Count the floating-point operations of a pre-training run, part by part.

    True: the matrix products that a step needs, backward twice forward. Paper: the count of the
    paper's tables, which takes embedding look-ups for products and backward for as much as forward.
    Comparisons at equal compute use the true one.

    Example: electra flops --preset base --set method.objective=mlm train.steps=1000000
    """
    from electra.method.flops import count_parts, count_run, count_true
    from electra.method.registry import sketch_objective
    from electra.reports.glossary import format_count
    from electra.terminal import print_done, print_table

    settings = _resolve_pretraining(preset, config, set_)
    objective, length = sketch_objective(settings), settings.examples.sequence_length
    total = count_true(objective, length)
    rows = [
        (
            part.name,
            f"{part.forward / 1e6:.3f}",
            f"{part.train / 1e6:.3f}",
            f"{part.train / total:.1%}",
        )
        for part in count_parts(objective, length)
    ]
    rows.append(("all", "", f"{total / 1e6:.3f}", "100.0%"))
    print_table(rows, ["part", "MFLOP a token, forward", "in training", "share"])
    run = count_run(objective, settings)
    train = settings.train
    tokens = train.steps * train.batch_size * length
    print_done(
        f"{train.steps:,} steps of {train.batch_size} x {length}, "
        f"{format_count(tokens)} tokens: true {run['true']:.3e}, paper {run['paper']:.3e}"
    )


@app.command
def finetune(
    start: Path,
    *,
    task: str,
    data: Path,
    out: Path,
    seeds: int = 1,
    from_scratch: Annotated[bool, Parameter(negative=())] = False,
    grid: Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)] = (),
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Fine-tune an encoder on a labelled task and score it, over one or more seeds.

    Tasks are GLUE's by name (cola, sst-2, ... mnli), squad-1.1, squad-2.0, swag, `tagging` (named
    entities, chunks, parts of speech in CoNLL's columns or JSON lines), and your own: a folder with
    train and dev (and test) .tsv, .csv, .jsonl or .parquet files with a text, a pair, or a text and
    choices, and a label or a number. What is where, `--task own --set own.field=value` says, or
    `--task FILE.toml` with the same fields. An interrupted command, given again, goes on after the
    last finished seed.

    Example: electra finetune run --task cola --data glue/CoLA --seeds 5 --out cola

    Parameters
    ----------
    start
        A run folder of `electra pretrain`, a Hugging Face folder, or a folder of `electra
        finetune`, whose best seed on dev goes on to learn this task.
    task
        The task's name, or a .toml file that describes one.
    data
        The folder of the task's files.
    out
        The folder of scores to write.
    seeds
        Number of runs; the median counts.
    from_scratch
        Take the sizes but not the weights: the comparison that shows what pre-training is worth.
    grid
        Settings as field=value,value: every combination is fine-tuned into a folder of its own
        below OUT, and dev chooses the best.
    """
    from electra.finetuning.grid import combine, search, tabulate
    from electra.finetuning.loop import finetune as run_finetune
    from electra.presets import finetune_preset
    from electra.reports.runs import read_finetuning
    from electra.reports.tables import finetuning_table
    from electra.runs.pretrained import load_pretrained
    from electra.terminal import Progress, print_done, print_note, print_table, show_finetuning

    preset = finetune_preset(load_pretrained(start).encoder)
    if grid:  # it compares seeds as they are drawn
        preset = dataclasses.replace(preset, reseeds=0)
    preset = _resolve(preset, config, ())
    combinations = combine(preset, set_, grid)  # without a grid it is one
    settings = next(iter(combinations.values()))
    _refuse_existing(out)
    if dry_run:
        from electra.tasks.registry import read_task, resolve_own

        settings = resolve_own(task, settings)
        question = read_task(task, data, settings)
        files = ", ".join(map(str, question.files))
        each = f" with each of {' '.join(combinations)}" if grid else ""
        return _print_plan(settings, f"read {files}, fine-tune {seeds} times{each}, write {out}")
    with Progress(f"fine-tuning on {task}", unit="steps") as progress:
        show = show_finetuning(progress, seeds * len(combinations))
        if grid:
            results = search(
                *(start, task, data, out, combinations),
                seeds=seeds,
                from_scratch=from_scratch,
                progress=show,
            )
        else:
            results = run_finetune(
                *(start, task, data, out, settings),
                seeds=seeds,
                from_scratch=from_scratch,
                progress=show,
            )
    scores = out / results["best"] if grid else out
    table = tabulate(results) if grid else finetuning_table([read_finetuning(out / "results.json")])
    print_table(table.rows, table.headers)
    for note in results["notes"]:
        print_note(note)
    is_run = (start / "metrics.jsonl").is_file()  # only of a run there is a page
    report_it = f"electra report {start} {scores} --out report.html"
    print_done(f"wrote {out}", report_it if is_run else f"electra predict {scores} --input FILE")


@app.command
def submit(
    folders: Annotated[tuple[Path, ...], Parameter(negative=())],
    *,
    out: Path = Path("submission.zip"),
    ensemble: Annotated[bool, Parameter(negative=())] = False,
    partial: Annotated[bool, Parameter(negative=())] = False,
    dry_run: DryRun = False,
) -> None:
    """Write the answers to GLUE's test sets as the zip that gluebenchmark.com takes.

    Of several seeds, those in place of collapsed ones included, the best on dev answers. WNLI is
    answered with the majority of its train set unless a fine-tuning on it is given.

    Example: electra submit cola sst-2 mrpc sts-b qqp mnli qnli rte --out submission.zip

    Parameters
    ----------
    folders
        Finished fine-tuning folders, one a task; their data must have held the test sets.
    out
        The zip to write.
    ensemble
        Answer with the mean of the probabilities or numbers of all seeds as drawn.
    partial
        Leave out the test sets that no folder has answers to.
    """
    from electra.finetuning.submit import submit as run_submit
    from electra.terminal import print_done, print_table

    _refuse_existing(out)
    if dry_run:
        return _print_plan(None, f"read {', '.join(map(str, folders))} and write {out}")
    answers = run_submit(folders, out, ensemble=ensemble, partial=partial)
    rows = [(each.name, len(each.predictions), each.origin) for each in answers]
    print_table(rows, ["file", "rows", "answered by"])
    print_done(f"wrote {out}")


@app.command
def report(
    folders: Annotated[tuple[Path, ...], Parameter(negative=())],
    *,
    out: Path | None = None,
    readme: Path | None = None,
    dry_run: DryRun = False,
) -> None:
    """Write a self-contained HTML page about runs and their fine-tunings, or a README's tables.

    Example: electra report run cola --out report.html

    Parameters
    ----------
    folders
        Run folders and fine-tuning folders, in any order; with --readme the folder of results.
    out
        The HTML file to write.
    readme
        A README whose table of results to replace; with it docs/RESULTS.md and docs/results.svg.
    """
    from electra.reports.page import write_page
    from electra.reports.readme import update_readme
    from electra.reports.runs import read_finetuning, read_runs, read_samples
    from electra.terminal import print_done

    require(
        (out is None) != (readme is None), "report needs either --out PAGE.html or --readme FILE"
    )
    if out is not None:
        require(not out.is_dir(), f"{out} is a folder; name a file, as {out / 'report.html'}")
    if dry_run:
        return _print_plan(None, f"read {', '.join(map(str, folders))} and write {out or readme}")
    if readme is not None:
        require(len(folders) == 1, "--readme takes one folder of results")
        written = update_readme(readme, folders[0])
        return print_done(f"wrote {', '.join(map(str, written))}")
    assert out is not None
    runs = [folder for folder in folders if (folder / "metrics.jsonl").exists()]
    finetunings = [
        read_finetuning(folder / "results.json") for folder in folders if folder not in runs
    ]
    require(bool(runs), "report needs at least one run folder of `electra pretrain`")
    write_page(
        out,
        read_runs(runs),
        finetunings=finetunings,
        sentences=read_samples(runs[0]),
        files={str(folder): "read" for folder in folders},
        next_command=f"electra export {runs[0]} --out exported",
    )
    print_done(f"wrote {out}", f"electra export {runs[0]} --out exported")


@app.command
def predict(
    run: Path,
    *,
    input_: Annotated[Path, Parameter(name="--input")],
    out: Path | None = None,
    seed: int | None = None,
    columns: Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)] = (),
    dry_run: DryRun = False,
) -> None:
    """Answer a file without labels with a fine-tuned model, one line for each input, in its order.

    Texts and pairs stand in a table with the columns of training; single texts may also stand in a
    .txt file, a text a line. Sentences to tag stand in CoNLL's columns, in JSON lines with
    `tokens`, or in a .txt file, a sentence a line with spaces between its words; questions in
    SQuAD's or MRQA's files, or in a table with `question` and `context`. Blank lines are no inputs.

    Example: electra predict cola --input texts.tsv --out answers.tsv

    Parameters
    ----------
    run
        A folder of `electra finetune`.
    input_
        The file; - is standard input, a text a line.
    out
        The .jsonl or .tsv file to write. Without it JSON lines go to standard output.
    seed
        Whose model answers; the one with the best score on dev if not given.
    columns
        Names of the columns to read where they are not those of training: text, or both texts, or
        question and context; of CoNLL's columns the word's number.
    """
    from electra.runs.finetuned import read_finetuned
    from electra.serving.predict import answer, ask, check_format, list_json, write_answers
    from electra.terminal import Progress, print_done, print_lines, print_note

    model = read_finetuned(run, seed)
    if out is not None:
        check_format(out)
    task = ask(model, input_, columns)
    count = sum(map(len, task.examples.values()))
    if dry_run:
        where = out or "standard output"
        return _print_plan(
            None, f"answer {count:,} inputs of {input_} with seed {model.seed} to {where}"
        )
    with Progress("predicting", unit="rows") as progress:
        answers = answer(model, task, progress.update)
    if answers.num_cut:
        print_note(
            f"{answers.num_cut:,} of {count:,} inputs were longer than the run's rows of "
            f"{model.config.sequence_length} tokens and were cut"
        )
    if out is None:
        return print_lines(list_json(answers))
    write_answers(out, answers)
    print_done(f"wrote {out}: {count:,} answers of seed {model.seed} of {run}")


@app.command
def export(run: Path, *, out: Path, seed: int | None = None, dry_run: DryRun = False) -> None:
    """Write what was pre-trained or fine-tuned as Hugging Face folders.

    Of a pre-training, transformers loads OUT as AutoModelForPreTraining, AutoModel and
    AutoTokenizer, and OUT/generator as AutoModelForMaskedLM; of a fine-tuning, OUT as
    AutoModelForSequenceClassification, TokenClassification, QuestionAnswering or MultipleChoice,
    which answers as `electra predict` does. No code of ours is needed.

    Example: electra export run --out exported

    Parameters
    ----------
    run
        A run folder of `electra pretrain`, or a folder of `electra finetune`.
    out
        The folder to write.
    seed
        Of a fine-tuning, whose model; the one with the best score on dev if not given.
    """
    from electra.runs.export import export as run_export
    from electra.runs.export import export_finetuned
    from electra.runs.finetuned import is_finetuned, read_finetuned
    from electra.runs.pretrained import read_run_config
    from electra.terminal import print_done

    if is_finetuned(run):
        model = read_finetuned(run, seed)
        _refuse_existing(out)
        if dry_run:
            return _print_plan(model.config, f"read seed {model.seed} of {run} and write {out}")
        architecture = export_finetuned(model, out)
        return print_done(
            f"wrote {out}: seed {model.seed} of {run} as {architecture}",
            f'python -c "from transformers import {architecture} as Model; '
            f"Model.from_pretrained('{out}')\"",
        )
    require(seed is None, f"--seed is for a folder of `electra finetune`, which {run} is not")
    settings = read_run_config(run)
    _refuse_existing(out)
    if dry_run:
        return _print_plan(settings, f"read {run} and write {out} and {out / 'generator'}")
    run_export(run, out)
    print_done(
        f"wrote {out} and {out / 'generator'}",
        f"python -c \"from transformers import AutoModel; AutoModel.from_pretrained('{out}')\"",
    )


@app.command
def score(
    run: Path,
    *,
    text: Path,
    out: Path,
    dry_run: DryRun = False,
) -> None:
    """Write the pseudo-log-likelihood of every line, by a run with method.objective=electric.

    It is the sum over a line's tokens of log p(token | all the others), but for a constant each;
    the higher, the likelier. The columns of the file are pll, tokens and text.

    Example: electra score run --text sentences.txt --out scores.tsv

    Parameters
    ----------
    run
        A run folder of `electra pretrain --set method.objective=electric`.
    text
        A text file, a sentence a line.
    out
        The .tsv file to write.
    """
    from electra.serving.score import read_sentences, score_lines, write_scores
    from electra.terminal import Progress, print_done

    lines = read_sentences(text)
    _refuse_existing(out)
    if dry_run:
        return _print_plan(None, f"score {len(lines):,} lines of {text} with {run} and write {out}")
    with Progress("scoring", unit="lines") as progress:
        scores = score_lines(run, lines, progress.update)
    write_scores(out, scores)
    mean = sum(each.pll for each in scores) / sum(each.num_tokens for each in scores)
    print_done(f"wrote {out}: {len(scores):,} lines, {mean:.3f} a token on average")


@app.command
def quickstart(
    *,
    text: Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)] = (),
    out: Path = Path("quickstart"),
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Do everything once, in about five minutes on two cores, and show what came out.

    Without --text the corpus is the documentation that Python and its packages carry; with it, your
    own. See what each step would be by hand in the lines it prints.

    Parameters
    ----------
    text
        Files, folders or globs of your own text.
    out
        The folder to write; a new number is added to the name if it exists.
    """
    settings = _resolve(QUICKSTART, config, set_)
    out = _next_free(out)
    if dry_run:
        source = ", ".join(text) or "the documentation of Python and its packages"
        return _print_plan(settings, f"read {source} and write {out}")
    from electra.quickstart.run import quickstart as run_quickstart

    run_quickstart(text, out, settings)


def _resolve_pretraining(
    preset: str, toml: Path | None, assignments: Sequence[str]
) -> PretrainConfig:
    """Return the settings of a pre-training; a preset's warm-up is cut to a tenth of a short one.

    A warm-up that was set is kept, or refused.
    """
    require(preset in PRESETS, f"unknown preset {preset!r}{did_you_mean(preset, PRESETS)}")
    settings, given = PRESETS[preset], {word.partition("=")[0].strip() for word in assignments}
    if toml is not None:
        values = read_toml(toml)
        settings = override_values(settings, values, toml)
        given.update(values)
    settings = override(settings, assignments)
    warmup_steps, tenth = settings.optimizer.warmup_steps, settings.shortest_schedule // 10
    if warmup_steps > tenth and "optimizer.warmup_steps" not in given:
        from electra.terminal import print_note

        print_note(
            f"optimizer.warmup_steps={tenth}, a tenth of the schedule: {preset}'s {warmup_steps:,} "
            "are for a longer one"
        )
        settings = override(settings, [f"optimizer.warmup_steps={tenth}"])
    require_schedule(settings)
    return settings


def _resolve(settings: ConfigType, toml: Path | None, assignments: Sequence[str]) -> ConfigType:
    if toml is not None:
        settings = override_from_toml(settings, toml)
    return override(settings, assignments)


def _refuse_existing(out: Path) -> None:
    require(not out.exists(), f"{out} exists already; remove it or choose another --out")


def _next_free(out: Path) -> Path:
    require(bool(out.name), f"{out} exists already; name a folder in it, as {out / 'quickstart'}")
    free, number = out, 2
    while free.exists():
        free, number = out.with_name(f"{out.name}-{number}"), number + 1
    return free


def _find_text(text: Sequence[str]) -> Sequence[Path]:
    """Return the files to read, and tell what is passed over and what is waited for."""
    from electra.corpus.sources import find_sources, name_passed_over
    from electra.terminal import print_note

    sources = find_sources(text)
    if sources.passed_over:
        print_note(name_passed_over(sources.passed_over))
    for path in sources.files:
        if path.is_fifo():
            print_note(f"{path} is a pipe; waiting until something is written to it")
    return sources.files


def _describe(files: Sequence[Path]) -> str:
    size = sum(file.stat().st_size for file in files if file.is_file())
    return f"{len(files)} file{'s' if len(files) != 1 else ''} ({size / 1e6:,.1f} MB)"


def _print_plan(settings: Any, action: str) -> None:
    from electra.terminal import print_plan

    print_plan(dict(flatten(to_dict(settings))) if settings is not None else {}, action)
