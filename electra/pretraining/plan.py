"""The cost of a run: estimated memory of a step, and the time of steps on this machine."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from electra.method.flops import FORWARD_AND_BACKWARD, count_run
from electra.method.objective import Objective
from electra.model.encoder import Encoder
from electra.model.forms import choose_layers
from electra.presets import PRESETS
from electra.pretraining.acceleration import WARM_UP_STEPS
from electra.pretraining.memory import count_bytes, count_parameters, make_rows, measure_activations
from electra.pretraining.networks import sketch_objective
from electra.pretraining.start import build_model, prepare_step
from electra.shards.traffic import Traffic
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.config import PretrainConfig
from electra.training.machine import Machine, prepare_machine

DAY = 24 * 60 * 60
"""Seconds."""
LAYER_SECONDS, LAYER_ROWS, LAYER_LENGTH, LAYER_VOCABULARY = 0.1, 4, 128, 100
"""The layer that is timed for an estimate: time at least, rows, their tokens, embeddings."""


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
    traffic: Traffic | None = None
    """The traffic of a machine from a store; None: no shards were given."""


def plan(
    config: PretrainConfig,
    probe_seconds: float,
    progress: Callable[[float], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Return the estimated cost of a run, after timing steps with random tokens.

    The settings have the final `model.vocab_size`. `probe_seconds` limit the measurement: on a CPU
    a step that takes too long is timed on fewer rows, and its time is scaled in proportion to the
    rows. `progress` is called repeatedly with the seconds spent.
    """
    train, vocab_size = config.train, config.model.vocab_size
    machine = prepare_machine(train.device, train.precision, train.threads)
    tokenizer, frequencies_V = make_tokenizer(vocab_size), torch.ones(vocab_size)
    model = build_model(config, tokenizer, machine, frequencies_V)
    activations = train.micro_batch_size * measure_activations(model, config, machine.device)
    return Plan(
        count_parameters(model.kept),
        count_parameters(model),
        train.steps,
        train.steps * train.batch_size * config.examples.sequence_length,
        count_run(model, *config.amount),
        count_bytes(model, num_parts=1) + activations,
        time_run(model, config, machine, probe_seconds, progress, clock),
        machine.name,
    )


def estimate_run(
    config: PretrainConfig, machine: Machine, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return about how long all steps take, seconds: their operations at the speed of one layer.

    This takes a fraction of a second. The fastest of the timed passes counts, with all threads or
    with one: on a busy machine, other programs slow the rest. Whole steps of six presets took
    0.9 to 1.9 times as long on a busy core with bfloat16.
    """
    length = min(config.examples.sequence_length, LAYER_LENGTH)
    sizes = dataclasses.replace(config.model, num_hidden_layers=1, vocab_size=LAYER_VOCABULARY)
    layer = choose_layers("auto", sizes.architecture, machine.device, is_plain=False)
    encoder = Encoder(sizes, layer=layer, compute_dtype=machine.dtype).train()
    ids_BL = torch.zeros((LAYER_ROWS, length), dtype=torch.long)
    encoder(ids_BL).float().sum().backward()  # sets up
    best = math.inf
    for threads in (1, machine.threads):
        torch.set_num_threads(threads)
        began = clock()
        ended, end = began, began + LAYER_SECONDS
        while ended < end:
            encoder(ids_BL).float().sum().backward()
            began, ended = ended, clock()
            best = min(best, ended - began)
    flops = FORWARD_AND_BACKWARD * sum(encoder.count_flops(length).values()) * ids_BL.numel()
    run = count_run(sketch_objective(config), *config.amount)["true"]
    return run / flops * best


def list_shorter(config: PretrainConfig, machine: Machine, seconds: float) -> dict[str, float]:
    """Return the presets of a run's architecture that take less than a day, with their seconds."""
    found = {}
    run = count_run(sketch_objective(config), *config.amount)["true"]
    for name, preset in PRESETS.items():
        if preset.model.architecture == config.model.architecture:
            model = dataclasses.replace(preset.model, vocab_size=config.model.vocab_size)
            preset = dataclasses.replace(preset, model=model)
            flops = count_run(sketch_objective(preset), *preset.amount)["true"]
            if flops < run and flops / run * seconds < 10 * DAY:
                found[name] = estimate_run(preset, machine)
    return {name: taken for name, taken in found.items() if taken < DAY}


def time_run(
    model: Objective,
    config: PretrainConfig,
    machine: Machine,
    probe_seconds: float,
    progress: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the estimated time of all steps, seconds, as `time_step`.

    The stages of an objective take equal parts of the probe.
    """
    seconds, share = 0.0, probe_seconds / len(model.stages)
    ends = (*model.stages[1:], config.train.steps)
    for stage, (first, end) in enumerate(zip(model.stages, ends, strict=True)):
        if stage:
            model.begin_stage(stage)

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
    """Return the estimated time of a step on the machine, seconds: the median of the timed steps.

    The other arguments are those of `plan`.
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
        progress(min(clock() - began, probe_seconds))
    return statistics.median(seconds) * batch_size / num_rows
