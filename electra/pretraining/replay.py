"""Computes steps of a run again, with the loop's own functions, and writes nothing.

One process computes all micro-batches of a step, on the kind of device and with the threads and
the dtype that the run had. If these, the CPU or GPU and torch are the same, results are bit-equal.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from electra.checkpoints.checkpoint import step_of
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.errors import UserError
from electra.files import named
from electra.pretraining.journal import SilentJournal, Totals, Window, read_totals
from electra.pretraining.loop import Session, load_step
from electra.pretraining.opening import build_begun
from electra.pretraining.signals import Requests
from electra.pretraining.step import Step
from electra.shards.examples import Examples
from electra.shards.store import Shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.training.machine import Machine, prepare_machine

CPU_NAME = re.compile(r", (\d+) threads?$")
"""How the name of a CPU ends in a manifest."""


class Absent(UserError):
    """The object of a claim is not at hand, so that it can be neither proved nor refuted."""


def find_beside(folder: Path, told: str) -> Path:
    """Return a folder that another one names: where it was, or beside it under the same name."""
    places = Path(told), named(folder).parent / Path(told).name
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise Absent(f"{told} is not here")
    return found


def find_shards(run: Path, given: Path | None = None) -> Shards:
    """Return the shards of a run, from its manifest or `given`; refuse other shards.

    Raises:
        Absent: They are not where the manifest says, and none are given.
        UserError: They are no shards, or those of another corpus or vocabulary.
    """
    source = read_manifest(run)["shards"]
    try:
        place = given or find_beside(run, source["folder"])
    except Absent as error:
        raise Absent(f"{error}: --shards names the run's shards") from None
    shards = open_shards(place, verify=False)
    if shards.digest != source["sha256"]:
        same = Tokenizer.load(run / "tokenizer").digest == shards.tokenizer.digest
        what = "corpus" if same else "vocabulary"
        raise UserError(f"{place} does not hold the shards of {run}: it has another {what}")
    return shards


def begins_alone(run: Path) -> bool:
    """Return whether a run began with weights that follow from its seed alone."""
    manifest, kind = read_manifest(run), read_run_config(run).generator.kind
    return not (manifest.get("init_from") or manifest.get("branched_from") or kind == "frozen")


def find_session(run: Path, done: int) -> dict[str, Any]:
    """Return the manifest's entry of the session that did the step after `done` steps."""
    sessions: Sequence[dict[str, Any]] = read_manifest(run)["sessions"]
    return [{}, *(each for each in sessions if each.get("first_step", 0) <= done)][-1]


def prepare_as(session: Mapping[str, Any], config: PretrainConfig) -> Machine:
    """Return the machine that is most like that of a session of a run."""
    name, train = str(session.get("device", "")), config.train
    cpu = CPU_NAME.search(name)
    dtype = str(session.get("dtype", "")).removeprefix("torch.")
    return prepare_machine(
        "cpu" if cpu or train.device == "cpu" else "auto",
        "bfloat16" if dtype == "bfloat16" else "float32" if dtype == "float32" else train.precision,
        int(cpu[1]) if cpu else train.threads,
    )


def reopen(run: Path, shards: Shards, checkpoint: Path | None, first: int | None = None) -> Session:
    """Return the steps of a run behind one of its checkpoints, or from its beginning (None).

    The first batch is that of the step behind the checkpoint, or that of step `first`.
    """
    config, done = read_run_config(run), step_of(checkpoint) if checkpoint else 0
    session = find_session(run, done)
    machine = prepare_as(session, config)
    # Dropout is seeded by the number of a micro-batch among those of all processes.
    accumulation = config.train.accumulation * session.get("processes", 1)
    train = dataclasses.replace(
        config.train, accumulation=accumulation, sharding="none", compile="no"
    )
    config = dataclasses.replace(config, train=train)
    examples = Examples(shards.train, shards.tokenizer, config.examples, train.seed, shards.mixture)
    model = build_begun(
        config, shards, examples, machine, None, lambda record: None, is_new=checkpoint is None
    )
    step = Step(model, config, machine)
    if checkpoint:
        load_step(step, done, checkpoint)
    totals = read_totals(checkpoint) if checkpoint else Totals()
    window = Window(step, totals)
    batches = examples.batches(done if first is None else first, train.batch_size)
    model.begin_step(done)
    model.train()
    return Session(run, step, done, math.inf, batches, SilentJournal(), window, Requests())


def replay(session: Session, ends: Sequence[int]) -> list[dict[str, Any]]:
    """Do the steps up to the last of `ends`, and return the means of the windows that end there."""
    records = []
    for number in range(session.first_step, ends[-1]):
        session.take(number)
        if number + 1 in ends:
            means, _ = session.window.record(number + 1, session.step.config.train.steps)
            records.append({**means, "learning_rate": session.learning_rate})
    return records


def tell_unlike(run: Path, step: Step, first: int, last: int) -> str:
    """Return how this computation differs from the run's own; empty: results must be bit-equal."""
    later = (each for each in read_manifest(run)["sessions"] if "first_step" in each)
    inside = (each for each in later if first < each["first_step"] < last)
    form, unlike = step.describe(), dict[str, None]()
    for session in (find_session(run, first), *inside):
        before = session.get("step", {})
        pairs = {
            "device": (session.get("device"), step.machine.name),
            "dtype": (session.get("dtype"), str(step.machine.dtype)),
            "processes": (session.get("processes"), 1),
            "torch": (session.get("packages", {}).get("torch"), metadata.version("torch")),
            **{name: (before.get(name), form[name]) for name in ("layers", "compiled")},
        }
        told = [f"{name} {now}, then {old}" for name, (old, now) in pairs.items() if now != old]
        unlike |= dict.fromkeys(told)
    return ", ".join(unlike)
