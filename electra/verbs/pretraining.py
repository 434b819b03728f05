"""pretrain, and what can be computed before: plan and flops."""

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from electra.checkpoints.bundled import find_model
from electra.errors import UserError, command, require
from electra.files import parse_size
from electra.objects import place_of
from electra.presets import PRESETS
from electra.pretraining.resolution import resolve
from electra.reports.glossary import describe_heldout, format_about, format_count, format_seconds
from electra.terminal.live import Display, Progress
from electra.terminal.printing import print_done, print_note, print_table
from electra.text.config import TextConfig
from electra.training.config import PretrainConfig
from electra.verbs.arguments import as_list, as_path, as_words, ignore, refuse_existing, repeat
from electra.verbs.corpus import find_text
from electra.verbs.options import (
    PRESET,
    DryRun,
    InitFrom,
    Place,
    Planned,
    Recipe,
    Set,
    SetPretraining,
    Show,
    Toml,
    Words,
    settings_of,
    verb,
)

if TYPE_CHECKING:
    from electra.interop.importing import Imported
    from electra.pretraining.plan import Plan
    from electra.tokenizing.shrink import Smaller

HOURS = 1e15
"""Operations that any CPU does within hours: fewer need no estimate, which imports torch."""


@verb
def pretrain(
    shards: Place | None = None,
    *,
    preset: Annotated[
        str | None, PRESET, Parameter(help=f"One of {', '.join(PRESETS)}; tiny if not given.")
    ] = None,
    recipe: Recipe = None,
    out: Place | None = None,
    init_from: InitFrom = None,
    also_evaluate: Place | None = None,
    resume: Place | None = None,
    cooldown: int | timedelta | None = None,
    max_time: timedelta | None = None,
    cache: str | None = None,
    settings: Annotated[Set, settings_of(PRESETS["tiny"])] = (),
    config: Toml = None,
    dry_run: DryRun = False,
    show: Show = ignore,
) -> dict[str, Any]:
    """Pre-train an encoder by replaced token detection, or by another --set method.objective.

    The first Ctrl-C (or SIGTERM) writes a checkpoint and stops, a second one stops at once, and
    SIGUSR1 writes a checkpoint without stopping. The same command continues the run, and so does
    --resume. On a CPU the result is the same, bit for bit, as that of a run that was never
    interrupted. If all is finished, the command prints the results.

    Example: electra pretrain shards --preset small --out run --set train.steps=200000

    Args:
        shards: A folder that `electra prepare` wrote, or its URL. With --resume: where it is now,
            if it was moved.
        out: The run folder to write, or to continue if it is there and not complete.
        also_evaluate: With --init-from: the shards of the text that its weights were trained on,
            whose held-out part is evaluated beside that of the new text; the same as --set
            train.also_evaluate=SHARDS.
        resume: A run folder to continue, with the settings it was begun with.
        cooldown: With --resume RUN --out END: steps, or a time such as 30m, over which the learning
            rate decays to 0, starting from the newest checkpoint or from the one that --resume
            names. END is the finished run; RUN is not changed and can continue.
        max_time: Time after which the run writes a checkpoint and stops, such as 3h or 90m, for
            queues with a time limit. The exit status is then 0.
        cache: Disk space on this machine for shards at a URL, such as 200GB, with --set
            examples.order=window. Shards are copied when they are needed; without a cache, all are
            copied before the first step.
        show: Called with each record of metrics.jsonl.

    Returns:
        The contents of results.json.
    """
    shards = None if shards is None else place_of(shards)
    out, resume = as_path(out), as_path(resume)
    given = [
        *as_words(settings),
        *([f"train.init_from={init_from}"] if init_from else []),
        *([f"train.also_evaluate={also_evaluate}"] if also_evaluate else []),
    ]
    seconds = math.inf if max_time is None else max_time.total_seconds()
    require(seconds > 0, f"--max-time must be > 0, not {max_time}")
    limits = seconds, None if cache is None else parse_size(cache)
    if resume is not None:
        require(
            not given and config is None and preset is None and recipe is None,
            "--resume keeps the run's settings; leave out --set, --config, --preset, --recipe, "
            "--init-from and --also-evaluate",
        )
        job = _find_resumed(resume, out, cooldown)
    else:
        require(cooldown is None, "--cooldown needs --resume RUN")
        name = "tiny" if preset is None else preset
        resolved = resolve(name, recipe, given, toml=as_path(config), run=out, note=print_note)
        job = _find_new(shards, out, resolved, dry_run)
    if dry_run and job.run and not job.finished:
        from electra.pretraining.continuation import read_run

        read_run(job.run, None if resume else job.settings, "cpu")  # refuses what cannot continue
    if job.run is None and job.end is None:
        _note_time(job.settings)
    if dry_run:
        raise Planned(job.settings, job.action)
    run = job.run or out
    assert run is not None
    results = job.finished or _train(job, run, shards, resume, limits, show)
    _print_results(run, results, "read" if job.finished else "wrote")
    return results


