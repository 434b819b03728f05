"""The pre-training loop: from shards to a run folder.

Row order, masked positions, sampled tokens and dropout are functions of (seed, step). A run that is
interrupted and resumed therefore ends with the same weights as an uninterrupted run; on a CPU the
weights are equal bit for bit.
"""

import dataclasses
import gc
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from electra.checkpoints.checkpoint import (
    copy_state,
    find_checkpoint,
    list_checkpoints,
    load_state,
    read_state,
    set_damaged_aside,
)
from electra.checkpoints.folder import SavedModel, read_pretrained, read_run_config
from electra.checkpoints.manifest import LOCK, amend_session, begin_session
from electra.config import PretrainConfig, longest_warmup, require_schedule
from electra.errors import UserError, require
from electra.files import hold, new_folder, write_json
from electra.method.flops import count_run
from electra.method.objective import Objective
from electra.pretraining.acceleration import prepare_step
from electra.pretraining.continuation import read_run
from electra.pretraining.domains import Domains, describe_old, open_domains
from electra.pretraining.guard import MAX_IN_A_ROW
from electra.pretraining.init_from import (
    describe_start,
    fit_to_start,
    load_start,
    require_vocabulary,
)
from electra.pretraining.journal import Journal, Show, profiled, without_collector
from electra.pretraining.plan import require_memory
from electra.pretraining.start import (
    build_model,
    count_tokens,
    embed_tokens,
    fetch_files,
    fit_to_shards,
    load_frozen,
    require_equal_shares,
)
from electra.pretraining.step import Step
from electra.pretraining.window import Window
from electra.processes import Interrupted, heed_signals
from electra.settings import from_dict, to_dict
from electra.shards.examples import Examples
from electra.shards.store import Shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.distributed import (
    any_rank,
    count_parts,
    from_rank_0,
    gathered,
    is_sharded,
    joined,
    spread,
)
from electra.training.machine import Machine, prepare_machine
from electra.training.optimizer import learning_rate_at


def pretrain(
    shards_folder: Path,
    run: Path,
    config: PretrainConfig,
    show: Show,
    max_seconds: float = math.inf,
) -> dict[str, Any]:
    """Pre-train into a run folder, and return the contents of results.json.

    With train.init_from, training begins with the weights of another model (init_from.py). The same
    call continues an unfinished run, as `resume` does.

    Args:
        shards_folder: Folder that `electra prepare` wrote.
        run: The run folder: new, or of a run that was begun with the same settings.
        config: The settings; the vocabulary size is taken from the shards.
        show: Called with each record of metrics.jsonl when the record is written; with {"part":
            "compiling"} before the first record if the step has to be compiled; with {"part":
            "fetching", "done", "total"} for each shard file that is copied from a URL; with
            {"part": "alarm", "text"} if a record shows that something is wrong.
        max_seconds: Time after which the run saves and stops, seconds.

    Raises:
        UserError: The folders or settings are not valid, memory is too small, loss and gradient
            stay without finite values, or the run folder cannot be written.
        Interrupted: A signal or the time limit stopped the run; the checkpoint is written.
    """
    end = time.monotonic() + max_seconds
    train = config.train
    machine = prepare_machine(train.device, train.precision, train.threads)
    with joined(machine):
        if from_rank_0((run / "config.json").exists()):
            return _resume(run, show, shards_folder, config, machine, end)
        exists = f"{run} exists already and is no run folder; choose another --out"
        require(machine.rank > 0 or not run.exists(), exists)
        shards = open_shards(shards_folder, verify=machine.rank == 0)
        start = read_pretrained(Path(train.init_from)) if train.init_from else None
        if start:
            config = fit_to_start(config, start)
            require_vocabulary(start, shards)
        require_schedule(config)
        config = fit_to_shards(config, shards)
        require_equal_shares(config, machine)
        domains = open_domains(shards, config, verify=machine.rank == 0)
        fetch_files([shards, *domains.values()], machine, show)
        model = _build(config, shards, machine, run, start)
        num_parts = count_parts(train.sharding, machine)
        require_memory(model, _share(config, machine), machine.device, num_parts)
        step = prepare_step(model, config, machine)
        with _writing(run):
            if machine.rank == 0:
                with new_folder(run) as folder:
                    shards.tokenizer.save(folder / "tokenizer")
                    source = {"folder": str(shards.folder), "sha256": shards.digest}
                    manifest = {"shards": source, "seed": train.seed, "sessions": []}
                    if start:
                        manifest["init_from"] = describe_start(model, config, start)
                        manifest["also_evaluate"] = describe_old(domains)
                    write_json(folder / "manifest.json", manifest)
                    write_json(folder / "config.json", to_dict(config))
            with _hold(run, machine):
                return _train(run, shards, domains, step, show, end)


