"""Estimated cost of a pre-training run: parameters, operations, memory and training time."""

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
    """Estimated cost of a run."""

    kept_parameters: int
    """Parameters of the encoder that pre-training returns."""
    parameters: int
    """Parameters of all networks in training."""
    steps: int
    """Optimizer steps."""
    tokens: int
    """Positions of all rows, padding included."""
    flops: dict[str, float]
    """Operations of the whole run: "true" and "paper"."""
    memory: float
    """Estimated peak memory of a step, bytes."""
    seconds: float
    """Estimated training time, seconds, without evaluations."""
    device: str
    """Device that the time was measured on."""


def plan(
    config: PretrainConfig,
    probe_seconds: float,
    progress: Callable[[float], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Return the estimated cost of a run, after timing steps with random tokens.

    Args:
        config: The settings of the run, with the final `model.vocab_size`.
        probe_seconds: Time limit of the measurement, seconds. On a CPU a step that takes too long
            is timed on fewer rows, and its time is scaled in proportion to the rows.
        progress: Called repeatedly with the seconds spent.
        clock: Returns the current time, seconds.
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
        time_run(model, config, machine, probe_seconds, progress, clock),
        machine.name,
    )


def time_run(
    model: Objective,
    config: PretrainConfig,
    machine: Machine,
    probe_seconds: float,
    progress: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the estimated time of all steps, seconds; arguments as for `time_step`.

    The stages of an objective take equal parts of the probe.
    """
    seconds, share = 0.0, probe_seconds / len(model.stages)
    for stage, first in enumerate(model.stages):
        if stage:
            model.begin_stage(stage)
        end = (*model.stages, config.train.steps)[stage + 1]

        def add(spent: float, earlier: float = stage * share) -> None:
            progress(earlier + spent)

        seconds += (end - first) * time_step(model, config, machine, share, add, clock)
    return seconds


def time_step(
    model: Objective,
    config: PretrainConfig,
    machine: Machine,
    probe_seconds: float,
    progress: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the estimated time of an optimizer step, seconds: the median of the timed steps.

    Args:
        model: The objective, on the machine's device.
        config: The settings of the run.
        machine: The machine to time on.
        probe_seconds: As in `plan`.
        progress: As in `plan`.
        clock: As in `plan`.
    """
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
    if machine.device.type == "cuda":  # time is not proportional to rows until they fill the GPU
        num_rows = batch_size
        for _ in range(WARM_UP_STEPS + 1):
            run(num_rows)
        began = clock()  # compilation does not count
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