def _train(
    job: "_Job",
    run: Path,
    shards: Path | None,
    resume: Path | None,
    limits: tuple[float, int | None],
    show: Show,
) -> dict[str, Any]:
    """Train within limits of seconds and of the cache, and show the records of the run."""
    from electra.pretraining.loop import pretrain as run_pretrain
    from electra.pretraining.loop import resume as run_resume

    title, start = "Pre-training", job.settings.train.init_from
    if start:
        title += f", continued from the weights of {start}"
    with Display(steps=job.settings.train.steps, title=title) as display:

        def tell(record: dict[str, Any]) -> None:
            display.show(record)
            show(record)

        if resume is not None:
            return run_resume(run, tell, shards, limits[0], job.end, limits[1])
        assert shards is not None
        return run_pretrain(shards, run, job.settings, tell, *limits)


class _Job(NamedTuple):
    """The run that a command is about."""

    settings: PretrainConfig
    action: str
    """Description of the command, for a dry run."""
    run: Path | None = None
    """The run folder that is continued; None: one is written."""
    end: tuple[Path, PretrainConfig] | None = None
    """From `plan_cooldown`."""
    finished: dict[str, Any] | None = None
    """The results of a run that is complete with these settings."""


def _find_resumed(resume: Path, out: Path | None, cooldown: int | timedelta | None) -> _Job:
    """Return the run that continues, or ends early in `out`, or continues to this end."""
    from electra.checkpoints.folder import read_run_config
    from electra.pretraining.continuation import is_end_of, plan_cooldown

    require(
        (out is None) == (cooldown is None),
        "--resume continues in its own folder: leave out --out, but with --cooldown name it",
    )
    if out is not None and cooldown is not None and is_end_of(out, resume, cooldown):
        resume = out
    elif out is not None and cooldown is not None:
        refuse_existing(out)
        end = plan_cooldown(resume, cooldown)
        return _Job(end[1], f"end {end[0]} early and write the run {out}", end=end)
    return _Job(read_run_config(resume), f"continue {resume}", resume)


def _find_new(
    shards: Path | None, out: Path | None, settings: PretrainConfig, dry_run: bool
) -> _Job:
    """Return the run that `out` is to be, or that it is and continues."""
    if dry_run and shards is None and out is None:
        return _Job(settings, "pre-train with these settings")
    if shards is None or out is None:
        raise UserError("pretrain needs SHARDS and --out RUN, or --resume RUN")
    if (out / "config.json").exists():
        from electra.pretraining.continuation import find_finished

        finished = find_finished(shards, out, settings)
        action = f"read the results of {out}, which is complete" if finished else f"continue {out}"
        return _Job(settings, action, out, finished=finished)
    refuse_existing(out)
    from electra.pretraining.start import fit_to_shards
    from electra.shards.store import open_shards

    settings = fit_to_shards(settings, open_shards(shards, verify=False))
    return _Job(settings, f"read the shards {shards} and write the run {out}")


