"""Opening a run: settings, shards, first weights and the run folder, up to its first step.

All of this happens once. The steps are in loop.py.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from electra.checkpoints.checkpoint import list_checkpoints, run_of
from electra.checkpoints.manifest import FORMAT
from electra.errors import UserError, command, require
from electra.files import LOCK, hold, new_folder, sync, write_facts
from electra.method.objective import Objective
from electra.pretraining.evaluation import Domains, open_domains
from electra.pretraining.journal import Show
from electra.pretraining.memory import require_memory
from electra.pretraining.networks import needs_frequencies
from electra.pretraining.start import (
    build_model,
    count_tokens,
    fit_to_shards,
    prepare_step,
    read_frozen,
    require_equal_shares,
)
from electra.pretraining.step import Step
from electra.processes import find_place
from electra.settings import to_dict
from electra.shards.examples import Examples
from electra.shards.store import Shards, fetch_shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig, TrainConfig, require_schedule
from electra.training.distributed import from_rank_0, joined, spread, wait_for_all
from electra.training.machine import Machine, prepare_machine

if TYPE_CHECKING:  # a run from scratch does not need these
    from electra.checkpoints.saved import SavedModel


class Opened(NamedTuple):
    """A run whose steps can begin or continue; process 0 holds the lock of its folder."""

    run: Path
    shards: Shards
    examples: Examples
    """The rows of the steps."""
    domains: Domains
    step: Step
    """The step, with the first weights; a checkpoint replaces them."""


@contextmanager
def open_run(
    shards_folder: Path, run: Path, config: PretrainConfig, show: Show, cache: int | None = None
) -> Iterator[Opened]:
    """Yield a new run, or one that was begun with the same settings, as for `loop.pretrain`."""
    train = config.train
    machine = _prepare(train)
    with joined(machine), ExitStack() as stack:
        if train.copy_to and machine.rank == 0 and not run.exists():
            from electra.checkpoints.copies import fetch_copy, place_of_copies

            fetch_copy(place_of_copies(train.copy_to), run)
        if from_rank_0((run / "config.json").exists()):
            with _continue(run, show, shards_folder, config, machine, cache) as opened:
                yield opened
            return
        exists = f"{run} exists already and is not a run folder; choose another --out"
        require(machine.rank > 0 or not run.exists(), exists)
        shards = open_shards(shards_folder, verify=find_place().local_rank == 0)
        require(
            shards.digest == from_rank_0(shards.digest),
            f"{shards_folder} of this process holds other shards than that of process 0",
        )
        start = None
        if train.init_from:
            from electra.checkpoints.folder import read_pretrained
            from electra.pretraining.init_from import fit_to_start, require_vocabulary

            start = read_pretrained(Path(train.init_from))
            config = fit_to_start(config, start, {"model.causal"})
            require_vocabulary(start, shards)
        require_schedule(config)
        config = from_rank_0(fit_to_shards(config, shards))  # a machine may have other settings
        examples = _make_examples(shards, config, machine, show)
        stack.enter_context(_caching(examples, cache, config, machine))
        domains = _open_domains(shards, config, machine, show)
        model = build_begun(config, shards, examples, machine, start, show, is_new=True)
        require_memory(model, config, machine)
        step = prepare_step(model, config, machine)
        wait_for_all(machine)  # one of them may lack memory
        with _writing(run):
            if machine.rank == 0:
                _create(run, shards, domains, step, start)
            with _hold(run, machine):
                yield Opened(run, shards, examples, domains, step)


@contextmanager
def reopen_run(
    run: Path,
    show: Show,
    shards_folder: Path | None = None,
    cooldown: tuple[Path, PretrainConfig] | None = None,
    cache: int | None = None,
) -> Iterator[Opened]:
    """Yield a run that was begun, or the early end of another, as for `loop.resume`."""
    from electra.checkpoints.folder import read_run_config

    train = (cooldown[1] if cooldown else read_run_config(run)).train
    machine = _prepare(train)
    with joined(machine):
        if cooldown and machine.rank == 0:  # which alone reads and writes run folders
            from electra.pretraining.continuation import write_branch

            write_branch(run_of(cooldown[0]), cooldown[0], run, cooldown[1])
        with _continue(run, show, shards_folder, None, machine, cache) as opened:
            yield opened


@contextmanager
def _continue(
    run: Path,
    show: Show,
    shards_folder: Path | None,
    given: PretrainConfig | None,
    machine: Machine,
    cache: int | None,
) -> Iterator[Opened]:
    """Yield a run that was begun, with a command's settings if given."""
    from electra.checkpoints.folder import read_pretrained
    from electra.pretraining.continuation import (
        keep_sources,
        keep_tokenizer,
        read_run,
        require_begun,
    )

    with _writing(run), _hold(run, machine), ExitStack() as stack:
        found = read_run(run, given, machine.name) if machine.rank == 0 else None
        config, changed, source, ranking, begun_from = from_rank_0(found)
        try:
            place = shards_folder or Path(source["folder"])
            shards = open_shards(place, verify=find_place().local_rank == 0)
        except UserError as error:
            moved = f"; if they are elsewhere: {command('pretrain', 'SHARDS', '--resume', run)}"
            raise UserError(f"{error}{'' if shards_folder else moved}") from None
        if shards.digest != source["sha256"]:
            what = "shards"
            if machine.rank == 0:
                is_same = Tokenizer.load(run / "tokenizer").digest == shards.tokenizer.digest
                what = "corpus" if is_same else "vocabulary"
            raise UserError(
                f"{shards.folder} does not hold the shards of {run}: it has another {what}; choose "
                "another --out"
            )
        is_new = from_rank_0(not list_checkpoints(run))
        if machine.rank == 0 and is_new:
            require_begun(run, config)
        start = read_pretrained(Path(config.train.init_from)) if begun_from and is_new else None
        examples = _make_examples(shards, config, machine, show)
        stack.enter_context(_caching(examples, cache, config, machine))
        domains = _open_domains(shards, config, machine, show)
        if machine.rank == 0:
            keep_sources(run, shards, domains, machine)
            keep_tokenizer(run, shards)
        model = build_begun(config, shards, examples, machine, start, show, is_new=is_new)
        try:
            require_memory(model, config, machine)
        except UserError as error:  # an estimate, and the run is begun
            warnings.warn(str(error), stacklevel=2)
        step = prepare_step(model, config, machine, ranking)
        if changed and machine.rank == 0:
            names = ", ".join(f"{name} {words}" for name, words in changed.items())
            warnings.warn(f"resuming {run} with changed settings: {names}", stacklevel=2)
            (run / "results.json").unlink(missing_ok=True)
            sync(run)  # else the run could be complete with these settings
            write_facts(run / "config.json", to_dict(config))
        yield Opened(run, shards, examples, domains, step)


