"""What a pre-training run will take: parameters, operations, memory, and time on this machine."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from electra.config import PretrainConfig
from electra.corpus.tokenizer import make_tokenizer
from electra.method.flops import count_run
from electra.method.objective import Objective
from electra.pretraining.acceleration import WARM_UP_STEPS, prepare_step
from electra.pretraining.memory import estimate_step, make_rows
from electra.pretraining.start import build_model
from electra.training.machine import Machine, prepare_machine


class Plan(NamedTuple):
    """A run before it begins."""

    kept_parameters: int
    """Of the encoder one keeps."""
    parameters: int
    """In training."""
    steps: int
    tokens: int
    """Positions of all rows, padding included."""
    flops: dict[str, float]
    """Of the whole run, "true" and "paper"."""
    memory: float
    """Estimated peak of a step, bytes."""
    seconds: float
    """Estimated time of training, without evaluations."""
    device: str
    """What the time is for."""


def plan(
    config: PretrainConfig,
    probe_seconds: float,
    progress: Callable[[float], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Return what a run will take; its steps are timed with random tokens for `probe_seconds`.

    Args:
        config: The settings of the run; `model.vocab_size` as it will be.
        probe_seconds: How long steps are timed. A step that takes longer is timed on fewer rows,
            and its time taken as proportional to them.
        progress: Is told the seconds spent, from time to time.
        clock: Returns the time, seconds.
    """
    machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
    tokenizer = make_tokenizer(config.model.vocab_size)
    frequencies_V = torch.ones(config.model.vocab_size)
    model = build_model(config, tokenizer, machine, frequencies_V)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = sum(parameter.numel() for parameter in model.kept.parameters())
    return Plan(
        kept,
        num_parameters,
        config.train.steps,
        config.train.steps * config.train.batch_size * config.examples.sequence_length,
        count_run(model, config),
        estimate_step(model, config, machine.device),
        config.train.steps * time_step(model, config, machine, probe_seconds, progress, clock),
        machine.name,
    )


def time_step(
    model: Objective,
    config: PretrainConfig,
    machine: Machine,
    probe_seconds: float,
    progress: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the estimated seconds of an optimizer step: the median of those that were timed."""
    step = prepare_step(model, config, machine)
    batch_size = config.train.batch_size
    model.train()

    def run(num_rows: int) -> float:
        batch = make_rows(config, num_rows, seed=num_rows)
        began = clock()
        step(0, batch, config.optimizer.learning_rate)
        machine.wait()
        return clock() - began

    def warmed_up(num_rows: int) -> float:
        run(num_rows)  # sets up what has this size
        return run(num_rows)

    began = clock()
    if machine.device.type == "cuda":  # whose time does not grow with rows until they fill it
        num_rows = batch_size
        for _ in range(WARM_UP_STEPS + 1):
            run(num_rows)
        began = clock()  # compiling is no part of the probe
    else:
        # As many rows as leave time for five steps. A step has costs that do not grow with its rows
        # (the update, the vocabulary), so that a few rows say little about many.
        whole = config.train.micro_batch_size
        num_rows = max(1, batch_size // (16 * config.train.accumulation))
        taken = warmed_up(num_rows)
        while num_rows < whole and 2 * taken <= probe_seconds / 5:
            num_rows = min(2 * num_rows, whole)
            taken = warmed_up(num_rows)
        num_rows = max(1, min(whole, int(probe_seconds / 5 / taken * num_rows)))
        began = clock()
    seconds = [warmed_up(num_rows)]
    while clock() - began < probe_seconds:
        seconds.append(run(num_rows))
        progress(clock() - began)
    return statistics.median(seconds) * batch_size / num_rows