def _note_time(settings: PretrainConfig, seconds: float | None = None) -> None:
    """Say of a run of days on a CPU, before it begins, how long it takes, and what takes less."""
    sizes, train = settings.model, settings.train
    tokens = train.steps * train.batch_size * settings.examples.sequence_length
    if 72 * sizes.num_hidden_layers * sizes.hidden_size**2 * tokens < HOURS:
        return
    from electra.pretraining.plan import DAY, estimate_run, list_shorter
    from electra.training.machine import prepare_machine

    if train.device == "cuda":  # which need not be on this machine, for a dry run
        return
    machine = prepare_machine(train.device, train.precision, train.threads)
    if machine.device.type == "cuda" or machine.num_ranks > 1:
        return
    seconds = estimate_run(settings, machine) if seconds is None else seconds
    if seconds <= DAY:
        return
    shorter = {} if train.init_from else list_shorter(settings, machine, seconds)
    words = [f"--preset {name} {format_about(taken)}" for name, taken in shorter.items()]
    steps = int(float(f"{train.steps * DAY / seconds:.1g}"))
    print_note(
        f"the run would take {format_about(seconds)} on this machine; "
        + (", ".join(words) or f"--set train.steps={max(1, steps)} about a day")
    )


def _print_results(run: Path, results: dict[str, Any], did: str) -> None:
    """Print what a run has reached on held-out text, and how far that is on the paper's curve."""
    from electra.reports.runs import place_on_the_papers_curve

    wrote = f"{did} {run}"
    if results["heldout"]:
        reached = describe_heldout(results["heldout"], results["before"]).items()
        wrote += f": {', '.join(f'{name} {value}' for name, value in reached)} on held-out text"
    wrote += f"; {place_on_the_papers_curve(results['flops']['paper'])}"
    print_done(
        wrote, command("finetune", run, "--task", "own", "--data", "FOLDER", "--out", "results")
    )


@verb
def plan(
    shards: Place | None = None,
    *,
    preset: Annotated[str, PRESET, Parameter(help=f"One of {', '.join(PRESETS)}.")] = "small",
    recipe: Recipe = None,
    steps: int | None = None,
    init_from: InitFrom = None,
    probe_seconds: float = 10,
    cache: str | None = None,
    bandwidth: str = "125MB",
    price: tuple[float, float] | None = None,
    settings: SetPretraining = (),
    config: Toml = None,
) -> "Plan":
    """Estimate the time and memory of a pre-training run from steps timed on this machine.

    For shards, it also estimates what a machine copies from the store: bytes, requests, and the
    wait before the first step. Local shards are treated as if they were at a URL.

    Example: electra plan --preset small --steps 100000

    Args:
        shards: A shards folder, or its URL, of which only the manifest is read.
        steps: Optimizer steps of the run; the same as --set train.steps=N.
        probe_seconds: Seconds for which steps are timed.
        cache: As of `electra pretrain`.
        bandwidth: Bytes a second from the store, for the time before the first step.
        price: The cost of a GB, and that of 1,000 requests.

    Returns:
        Parameters, tokens, FLOPs, memory (bytes), seconds, and the device; for shards also the
        traffic.
    """
    from electra.pretraining.plan import plan as run_plan
    from electra.shards.traffic import describe_traffic, estimate_traffic

    require(
        0 < probe_seconds < math.inf, f"--probe-seconds must be > 0 and finite, not {probe_seconds}"
    )
    given = [
        *as_words(settings),
        *([f"train.steps={steps}"] if steps is not None else []),
        *([f"train.init_from={init_from}"] if init_from else []),
    ]
    sizes = None if cache is None else parse_size(cache), parse_size(bandwidth)
    require(shards is not None or (cache, price) == (None, None), "--cache and --price need SHARDS")
    resolved = resolve(preset, recipe, given, toml=as_path(config), note=print_note)
    traffic = None
    if shards is not None:
        shards = place_of(shards)
        from electra.pretraining.start import fit_to_shards
        from electra.shards.store import open_shards

        opened = open_shards(shards, verify=False)
        resolved = fit_to_shards(resolved, opened)
        amount = resolved.train.seed, resolved.train.steps, resolved.train.batch_size
        traffic = estimate_traffic(opened, resolved.examples, sizes[0], *amount)
    with Progress("timing steps", unit="seconds") as progress:
        found = run_plan(
            resolved,
            probe_seconds,
            lambda seconds: progress.update(round(seconds), round(probe_seconds)),
        )
    rows = _list_costs(found, resolved)
    if traffic:
        rows += describe_traffic(traffic, found.seconds, sizes[1], price)
        found = found._replace(traffic=traffic)
    print_table(rows, ["what", "how much"])
    _note_time(resolved, seconds=found.seconds)
    words = ("--preset", preset, "--out", "run", *repeat(given, as_path(config), recipe))
    words = (*words, *(["--cache", cache] if cache else []))
    print_done("planned", command("pretrain", shards or "SHARDS", *words))
    return found