def resume(
    run: Path, show: Show, shards_folder: Path | None = None, max_seconds: float = math.inf
) -> dict[str, Any]:
    """Continue a run from its newest intact checkpoint, and return the contents of results.json.

    A run without a checkpoint starts at step 0.

    Args:
        run: A run folder. The settings are read from its config.json.
        show: As in `pretrain`.
        shards_folder: The shards' folder if it has moved; None: the folder in manifest.json.
        max_seconds: As in `pretrain`.

    Raises:
        UserError: `run` is not a run folder, is damaged, in use or complete, or the shards are not
            those of the run.
        Interrupted: As in `pretrain`.
    """
    end = time.monotonic() + max_seconds
    train = read_run_config(run).train
    machine = prepare_machine(train.device, train.precision, train.threads)
    with joined(machine):
        return _resume(run, show, shards_folder, None, machine, end)


def _resume(
    run: Path,
    show: Show,
    shards_folder: Path | None,
    given: PretrainConfig | None,
    machine: Machine,
    end: float,
) -> dict[str, Any]:
    """Continue a run.

    Args:
        run: The run folder, which process 0 reads.
        show: As in `pretrain`.
        shards_folder: As in `resume`.
        given: The settings of the command; None: those of the run.
        machine: The machine.
        end: Time on the monotonic clock at which the run saves and stops.
    """
    with _writing(run), _hold(run, machine):
        found = read_run(run, given, machine.name) if machine.rank == 0 else None
        values, changed, source, ranking, begun_from = from_rank_0(found)
        config = from_dict(PretrainConfig, values)
        shards = open_shards(shards_folder or Path(source["folder"]), verify=machine.rank == 0)
        if shards.digest != source["sha256"]:
            what = "shards"
            if machine.rank == 0:
                is_same = Tokenizer.load(run / "tokenizer").digest == shards.tokenizer.digest
                what = "corpus" if is_same else "vocabulary"
            raise UserError(
                f"{shards.folder} does not hold the shards of {run}: it has another {what}; choose "
                "another --out"
            )
        require_equal_shares(config, machine)
        start = None
        if begun_from and from_rank_0(not list_checkpoints(run)):
            start = read_pretrained(Path(config.train.init_from))
            require(
                start.sha256 == begun_from["sha256"],
                f"train.init_from {config.train.init_from} does not hold the weights that {run} "
                "began with; choose another --out",
            )
        domains = open_domains(shards, config, verify=machine.rank == 0)
        fetch_files([shards, *domains.values()], machine, show)
        step = prepare_step(_build(config, shards, machine, run, start), config, machine, ranking)
        if changed and machine.rank == 0:
            names = ", ".join(f"{name} {words}" for name, words in changed.items())
            warnings.warn(f"{run} goes on with other settings: {names}", stacklevel=2)
            (run / "results.json").unlink(missing_ok=True)
            write_json(run / "config.json", to_dict(config))
        return _train(run, shards, domains, step, show, end)


def _share(config: PretrainConfig, machine: Machine) -> PretrainConfig:
    """Return the settings with the rows that one process computes."""
    batch_size = config.train.batch_size // machine.num_ranks
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, batch_size=batch_size)
    )


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
        if not (run / "config.json").exists():
            raise UserError(what) from None
        raise UserError(
            f"{what}; checkpoints written before are whole: electra pretrain --resume {run}"
        ) from None


def _build(
    config: PretrainConfig, shards: Shards, machine: Machine, run: Path, start: SavedModel | None
) -> Objective:
    """Return the initialised objective, on the device.

    Args:
        config: The settings.
        shards: The shards of the run.
        machine: The machine.
        run: The run folder.
        start: The model that a continued run begins with; None: another run, or one that has a
            checkpoint.
    """
    # Counting reads every token of the shards, so it is done only when needed.
    initial, frequencies_V, embeddings_VE = config.train.initial_weights, None, None
    if initial != "bert" or config.generator.kind == "unigram" or start:
        frequencies_V = count_tokens(shards)
    # A checkpoint and process 0 replace the weights of others, which need no start.
    is_new = from_rank_0(not list_checkpoints(run))
    if initial == "cooccurrence" and machine.rank == 0 and is_new:
        sizes, seed = config.model, config.train.seed
        embeddings_VE = embed_tokens(shards, sizes.embedding_size, sizes.initializer_range, seed)
    model = build_model(config, shards.tokenizer, machine, frequencies_V, embeddings_VE)
    if is_new:
        if start and frequencies_V is not None:
            load_start(model, config, start, frequencies_V)
        if config.generator.kind == "frozen":
            load_frozen(model, config)
        for parameter in model.parameters():
            spread(None, parameter)
    return model


