"""Claims of a run: settings and weights, its shards, its records; steps are computed again."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra.checkpoints.checkpoint import (
    FILES,
    STATE,
    copy_state,
    describe_networks,
    list_checkpoints,
    read_state,
    read_tensors,
    step_of,
    verify_checkpoint,
)
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import OF_THE_MACHINE, read_curves
from electra.checkpoints.results_files import RunResults
from electra.errors import UserError, count_of, require
from electra.files import read_object
from electra.method.flops import count_run
from electra.pretraining.evaluation import evaluate, heldout_rows, view_rows
from electra.pretraining.loop import Session
from electra.pretraining.networks import sketch_objective
from electra.pretraining.replay import (
    Absent,
    begins_alone,
    find_beside,
    find_session,
    find_shards,
    reopen,
    replay,
    tell_unlike,
)
from electra.shards.store import Shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.verification.claims import Claims
from electra.verification.corpora import prove_tokenizer

LOSS_TOLERANCE = 0.01
"""Largest difference of a loss, as a share of it, on another device or with other threads. After
100 steps with another form of the layers, losses of a toy run differed by up to 0.003."""


class Stretch(NamedTuple):
    """Steps whose end is kept: those between two checkpoints, or up to a record."""

    start: Path | None
    """The checkpoint that they begin with; None: the beginning of the run."""
    first: int
    last: int
    end: Path | None
    """The checkpoint that they end with; None: the record of a window."""


def verify_run(claims: Claims, run: Path, shards_folder: Path | None, steps: int) -> None:
    """Prove the claims of a run; at most so many `steps` are computed again."""
    claims.compare_hashes(run)
    prove_tokenizer(claims.inside("tokenizer"), run / "tokenizer")
    intact = [each for each in list_checkpoints(run) if _is_intact(each)]
    config: PretrainConfig | None = None
    with claims.prove("config.json: it fits the weights, the tokenizer and the seed") as tell:
        config = _read_config(run, intact)
        tell(f"{config.method.objective}, {config.train.steps:,} steps")
    if config is None:
        return
    with claims.prove("metrics.jsonl: it has all records that the checkpoint counts") as tell:
        tell(count_of(len(_read_records(run)), "record"))
    is_done = bool(intact) and step_of(intact[-1]) == config.train.steps
    if is_done or (run / "results.json").exists():
        with claims.prove("results.json: it follows from the checkpoint and the records"):
            _check_results(run, config, intact)
    _prove_starts(claims, run)
    shards: Shards | None = None
    with claims.prove("manifest.json: its shards are these") as tell:
        shards = find_shards(run, shards_folder)
        tell(f"{shards.folder}, digest {shards.digest[:16]}")
    if shards is not None:
        with claims.prove("checkpoints: their steps are computed again") as tell:
            tell(_compute_steps(run, shards, intact, steps))
        with claims.prove("metrics.jsonl: the held-out measures are computed again") as tell:
            tell(_evaluate(run, shards, intact))


def _is_intact(checkpoint: Path) -> bool:
    try:
        verify_checkpoint(checkpoint)
    except (OSError, ValueError, TypeError):
        return False
    return True


def _read_config(run: Path, intact: list[Path]) -> PretrainConfig:
    """Return the settings; refuse those of other networks than the checkpoints have."""
    config, manifest = read_run_config(run), read_manifest(run)
    seed, size = manifest.get("seed"), Tokenizer.load(run / "tokenizer").vocab_size
    require(seed == config.train.seed, f"train.seed is {config.train.seed}, the manifest's {seed}")
    rows = config.model.vocab_size
    require(size <= rows, f"model.vocab_size is {rows:,}, but the tokenizer has {size:,} tokens")
    objective = sketch_objective(config)
    networks = describe_networks(objective)
    shapes = {name: tuple(each.shape) for name, each in objective.named_parameters()}
    for checkpoint in intact:
        state = read_object(checkpoint / STATE)
        for name, facts in networks.items():
            require(
                state.get(name) == facts, f"{checkpoint / STATE}: other {name} than config.json"
            )
        headers = read_tensors(checkpoint / FILES[0]).headers
        found = {name: each.shape for name, each in headers.items()}
        require(found == shapes, f"{checkpoint / FILES[0]} holds other parameters than config.json")
    return config


def _read_records(run: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl; refuse lost and damaged ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            return read_curves(run)
        except UserWarning as warning:
            raise UserError(str(warning)) from None


def _check_results(run: Path, config: PretrainConfig, intact: list[Path]) -> None:
    """Refuse results.json if it differs from settings, last checkpoint or last evaluation."""
    path = run / "results.json"
    results = read_object(path, RunResults)
    expected: dict[str, Any] = {
        "steps": config.train.steps,
        "flops": count_run(sketch_objective(config), *config.amount),
        "heldout": [None, *(r for r in _read_records(run) if r["part"] == "heldout")][-1],
    }
    if intact and step_of(intact[-1]) == config.train.steps:
        state = read_object(intact[-1] / STATE)
        expected |= {name: state[name] for name in ("tokens", "seconds")}
    for name, value in expected.items():
        require(results[name] == value, f"{path}: {name} is {results[name]}, not {value}")


def _prove_starts(claims: Claims, run: Path) -> None:
    """Compare the weights of other models that a run began with."""
    starts: dict[str, Any] = {}
    with claims.prove("manifest.json: sessions and starts are read") as tell:
        manifest = read_manifest(run)
        starts = {name: manifest.get(name) for name in ("init_from", "generator")}
        tell(count_of(len(manifest["sessions"]), "session"))
    for name, start in (each for each in starts.items() if each[1]):
        with claims.prove(f"manifest.json: the weights of {name} are these") as tell:
            source = start["source"]
            place = find_beside(run, start.get("folder") or source.rpartition(" at step ")[0])
            right = read_pretrained(place).sha256 == start["sha256"]
            require(right, f"{place} does not hold the weights that {run} began with, {source}")
            tell(source)


def _compute_steps(run: Path, shards: Shards, intact: list[Path], limit: int) -> str:
    """Return which steps were computed again, and how they compare; refuse other ends."""
    stretch = _choose(run, intact, limit)
    records = {r["step"]: r for r in _read_records(run) if r["part"] == "train"}
    inside = {step for step in records if stretch.first < step <= stretch.last}
    session, ends = reopen(run, shards, stretch.start), sorted({*inside, stretch.last})
    computed = replay(session, ends)
    unlike = tell_unlike(run, session.step, stretch.first, stretch.last)
    what = f"steps {stretch.first + 1:,} to {stretch.last:,}"
    other = _find_other(stretch.end, session) if stretch.end else ""
    require(not other or bool(unlike), f"{what} do not end with the bits of {other}")
    for step, found in zip(ends, computed, strict=True):
        if step in records:
            _compare(f"{run / 'metrics.jsonl'}, step {step}", records[step], found, unlike)
    if stretch.end and not other:
        return f"{what} end with the bits of {stretch.end.name}"
    require(stretch.last in records, f"{run / 'metrics.jsonl'} has no record of {what}")
    return f"{what} have the measures of metrics.jsonl, {_tell_tolerance(unlike)}"


def _find_other(checkpoint: Path, session: Session) -> str:
    """Return the first tensor of a checkpoint that has other bits than a session; empty: none."""
    step = session.step
    own = copy_state(step.model, step.optimizer, step.memory)
    for file, tensors in read_state(checkpoint).items():
        for name, tensor in tensors.items():
            if name not in own[file] or not torch.equal(own[file][name], tensor):
                return f"{name} in {checkpoint / file}"
    return ""


def _tell_tolerance(unlike: str) -> str:
    return f"losses to {LOSS_TOLERANCE:.0%}, since computed with {unlike}" if unlike else "exactly"


def _choose(run: Path, intact: list[Path], limit: int) -> Stretch:
    """Return the shortest steps between kept checkpoints, or else up to a record."""
    ends = {step_of(each): each for each in intact}
    last = [{}, *read_manifest(run)["sessions"]][-1].get("flops")
    found: list[Stretch] = []
    steps = [r["step"] for r in _read_records(run) if r["part"] == "train"]
    for first, start in [*([(0, None)] if begins_alone(run) else []), *ends.items()]:
        # A session with another number of steps had another schedule.
        if find_session(run, first).get("flops") != last:
            continue
        behind = [each for each in ends if each > first][:1]
        found += [Stretch(start, first, each, ends[each]) for each in behind]
        behind = [each for each in steps if each > first][:1]
        found += [Stretch(start, first, each, None) for each in behind]
    if not found:
        raise Absent("no checkpoint has a record or another checkpoint behind it")
    fit = [each for each in found if each.last - each.first <= limit]
    shortest = min(each.last - each.first for each in found)
    if not fit:
        raise Absent(
            f"the shortest stretch with a kept end has {shortest:,} steps: --steps {shortest}"
        )
    return min(fit, key=lambda s: (s.end is None, s.start is None, s.last - s.first))


def _compare(place: str, kept: Mapping[str, Any], found: Mapping[str, Any], unlike: str) -> None:
    """Refuse measures that differ: in any bit or, if computed `unlike`, losses by over 1%."""
    for name in sorted(found.keys() & kept.keys() - OF_THE_MACHINE):
        said, now = kept[name], found[name]
        if unlike and not name.endswith(("loss", "learning_rate", "tokens")):
            continue  # a share of few tokens, or the norm of a gradient, may differ by more
        is_same = said == now or (said is None and not math.isfinite(now))
        if unlike and isinstance(said, float):
            is_same |= abs(said - now) <= LOSS_TOLERANCE * max(abs(said), abs(now))
        require(is_same, f"{place}: {name} is {said}, and computed again {now}")


def _evaluate(run: Path, shards: Shards, intact: list[Path]) -> str:
    """Return the step whose evaluation and samples are reproduced; refuse other results."""
    kept = {r["step"]: r for r in _read_records(run) if r["part"] == "heldout"}
    evaluated = [each for each in intact if step_of(each) in kept]
    if not evaluated:
        raise Absent("no kept checkpoint was evaluated")
    checkpoint, samples = evaluated[-1], run / "samples.json"
    step, done = reopen(run, shards, checkpoint).step, step_of(checkpoint)
    rows = heldout_rows(shards, step.config)
    if rows is None:
        raise UserError(f"{run / 'metrics.jsonl'} has evaluations, and config.json has none")
    unlike = tell_unlike(run, step, done - 1, done)
    found = evaluate(step.model, rows, step.micro_rows)
    _compare(f"{run / 'metrics.jsonl'}, step {done}", kept[done], found, unlike)
    if samples.exists() and done == step.config.train.steps and not unlike:
        shown = view_rows(step.model, rows, shards.tokenizer, step.micro_rows)
        is_same = read_object(samples)["rows"] == shown
        require(is_same, f"{samples} does not hold the model's judgements")
    return f"step {done:,}, {_tell_tolerance(unlike)}"