def _list_costs(found: "Plan", settings: PretrainConfig) -> list[tuple[str, str]]:
    """Return the rows of the table of a plan."""
    batch = f"{settings.train.batch_size} x {settings.examples.sequence_length}"
    return [
        ("parameters of the kept encoder", f"{found.kept_parameters:,}"),
        ("parameters in training", f"{found.parameters:,}"),
        ("steps", f"{found.steps:,} of {batch}"),
        ("tokens", format_count(found.tokens)),
        ("FLOPs, true count", f"{found.flops['true']:.3e}"),
        ("FLOPs, the paper's count", f"{found.flops['paper']:.3e}"),
        ("memory, about", f"{found.memory / 2**30:.1f} GiB"),
        ("speed, about", f"{format_count(found.tokens / found.seconds)} tokens/s"),
        ("time, about", format_seconds(found.seconds)),
        ("on", found.device),
    ]


@verb
def flops(
    *,
    preset: Annotated[str, PRESET, Parameter(help=f"One of {', '.join(PRESETS)}.")] = "small",
    recipe: Recipe = None,
    settings: SetPretraining = (),
    config: Toml = None,
) -> dict[str, float]:
    """Count the floating-point operations of a pre-training run, part by part.

    The true count covers the matrix products of a step, with the backward pass as twice the forward
    pass. The paper's count, used in its tables, treats embedding look-ups as matrix products, and
    counts a backward pass like a forward pass. Comparisons at equal compute use the true count.

    Example: electra flops --preset base --set method.objective=mlm train.steps=1000000

    Returns:
        The operations of the whole run by both counts, "true" and "paper".
    """
    from electra.method.flops import count_parts, count_run, count_true
    from electra.pretraining.networks import sketch_objective

    words = as_words(settings)
    resolved = resolve(preset, recipe, words, toml=as_path(config), note=print_note)
    objective, length = sketch_objective(resolved), resolved.examples.sequence_length
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
    run = count_run(objective, *resolved.amount)
    train = resolved.train
    tokens = train.steps * train.batch_size * length
    print_done(
        f"{train.steps:,} steps of {train.batch_size} x {length}, "
        f"{format_count(tokens)} tokens: true {run['true']:.3e}, paper {run['paper']:.3e}"
    )
    return run