def _train(
    run: Path, shards: Shards, domains: Domains, step: Step, show: Show, end: float
) -> dict[str, Any]:
    config, model, optimizer = step.config, step.model, step.optimizer
    machine, train = step.machine, config.train
    is_first = machine.rank == 0
    first_step, checkpoint = 0, None
    if is_first and list_checkpoints(run):
        first_step, checkpoint = find_checkpoint(run)
        set_damaged_aside(run, checkpoint)
    first_step = from_rank_0(first_step)
    for stage in range(1, model.stage_at(first_step - 1) + 1 if first_step else 1):
        step.begin_stage(stage)
    if first_step:
        state = read_state(checkpoint) if checkpoint else None
        load_state(state, model, optimizer, step.guard.state)
    peak = machine.measure_peak() * machine.num_ranks
    if is_first:
        begin_session(
            run,
            first_step=first_step,
            device=machine.name,
            dtype=str(machine.dtype),
            processes=machine.num_ranks,
            peak_flops_per_second=peak,
            step=step.describe(),
            flops=count_run(model, config),
        )
    examples = Examples(shards.train, shards.tokenizer, config.examples, train.seed, shards.mixture)
    batches = examples.batches(first_step, train.batch_size)
    journal = Journal(run, shards, domains, step, show, first_step, peak) if is_first else None
    window = Window(step, journal.last.get("train") if journal else None)

    with (
        heed_signals() as requests,
        journal or nullcontext(),
        without_collector(),
        profiled(run, train, first_step) if is_first else nullcontext(lambda: None) as end_of_step,
    ):
        is_compiled = step.compiled
        if journal and is_compiled:
            show({"part": "compiling", "step": first_step})
        is_evaluated = journal and journal.last.get("heldout", {}).get("step") == first_step
        if from_rank_0(_evaluates(config, first_step) and not is_evaluated):
            with window.clock.paused(), gathered(model):
                if journal:  # the run begins, or stopped before this evaluation
                    journal.evaluate(first_step)
        model.train()
        for number in range(first_step, train.steps):
            if number in model.stages[1:]:
                step.begin_stage(model.stage_at(number))
            learning_rate = _learning_rate_at(number, model, config)
            began = window.clock.now()
            batch = next(batches)
            window.clock.count_wait(began)
            outcome = step(number, batch, learning_rate)
            window.add(outcome)
            end_of_step()
            if step.prepares:
                window.clock.leave_out(began, int(outcome.num_real))
            if step.compiled != is_compiled:
                is_compiled = step.compiled
                if is_first:
                    amend_session(run, step=step.describe())
            done = number + 1
            is_last = done == train.steps
            is_told, is_over, saves = any_rank(
                requests.stops, time.monotonic() >= end, requests.saves
            )
            stops = is_told or is_over
            saves = saves or done % train.save_every == 0 or is_last or stops
            # A log window also ends at a checkpoint, for resuming, and at the end of a stage,
            # because the next stage has a different loss.
            if done % train.log_every == 0 or saves or done in model.stages:
                means, skipped = window.record(done, train.steps)
                if journal:
                    journal.write_window(done, means, skipped, learning_rate)
            is_lost = window.most_bad >= MAX_IN_A_ROW
            if saves or is_lost:
                requests.saves = False
            evaluates = _evaluates(config, done) and not is_lost
            if saves or is_lost or evaluates:
                with window.clock.paused():
                    gc.collect()
                    if (saves or is_lost) and (journal or is_sharded(model)):
                        state = copy_state(model, optimizer, step.guard.state, is_first=is_first)
                        if journal:
                            journal.save(done, state)
                    if journal and (is_lost or is_last or stops):
                        journal.finish()
                    if evaluates:
                        with gathered(model):
                            if journal:
                                journal.evaluate(done)
            require(
                not is_lost,
                f"{window.most_bad} steps in a row before step {done} had no finite loss and "
                "gradient; none of them changed the weights, which are saved: lower "
                "optimizer.learning_rate, or set train.precision=float32; the rows are in "
                f"{run / 'skipped'}",
            )
            if stops and not is_last:
                raise Interrupted(run, done, in_time=not is_told)
    with gathered(model):
        results: dict[str, Any] = from_rank_0(journal.write_results() if journal else None)
    return results


def _evaluates(config: PretrainConfig, done: int) -> bool:
    """Return whether an evaluation follows the step.

    A continued run is also evaluated at its start, and before the discriminator's first step.
    """
    train = config.train
    is_due = done > 0 and (done % train.evaluate_every == 0 or done == train.steps)
    is_start = bool(train.init_from) and done in (0, config.second_stage)
    return train.evaluate_rows > 0 and (is_due or is_start)


def _learning_rate_at(step: int, model: Objective, config: PretrainConfig) -> float:
    """Return the learning rate of a step, by the schedule of the stage of the step."""
    stage, optimizer = model.stage_at(step), config.optimizer
    first, end = (*model.stages, config.train.steps)[stage : stage + 2]
    if step < (config.generator.warmup_steps or 0):
        warmup_steps = min(optimizer.warmup_steps, longest_warmup(end - first))
        optimizer = dataclasses.replace(optimizer, warmup_steps=warmup_steps)
    return learning_rate_at(step - first, end - first, optimizer, config.method.mode)
