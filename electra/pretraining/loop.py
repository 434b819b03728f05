"""The pre-training loop: from shards to a run folder.

Row order, masked positions, sampled tokens and dropout are functions of (seed, step). A run that is
interrupted and resumed therefore ends with the same weights as an uninterrupted run; on a CPU the
weights are equal bit for bit.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra.config import PretrainConfig, UserError, require, require_schedule
from electra.corpus.examples import Examples
from electra.corpus.shards import Shards, open_shards
from electra.files import hold, new_folder, write_json
from electra.method.flops import count_run, count_true
from electra.method.objective import Objective
from electra.pretraining.acceleration import prepare_step
from electra.pretraining.attention import recorded_ranking
from electra.pretraining.cooccurrence import embed_tokens
from electra.pretraining.evaluation import evaluate, heldout_batches, view_rows
from electra.pretraining.memory import require_memory
from electra.pretraining.start import build_model, count_tokens, fit_to_shards, load_frozen
from electra.pretraining.step import Step
from electra.processes import Interrupted, stop_on_signal
from electra.runs.checkpoint import (
    find_checkpoint,
    list_checkpoints,
    read_state,
    save_checkpoint,
    set_damaged_aside,
)
from electra.runs.manifest import LOCK, amend_session, begin_session, read_manifest
from electra.runs.metrics import MetricsLog, read_metrics
from electra.runs.pretrained import read_run_config
from electra.settings import to_dict
from electra.training.machine import Machine, prepare_machine
from electra.training.optimizer import learning_rate_at

Show = Callable[[dict[str, Any]], None]


def pretrain(shards_folder: Path, run: Path, config: PretrainConfig, show: Show) -> dict[str, Any]:
    """Pre-train from scratch into a new run folder, and return the contents of results.json.

    Args:
        shards_folder: Folder that `electra prepare` wrote.
        run: The run folder; must not exist. `resume` can continue the run as soon as the folder
            exists.
        config: The settings; the vocabulary size is taken from the shards.
        show: Called with each record of metrics.jsonl when the record is written. Called with
            {"part": "compiling"} before the first record if the step has to be compiled.

    Raises:
        UserError: The folders or settings are not valid, memory is too small, the loss is not
            finite, or the run folder cannot be written.
        Interrupted: A signal stopped the run; the checkpoint is written.
    """
    require(not run.exists(), f"{run} exists already; choose another --out, or --resume {run}")
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
            return _train(run, shards, step, show)


def resume(run: Path, show: Show, shards_folder: Path | None = None) -> dict[str, Any]:
    """Continue a run from its newest intact checkpoint, and return the contents of results.json.

    A run without a checkpoint starts at step 0.

    Args:
        run: A run folder. The settings are read from its config.json.
        show: As in `pretrain`.
        shards_folder: The shards' folder if it has moved; None: the folder in manifest.json.

    Raises:
        UserError: `run` is not a run folder, is damaged, in use or complete, or the shards are not
            those of the run.
        Interrupted: As in `pretrain`.
    """
    config = read_run_config(run)
    with _writing(run), hold(run / LOCK):
        is_complete = (run / "results.json").exists()
        require(not is_complete, f"{run} is complete; there is nothing to resume")
        manifest = read_manifest(run)
        try:
            folder, digest = Path(manifest["shards"]["folder"]), manifest["shards"]["sha256"]
        except (KeyError, TypeError):
            raise UserError(
                f"{run / 'manifest.json'} is damaged: shards must have a folder and a sha256"
            ) from None
        machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
        shards = open_shards(shards_folder or folder, verify=machine.rank == 0)
        require(
            shards.digest == digest,
            f"{shards.folder} does not hold the shards of {run}",
        )
        ranking = recorded_ranking(manifest, machine.name)
        step = prepare_step(_build(config, shards, machine), config, machine, ranking)
        return _train(run, shards, step, show)


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
    # Counting reads every token of the shards, so it is done only when needed.
    start, frequencies_V, embeddings_VE = config.train.initial_weights, None, None
    if start != "bert" or config.generator.kind == "unigram":
        frequencies_V = count_tokens(shards)
    if start == "cooccurrence":
        sizes, seed = config.model, config.train.seed
        embeddings_VE = embed_tokens(shards, sizes.embedding_size, sizes.initializer_range, seed)
    return build_model(config, shards.tokenizer, machine, frequencies_V, embeddings_VE)


def _train(run: Path, shards: Shards, step: Step, show: Show) -> dict[str, Any]:
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
        read_state(checkpoint, model, optimizer)
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
    log = MetricsLog(run, first_step)
    clock = _Clock(log.last.get("train"), machine.wait)
    length = config.examples.sequence_length
    flops_per_token = count_true(model, length)
    num_real, grad_norms = torch.zeros((), dtype=torch.int64, device=device), []

    def write(record: dict[str, Any]) -> None:
        log.write(record)
        show(record)

    def evaluates(done: int) -> bool:
        return bool(heldout) and (done % train.evaluate_every == 0 or done == train.steps)

    def write_evaluation(done: int) -> None:
        evaluation = evaluate(model, heldout, device, train.micro_batch_size)
        write({"part": "heldout", "step": done, **evaluation})

    is_compiled = step.compiled
    if is_compiled:
        show({"part": "compiling", "step": first_step})
    with stop_on_signal() as stop, closing(log):
        is_evaluated = log.last.get("heldout", {}).get("step") == first_step
        if first_step and evaluates(first_step) and not is_evaluated:
            write_evaluation(first_step)  # the run stopped after this checkpoint, before evaluating
        model.train()
        for number in range(first_step, train.steps):
            if number in model.stages[1:]:
                model.begin_stage(model.stage_at(number))
                step.forget()
            learning_rate = _learning_rate_at(number, model, config)
            began = clock.now()
            outcome = step(number, next(batches), learning_rate)
            if step.prepares:
                clock.leave_out(began, int(outcome.num_real))
            if step.compiled != is_compiled:
                is_compiled = step.compiled
                amend_session(run, step=step.describe())
            num_real += outcome.num_real
            grad_norms.append(outcome.grad_norm.clone())
            done = number + 1
            is_last, is_stopped = done == train.steps, stop.requested
            saves = done % train.save_every == 0 or is_last or is_stopped
            # A log window also ends at a checkpoint, for resuming, and at the end of a stage,
            # because the next stage has a different loss.
            if done % train.log_every == 0 or saves or done in model.stages:
                record = {
                    "part": "train",
                    "step": done,
                    **clock.record(done, train.steps, int(num_real)),
                    **step.measures.record(),
                    "flops": flops_per_token * done * train.batch_size * length,
                    "learning_rate": learning_rate,
                    "grad_norm": torch.stack(grad_norms).mean().item(),
                }
                num_real.zero_()
                grad_norms.clear()
                require(
                    math.isfinite(record["loss"]) and math.isfinite(record["grad_norm"]),
                    f"the loss is no longer finite at step {done}; the last checkpoint is intact: "
                    "lower optimizer.learning_rate, or set train.precision=float32",
                )
                write(record)
            if saves or evaluates(done):
                with clock.paused():
                    if saves:
                        save_checkpoint(run, done, model, optimizer, train.keep_checkpoints)
                    if evaluates(done):
                        write_evaluation(done)
            if is_stopped and not is_last:
                raise Interrupted(run, done)
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


class _Clock:
    """Training time over all sessions of a run, seconds, without evaluations and checkpoints.

    Speed and remaining time leave out the steps that also compiled or captured.

    Args:
        last: The last train record of metrics.jsonl; None: the run begins.
        wait: Waits until the device has finished all queued work.
        now: Returns the current time, seconds.
    """

    def __init__(
        self,
        last: dict[str, Any] | None,
        wait: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ):
        self.seconds, self.tokens, self.step = 0.0, 0, 0
        if last:
            self.seconds, self.tokens, self.step = last["seconds"], last["tokens"], last["step"]
        self.wait, self.now = wait, now
        self.since = now()
        self.prepared = _Prepared()

    def leave_out(self, began: float, new_tokens: int) -> None:
        """Leave the step since `began` out of the speed; it has `new_tokens` real tokens."""
        self.wait()
        seconds, tokens, steps = self.prepared
        seconds += self.now() - began
        self.prepared = _Prepared(seconds, tokens + new_tokens, steps + 1)

    def record(self, step: int, steps: int, new_tokens: int) -> dict[str, Any]:
        """Return progress, speed and remaining time for a record of metrics.jsonl.

        Args:
            step: Steps done.
            steps: Steps of the run.
            new_tokens: Real tokens since the last call.
        """
        now = self.now()
        seconds, self.since = now - self.since, now
        new_steps = step - self.step
        prepared, self.prepared = self.prepared, _Prepared()
        self.seconds += seconds
        self.tokens += new_tokens
        self.step = step
        preparing = {"preparing_seconds": prepared.seconds} if prepared.steps else {}
        if prepared.steps < new_steps:
            seconds -= prepared.seconds
            new_tokens -= prepared.tokens
            new_steps -= prepared.steps
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            **preparing,
            "tokens_per_second": new_tokens / seconds,
            "seconds_left": seconds / new_steps * (steps - step),
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context from the training time; queued steps count."""
        self.wait()
        began = self.now()
        yield
        self.since += self.now() - began


class _Prepared(NamedTuple):
    """The steps of a log window that also compiled or captured."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