MANY_PASSES = 40
"""Passes over the text of BERT's pre-training; more than that are unusual. Source: Devlin et al.
2019, appendix A.2."""


def _make_examples(
    shards: Shards, config: PretrainConfig, machine: Machine, show: Show
) -> Examples:
    """Return the rows of the steps, and show how often the run reads the text."""
    train, length = config.train, config.examples.sequence_length
    part = machine.rank, machine.num_ranks
    examples = Examples(
        *(shards.train, shards.tokenizer, config.examples, train.seed, shards.mixture), part
    )
    if machine.rank > 0:
        return examples
    rows = train.steps * train.batch_size
    passes = examples.epochs(rows) or {"the text": rows / len(examples)}
    show({"part": "begin", "step": 0, "tokens": rows * length, "passes": passes})
    for name, number in passes.items():
        if number > MANY_PASSES:
            fewer = max(1, math.floor(train.steps * MANY_PASSES / number))
            warnings.warn(
                f"the run reads {name} {number:,.0f} times; more than {MANY_PASSES} passes are "
                f"unusual: watch the held-out loss, add text, or set train.steps={fewer}",
                stacklevel=2,
            )
    return examples


@contextmanager
def _caching(
    examples: Examples, size: int | None, config: PretrainConfig, machine: Machine
) -> Iterator[None]:
    """Keep the shards that the steps read in a cache of this machine, if it has a size."""
    if size is None:
        yield
        return
    from electra.shards.cache import cached

    train = config.train
    with cached(examples, size, train.steps, train.batch_size, find_place()):
        wait_for_all(machine)  # what an earlier run has left in the folder is gone
        yield


