"""The pre-training loop: from shards to a run folder.

Row order, masked positions, sampled tokens and dropout are functions of (seed, step). A run that is
interrupted and resumed therefore ends with the same weights as an uninterrupted run; on a CPU the
weights are equal bit for bit.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from electra.config import PretrainConfig, UserError, require, require_schedule
from electra.corpus.examples import Examples
from electra.corpus.shards import Shards, open_shards
from electra.corpus.tokenizer import Tokenizer
from electra.files import hold, new_folder, write_json
from electra.method.flops import count_run, count_true
from electra.method.objective import Objective
from electra.pretraining.acceleration import prepare_step
from electra.pretraining.alarms import Alarms
from electra.pretraining.continuation import continue_with
from electra.pretraining.evaluation import evaluate, heldout_batches, view_rows
from electra.pretraining.guard import MAX_IN_A_ROW, write_skipped
from electra.pretraining.memory import require_memory
from electra.pretraining.start import build_model, count_tokens, fit_to_shards, load_frozen
from electra.pretraining.step import Step
from electra.pretraining.window import Window
from electra.processes import Interrupted, heed_signals
from electra.runs.checkpoint import (
    copy_state,
    describe_networks,
    find_checkpoint,
    list_checkpoints,
    read_state,
    set_damaged_aside,
    write_checkpoint,
)
from electra.runs.manifest import LOCK, amend_session, begin_session, read_manifest
from electra.runs.metrics import MetricsLog, read_metrics
from electra.runs.pretrained import read_run_config
from electra.runs.saving import Saver
from electra.settings import to_dict
from electra.training.machine import Machine, prepare_machine
from electra.training.optimizer import learning_rate_at

Show = Callable[[dict[str, Any]], None]


def pretrain(
    shards_folder: Path,
    run: Path,
    config: PretrainConfig,
    show: Show,
    max_seconds: float = math.inf,
) -> dict[str, Any]:
    """Pre-train from scratch into a run folder, and return the contents of results.json.

    The same call continues an unfinished run, as `resume` does.

    Args:
        shards_folder: Folder that `electra prepare` wrote.
        run: The run folder: new, or of a run that was begun with the same settings.
        config: The settings; the vocabulary size is taken from the shards.
        show: Called with each record of metrics.jsonl when the record is written; with {"part":
            "compiling"} before the first record if the step has to be compiled; with {"part":
            "alarm", "text"} if a record shows that something is wrong.
        max_seconds: Time after which the run saves and stops, seconds.

    Raises:
        UserError: The folders or settings are not valid, memory is too small, loss and gradient
            stay without finite values, or the run folder cannot be written.
        Interrupted: A signal or the time limit stopped the run; the checkpoint is written.
    """
    end = time.monotonic() + max_seconds
    if (run / "config.json").exists():
        return _resume(run, show, shards_folder, config, end)
    require(not run.exists(), f"{run} exists already and is no run folder; choose another --out")
    require_schedule(config)
    machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
    shards = open_shards(shards_folder, verify=machine.rank == 0)
    config = fit_to_shards(config, shards)
    model = _build(config, shards, machine)
    require_memory(model, config, machine.device)
    step = prepare_step(model, config, machine)
    with _writing(run):
        with new_folder(run) as folder:
            shards.tokenizer.save(folder / "tokenizer")
            source = {"folder": str(shards_folder), "sha256": shards.digest}
            manifest = {"shards": source, "seed": config.train.seed, "sessions": []}
            write_json(folder / "manifest.json", manifest)
            write_json(folder / "config.json", to_dict(config))
        with hold(run / LOCK):
            return _train(run, shards, step, show, end)


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
    return _resume(run, show, shards_folder, None, time.monotonic() + max_seconds)


def _resume(
    run: Path, show: Show, shards_folder: Path | None, given: PretrainConfig | None, end: float
) -> dict[str, Any]:
    """Continue a run.

    Args:
        run: The run folder.
        show: As in `pretrain`.
        shards_folder: As in `resume`.
        given: The settings of the command; None: those of the run.
        end: Time on the monotonic clock at which the run saves and stops.
    """
    config = read_run_config(run)
    with _writing(run), hold(run / LOCK):
        is_longer = given is not None and given.train.steps > config.train.steps
        require(
            is_longer or not (run / "results.json").exists(),
            f"{run} is complete; there is nothing to resume"
            + ("; it exists already: choose another --out, or more train.steps" if given else ""),
        )
        manifest = read_manifest(run)
        try:
            folder, digest = Path(manifest["shards"]["folder"]), manifest["shards"]["sha256"]
        except (KeyError, TypeError):
            raise UserError(
                f"{run / 'manifest.json'} is damaged: shards must have a folder and a sha256"
            ) from None
        machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
        shards = open_shards(shards_folder or folder, verify=machine.rank == 0)
        if shards.digest != digest:
            is_same = Tokenizer.load(run / "tokenizer").digest == shards.tokenizer.digest
            raise UserError(
                f"{shards.folder} does not hold the shards of {run}: it has another "
                f"{'corpus' if is_same else 'vocabulary'}; choose another --out"
            )
        changed: dict[str, str] = {}
        if given:
            config, changed = continue_with(str(run), config, _fit_to_run(given, config))
        step = prepare_step(_build(config, shards, machine), config, machine)
        if changed:
            names = ", ".join(f"{name} {words}" for name, words in changed.items())
            warnings.warn(f"{run} goes on with other settings: {names}", stacklevel=2)
            (run / "results.json").unlink(missing_ok=True)
            write_json(run / "config.json", to_dict(config))
        return _train(run, shards, step, show, end)


def _fit_to_run(given: PretrainConfig, begun: PretrainConfig) -> PretrainConfig:
    """Return the settings of a command with the sizes that the run took from shards and others."""
    model = dataclasses.replace(given.model, vocab_size=begun.model.vocab_size)
    generator = given.generator
    if generator.kind == "frozen":
        sizes = begun.generator
        generator = dataclasses.replace(
            generator, hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_hidden_layers
        )
    return dataclasses.replace(given, model=model, generator=generator)


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


def _build(config: PretrainConfig, shards: Shards, machine: Machine) -> Objective:
    """Return the initialised objective, on the device."""
    asks_frequencies = (
        config.train.initial_weights == "neighbours" or config.generator.kind == "unigram"
    )
    # Counting reads every token of the shards, so it is done only when needed.
    frequencies_V = count_tokens(shards) if asks_frequencies else None
    return build_model(config, shards.tokenizer, machine, frequencies_V)


def _train(run: Path, shards: Shards, step: Step, show: Show, end: float) -> dict[str, Any]:
    config, model, optimizer = step.config, step.model, step.optimizer
    machine, device = step.machine, step.machine.device
    train, seed = config.train, config.train.seed
    tokenizer = shards.tokenizer
    first_step = 0
    if list_checkpoints(run):
        first_step, checkpoint = find_checkpoint(run)
        set_damaged_aside(run, checkpoint)
        for stage in range(1, model.stage_at(first_step - 1) + 1):
            model.begin_stage(stage)
            step.forget()
        read_state(checkpoint, model, optimizer, step.guard.state)
    elif config.generator.kind == "frozen":
        load_frozen(model, config)
    begin_session(
        run,
        first_step=first_step,
        device=machine.name,
        dtype=str(machine.dtype),
        step=step.describe(),
    )
    examples = Examples(shards.train, tokenizer, config.examples, seed)
    batches = examples.batches(first_step, train.batch_size)
    heldout = heldout_batches(shards, config)
    length = config.examples.sequence_length
    flops_per_token = count_true(model, length)
    networks = describe_networks(model)
    log = MetricsLog(run, first_step)
    window = Window(model, device, log.last.get("train"))
    alarms = Alarms(config)

    def evaluates(done: int) -> bool:
        return bool(heldout) and (done % train.evaluate_every == 0 or done == train.steps)

    def write_evaluation(done: int) -> None:
        evaluation = evaluate(model, heldout, device, train.micro_batch_size)
        write({"part": "heldout", "step": done, **evaluation})

    with heed_signals() as requests, closing(log), Saver(run) as saver:

        def write(record: dict[str, Any]) -> None:
            try:
                log.write(record)
            except OSError:
                saver.wait()  # a checkpoint that does not fit on the disk is removed again
                log.flush()
            show(record)

        is_compiled = step.compiled
        if is_compiled:
            show({"part": "compiling", "step": first_step})
        is_evaluated = log.last.get("heldout", {}).get("step") == first_step
        if first_step and evaluates(first_step) and not is_evaluated:
            write_evaluation(first_step)  # the run stopped after this checkpoint, before evaluating
        model.train()
        for number in range(first_step, train.steps):
            if number in model.stages[1:]:
                model.begin_stage(model.stage_at(number))
                step.forget()
                window.begin_stage()
            learning_rate = _learning_rate_at(number, model, config)
            window.add(step(number, next(batches), learning_rate))
            if step.compiled != is_compiled:
                is_compiled = step.compiled
                amend_session(run, step=step.describe())
            done = number + 1
            is_last, is_over = done == train.steps, time.monotonic() >= end
            stops = requests.stops or is_over
            saves = done % train.save_every == 0 or is_last or stops or requests.saves
            # A log window also ends at a checkpoint, for resuming, and at the end of a stage,
            # because the next stage has a different loss.
            if done % train.log_every == 0 or saves or done in model.stages:
                means, skipped = window.record(done, train.steps)
                record = {
                    "part": "train",
                    "step": done,
                    **means,
                    "flops": flops_per_token * done * train.batch_size * length,
                    "learning_rate": learning_rate,
                }
                write(record)
                for each in skipped:
                    batch = examples.batch(each.step, train.batch_size)
                    write_skipped(run, each, batch, tokenizer)
                for text in alarms.read(record):
                    show({"part": "alarm", "step": done, "text": text})
            is_lost = window.most_bad >= MAX_IN_A_ROW
            with window.clock.paused():
                if saves or is_lost:
                    requests.saves = False
                    state = copy_state(model, optimizer, step.guard.state)
                    saver.save(
                        partial(
                            write_checkpoint,
                            *(run, done, state, networks),
                            train.keep_checkpoints,
                            train.keep_every * train.save_every,
                        )
                    )
                if is_lost or is_last or stops:
                    saver.finish()
                require(
                    not is_lost,
                    f"{window.most_bad} steps in a row before step {done} had no finite loss and "
                    f"gradient; none of them changed the weights, which are saved: lower "
                    "optimizer.learning_rate, or set train.precision=float32; the rows are in "
                    f"{run / 'skipped'}",
                )
                if evaluates(done):
                    write_evaluation(done)
            if stops and not is_last:
                raise Interrupted(run, done, in_time=not requests.stops)
    if heldout and (
        samples := view_rows(model, heldout[0], tokenizer, device, train.micro_batch_size)
    ):
        write_json(run / "samples.json", samples)
    return _write_results(run, model, config)


def _learning_rate_at(step: int, model: Objective, config: PretrainConfig) -> float:
    """Return the learning rate of a step, by the schedule of the stage of the step."""
    stage = model.stage_at(step)
    first, end = (*model.stages, config.train.steps)[stage : stage + 2]
    return learning_rate_at(step - first, end - first, config.optimizer, config.method.mode)


def _write_results(run: Path, model: Objective, config: PretrainConfig) -> dict[str, Any]:
    path = run / "metrics.jsonl"
    last = {record["part"]: record for record in read_metrics(path)}
    for part in ("train", "heldout") if config.train.evaluate_rows else ("train",):
        require(
            last.get(part, {}).get("step") == config.train.steps,
            f"{path} has no {part} record of step {config.train.steps}: results.json cannot be "
            "written",
        )
    train, heldout = last["train"], last.get("heldout")
    results = {
        "steps": train["step"],
        "tokens": train["tokens"],
        "seconds": train["seconds"],
        "flops": count_run(model, config),
        "heldout": heldout,
    }
    write_json(run / "results.json", results)
    return results