@verb
def import_(
    source: Place,
    *,
    out: Place,
    tokenizer: Place | None = None,
    generator: Place | None = None,
    extend: Place | None = None,
    keep_vocabulary: Words = (),
    min_frequency: int = 1,
    positions: int | None = None,
    position_rows: Literal["interpolate", "repeat"] | None = None,
    dry_run: DryRun = False,
) -> "Imported":
    """Convert other people's weights into a folder that the other commands accept.

    Reads Hugging Face folders of ELECTRA, BERT, ModernBERT and DeBERTaV3: safetensors or
    pytorch_model.bin, whole or in parts. From pytorch_model.bin only tensors are loaded, never
    code. A masked language model also becomes a generator; pytorch_model.generator.bin is
    DeBERTaV3's.

    Example: electra import electra_small --out start

    Args:
        source: A Hugging Face folder.
        out: The folder to write: the discriminator, or an encoder without its head, and the
            generator in a subfolder. transformers loads both.
        tokenizer: A tokenizer folder or file; if not given, the source's.
        generator: A second source, of the generator; without it, the source's folder generator.
        extend: A tokenizer with all tokens of the source's and more. The embedding of a new token
            starts as the mean of the pieces that it replaces.
        keep_vocabulary: Text, as for `electra tokenizer`. Only the tokens that this text needs are
            kept; the model's answers to this text stay the same.
        min_frequency: With --keep-vocabulary: tokens that occur less often in the text are split
            into others.
        positions: Longest row, tokens, if it is to be longer than the source's.
        position_rows: Embeddings for --positions. interpolate (the default): the old ones,
            stretched to the new length. repeat: tile the old ones.

    Returns:
        The sizes of the networks, how many tensors were loaded, and the names of those left over.
    """
    from electra.interop.importing import import_model
    from electra.interop.weights import read_source

    source, out = Path(source), Path(out)
    others = as_path(tokenizer), as_path(generator), as_path(extend)
    refuse_existing(out)
    require(positions is None or positions >= 1, f"--positions must be >= 1, not {positions}")
    require(min_frequency >= 1, f"--min-frequency must be >= 1, not {min_frequency}")
    is_one = not (extend and keep_vocabulary)
    require(is_one, "--extend and --keep-vocabulary are two steps: import the folder of the first")
    source = find_model(source)
    if dry_run:
        read_source(source)
        raise Planned(None, f"read {source} and write {out}")
    keep = _cut_down(others[0] or source, list(map(str, as_list(keep_vocabulary))), min_frequency)
    found = import_model(source, out, *others, keep, positions or 0, position_rows)
    rows = [
        (role, sizes.num_hidden_layers, sizes.hidden_size, sizes.embedding_size, sizes.vocab_size)
        for role, sizes in found.networks.items()
    ]
    print_table(rows, ("network", "layers", "hidden", "embedding", "tokens"))
    named, more = ", ".join(found.left_over[:5]), len(found.left_over) - 5
    for number, told in (
        (len(found.left_over), f"left over: {named}" + (f" and {more:,} more" if more > 0 else "")),
        (new := found.num_new, f"{new:,} new tokens begin as the mean of what they replace"),
        (spare := found.num_spare, f"{spare:,} rows of the embeddings have no token, and are kept"),
        (keep is not None, _tell_kept(found, keep) if keep else ""),
    ):
        if number:
            print_note(told)
    following = command("finetune", out, "--task", "own", "--data", "FOLDER", "--out", "results")
    if found.networks.keys() == {"generator"}:
        following = command("fill", out / "generator", "a gap: [MASK]")
    elif extend or positions:  # the new rows are to be trained first
        following = command("prepare", "TEXT", "--tokenizer", out, "--out", "shards")
    print_done(f"wrote {out}: loaded {found.num_loaded} of {found.num_tensors} tensors", following)
    return found


def _cut_down(tokenizer: Path, text: Sequence[str], min_frequency: int) -> "Smaller | None":
    """Return the vocabulary with the tokens that a text needs; None: no text is named."""
    from electra.text.documents import Reader
    from electra.tokenizing.shrink import shrink
    from electra.tokenizing.tokenizer import Tokenizer

    if not text:
        require(min_frequency == 1, "--min-frequency is for --keep-vocabulary; give both")
        return None
    old, files = Tokenizer.load(tokenizer), find_text(text, TextConfig())

    def read() -> Iterator[str]:
        reader = Reader()
        with Progress("tokens of the text", unit="characters") as progress:
            for document in reader.read(files):
                progress.update(reader.counts.characters, None)
                yield from document

    return shrink(old, read, min_frequency)


def _tell_kept(found: "Imported", keep: "Smaller") -> str:
    """Return what a vocabulary that was cut down saves and costs."""
    kept, old = len(keep.kept), keep.num_old
    saved = sum((old - kept) * sizes.embedding_size for sizes in found.networks.values())
    told = f"kept {kept:,} of {old:,} tokens, {format_count(saved)} parameters less; "
    same = f"the text has the same {keep.num_tokens:,} tokens, and its first lines the same states"
    more = f"the text has {keep.num_more / keep.num_tokens:+.2%} tokens"
    return told + (more if keep.num_more else same)