def _prepare(train: TrainConfig) -> Machine:
    """Return the machine; process 0 imports the tracker, and warns of settings without effect."""
    machine = prepare_machine(train.device, train.precision, train.threads)
    if machine.rank > 0:
        return machine
    if train.tracker != "none":
        from electra.checkpoints.trackers import import_tracker

        import_tracker(train.tracker)
    if train.sharding != "none" and machine.num_ranks == 1:
        warnings.warn("train.sharding has no effect with one process", stacklevel=2)
    is_divided = train.sharding != "none" and machine.num_ranks > 1
    compiles = train.compile == "yes" or (train.compile == "auto" and machine.device.type == "cuda")
    asked = {name: getattr(train, name) for name in ("autotune", "dependent_launch")}
    for name, is_asked in {**asked, "compile": train.compile == "yes"}.items():
        if is_asked and (is_divided or not compiles):
            warnings.warn(f"train.{name} has no effect: the step is not compiled", stacklevel=2)
    return machine


def _hold(run: Path, machine: Machine) -> AbstractContextManager[None]:
    """Lock the run folder, which process 0 writes."""
    return hold(run / LOCK) if machine.rank == 0 else nullcontext()


@contextmanager
def _writing(run: Path) -> Iterator[None]:
    """Turn an OSError (full disk, missing permission) into a UserError that says how to resume."""
    try:
        yield
    except BrokenPipeError:  # the reader of the standard output has gone; no file has failed
        raise
    except OSError as error:
        what = f"{error.filename or run}: {error.strerror or error}"
        if (run / "config.json").exists():
            what += "; checkpoints written before are whole: "
            what += command("pretrain", "--resume", run)
        raise UserError(what) from None


def _open_domains(shards: Shards, config: PretrainConfig, machine: Machine, show: Show) -> Domains:
    """Return the shards to evaluate on; those at URLs, and the run's own, are copied here."""
    require_equal_shares(config, machine)
    domains = open_domains(shards, config, verify=machine.rank == 0)

    def tell(done: int, total: int) -> None:
        if machine.rank == 0:
            show({"part": "fetching", "done": done, "total": total})

    fetch_shards([shards, *domains.values()], tell)
    return domains


def build_begun(
    config: PretrainConfig,
    shards: Shards,
    examples: Examples,
    machine: Machine,
    start: "SavedModel | None",
    show: Show,
    *,
    is_new: bool,
) -> Objective:
    """Return the objective with the weights that its run begins with, on the device.

    Unless it `is_new`, a checkpoint replaces the weights, so `start` is not needed.
    """
    # Counting reads every token of the shards, so it is done only when needed.
    initial, frequencies_V, embeddings_VE = config.train.initial_weights, None, None
    if (initial != "bert" and is_new) or needs_frequencies(config) or start:
        shards = dataclasses.replace(shards, train=tuple(examples.first_shards()))
        frequencies_V = count_tokens(shards)
    if initial == "cooccurrence" and machine.rank == 0 and is_new:
        from electra.pretraining.neighbours import embed_tokens

        show({"part": "counting", "step": 0})
        sizes, seed = config.model, config.train.seed
        embeddings_VE = embed_tokens(shards, sizes.embedding_size, sizes.initializer_range, seed)
    model = build_model(config, shards.tokenizer, machine, frequencies_V, embeddings_VE)
    if is_new:
        if start and frequencies_V is not None:
            from electra.pretraining.init_from import load_start, tell_parts

            load_start(model, config, start, frequencies_V)
            if machine.rank == 0:
                show({"part": "start", "step": 0, "text": tell_parts(model, config, start)})
        if config.generator.kind == "frozen":
            from electra.pretraining.init_from import load_network

            load_network(model.networks["generator"], read_frozen(config, shards))
        for parameter in model.parameters():
            spread(None, parameter)
    return model


def _create(
    run: Path, shards: Shards, domains: Domains, step: Step, start: "SavedModel | None"
) -> None:
    """Write a run folder with tokenizer, manifest and settings."""
    config = step.config
    source = {"folder": str(shards.folder), "sha256": shards.digest}
    manifest = {"format": FORMAT, "shards": source, "seed": config.train.seed, "sessions": []}
    if start:
        from electra.pretraining.init_from import describe_start

        old = domains.get("old")
        manifest["init_from"] = describe_start(step.model, config, start)
        manifest["also_evaluate"] = old and {"folder": str(old.folder), "sha256": old.digest}
    if config.generator.kind == "frozen":
        from electra.pretraining.init_from import describe_weights

        manifest["generator"] = describe_weights(config.generator.frozen_run)
    with new_folder(run) as folder:
        shards.tokenizer.save(folder / "tokenizer")
        write_facts(folder / "manifest.json", manifest)
        write_facts(folder / "config.json", to_dict(config))
