"""Continued runs: which settings may change, and which files must exist; branches of runs."""

import dataclasses
import shutil
import warnings
from collections.abc import Collection
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

from electra.assignments import differences, flatten, override
from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints, run_of, step_of
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_metrics, to_line
from electra.checkpoints.results_files import RunResults
from electra.errors import UserError, command, require
from electra.files import copy_folder, new_folder, read_object, write_facts, write_text
from electra.method.config import SIZES_OF_GENERATOR
from electra.model.config import NOT_SIZES
from electra.pretraining.domains import DOMAINS_FILE
from electra.pretraining.evaluation import Domains
from electra.pretraining.init_from import describe_weights
from electra.pretraining.step import Ranking
from electra.settings import to_dict
from electra.shards.store import Shards, open_shards
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig
from electra.training.machine import Machine

MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("steps", "log_every", "evaluate_every", "save_every", "keep_checkpoints", "keep_every"),
        *("accumulation", "sharding", "recompute_activations", "device", "precision", "threads"),
        *("check_memory", "compile", "combine_kernels", "autotune", "dependent_launch"),
        *("cuda_graph", "layers", "profile_step", "tracker", "copy_to"),
    )
)
"""The length of a run, what it writes, and how it is computed."""


def read_run(
    run: Path, given: PretrainConfig | None, device: str
) -> tuple[PretrainConfig, dict[str, str], dict[str, str], Ranking | None, dict[str, Any] | None]:
    """Return what process 0 reads for all processes when a run continues.

    These are the settings, the changes to them by the command (`given`), the shards' source, the
    attention kernels recorded for the device, and the weights of train.init_from. A complete or
    damaged run is refused, and so is a change of a setting that may not change.
    """
    config, changed = read_run_config(run), dict[str, str]()
    is_longer = given is not None and given.train.steps > config.train.steps
    require(
        is_longer or not (run / "results.json").exists(),
        f"{run} is complete; there is nothing to resume"
        + ("; it exists already: choose another --out, or more train.steps" if given else ""),
    )
    manifest = read_manifest(run)
    source = manifest.get("shards")
    if source is None:
        raise UserError(f"{run / 'manifest.json'} is damaged: it lacks the shards")
    if given:
        config, changed = settle(run, config, given)
    ranking = recorded_ranking(manifest, device)
    return config, changed, source, ranking, manifest.get("init_from")


def keep_sources(run: Path, shards: Shards, domains: Domains, machine: Machine) -> None:
    """Record where the shards are now; refuse other shards of the old text; report a new dtype."""
    manifest = read_manifest(run)
    old, evaluated = domains.get("old"), manifest.get("also_evaluate")
    require(
        not (old and evaluated) or old.digest == evaluated["sha256"],
        f"train.also_evaluate {old and old.folder} does not hold the shards that {run} began with: "
        "their losses could not be compared; choose another --out",
    )
    manifest["shards"]["folder"] = str(shards.folder)
    if old and evaluated:
        evaluated["folder"] = str(old.folder)
    write_facts(run / "manifest.json", manifest)
    now = str(machine.dtype).removeprefix("torch.")
    before = (manifest["sessions"] or [{}])[-1].get("dtype", now).removeprefix("torch.")
    if before != now:
        told = f"in {now}, before in {before}; --set train.precision={before} keeps it"
        warnings.warn(f"{run} continues {told}", stacklevel=2)


def keep_tokenizer(run: Path, shards: Shards) -> None:
    """Write the run's tokenizer again where it is damaged; the shards of the run have the same."""
    try:
        Tokenizer.load(run / "tokenizer")
    except UserError:
        told = f"{run / 'tokenizer'} is damaged; it is written again, as {shards.folder} has it"
        warnings.warn(told, stacklevel=2)
        shutil.rmtree(run / "tokenizer", ignore_errors=True)
        shards.tokenizer.save(run / "tokenizer")


def require_begun(run: Path, config: PretrainConfig) -> None:
    """Refuse other first weights than those of a run that has no checkpoint yet."""
    manifest = read_manifest(run)
    start = manifest.get("init_from") or {}
    known = {"train.init_from": start, "generator.start_folder": start.get("generator")}
    for name, described in (known | {"generator.frozen_run": manifest.get("generator")}).items():
        at = attrgetter(name)(config)
        require(
            not described or describe_weights(at)["sha256"] == described["sha256"],
            f"{name} {at} does not hold the weights that {run} began with; choose another --out",
        )


def find_finished(shards: Path, run: Path, config: PretrainConfig) -> dict[str, Any] | None:
    """Return results.json of a run that is complete with these settings; None if more is to do.

    Other settings and other shards are refused.
    """
    path = run / "results.json"
    if not path.exists() or config.train.steps > read_run_config(run).train.steps:
        return None
    settle(run, read_run_config(run), config)
    require(
        open_shards(shards, verify=False).digest == read_manifest(run)["shards"]["sha256"],
        f"{shards} does not hold the shards of {run}; choose another --out",
    )
    return read_object(path, RunResults)


def settle(
    run: Path, begun: PretrainConfig, wanted: PretrainConfig, given: Collection[str] | None = None
) -> tuple[PretrainConfig, dict[str, str]]:
    """Return the settings with which a run continues, and how they change, by name: "OLD -> NEW".

    Settings from shards and other models stay as they were when the run began; those models need
    not exist any more. `given` are the names of the settings that the user chose; None: all names
    in `wanted`. A shorter run is refused, and so are changes on which the weights or the meaning of
    the metrics depend.
    """
    before, after = (dict(flatten(to_dict(config))) for config in (begun, wanted))
    kept = {"model.vocab_size"}
    if wanted.generator.kind == "frozen":
        kept |= {"generator.hidden_size", "generator.num_hidden_layers"}
    if given is not None:
        kept |= _fitted_when_begun(wanted).difference(given)
    changed = [
        name for name in before | after if after.get(name) != before.get(name) and name not in kept
    ]
    # method.generator_steps=0 is half of the steps; what counts is below.
    free = {*MAY_CHANGE, "method.generator_steps"}
    if begun.train.also_evaluate and wanted.train.also_evaluate:
        free.add("train.also_evaluate")  # moved: shards of another digest are refused later
    refused = [name for name in changed if name not in free]
    is_longer = wanted.train.steps > begun.train.steps
    if is_longer and begun.optimizer.cooldown_steps:
        raise UserError(
            f"{run} already ends in a cool-down; extend the run that it branched from instead"
        )
    if refused or wanted.train.steps < begun.train.steps:
        named = refused or ["train.steps"]
        differs = ", ".join(
            f"{name}={before.get(name)}, not {after.get(name)}" for name in named[:5]
        )
        more = f", and {len(named) - 5} more differ" if len(named) > 5 else ""
        why = "the result would belong to neither configuration"
        if not refused:
            why = "a run can be made longer, not shorter"
        how = f", or continue with its settings, by `{command('pretrain', '--resume', run)}`"
        if (run / "results.json").exists():
            how = "; with its own settings it is complete"
        raise UserError(f"{run} was started with {differs}{more}: {why}; choose another --out{how}")
    settled = override(begun, [f"{name}={after[name]}" for name in changed])
    first, setting = begun.second_stage, "generator.warmup_steps"
    if not begun.generator.warmup_steps:
        setting = "method.generator_steps"
    require(
        settled.second_stage == first,
        f"{run}: the second stage began at step {first}, and with "
        f"train.steps={settled.train.steps} it would begin at {settled.second_stage}: set "
        f"{setting}={first}",
    )
    return settled, {name: f"{before[name]} -> {after[name]}" for name in changed}


def _fitted_when_begun(config: PretrainConfig) -> set[str]:
    """Return the settings that a run found for itself when it began, unless they were given."""
    if not config.train.init_from:
        return {"optimizer.warmup_steps"}
    sizes = {field.name for field in dataclasses.fields(config.model)}.difference(NOT_SIZES)
    return {
        *(f"optimizer.{name}" for name in ("learning_rate", "generator_rate", "warmup_steps")),
        *("examples.sequence_length", "train.initial_weights"),
        *(f"model.{name}" for name in sizes),
        *(f"generator.{name}" for name in (*SIZES_OF_GENERATOR, "warmup_steps")),
    }


def branch(trunk: Path, out: Path, config: PretrainConfig) -> None:
    """Write the folder of a shorter run that shares the stable part of another; `resume` continues.

    Up to the decay of the shorter one, the learning rates of both are the same, and so are the
    steps. The folder holds the newest checkpoint of the trunk from that part and the metrics before
    it; its manifest says where it comes from. If the trunk has no such checkpoint, the run begins
    at step 0. A trunk without a stable part is refused, and settings that differ by more than the
    length.
    """
    begun = read_run_config(trunk)
    fraction, steps = config.optimizer.decay_fraction, config.train.steps
    is_shared = begun.second_stage == config.second_stage and not config.generator.temperature_decay
    if steps > begun.train.steps or fraction == 1 or not is_shared:
        raise UserError(f"{trunk} has no stable part that a run of {steps} steps could share")
    settle(trunk, begun, override(config, [f"train.steps={begun.train.steps}"]))
    stable = steps - max(1, round(fraction * steps))
    shared = find_checkpoint(trunk, stable)[1] if list_checkpoints(trunk, stable) else None
    write_branch(trunk, shared, out, config)


def write_branch(trunk: Path, checkpoint: Path | None, out: Path, config: PretrainConfig) -> None:
    """Write the folder of a run that continues a checkpoint of another, or begins as it did."""
    last = step_of(checkpoint) if checkpoint else 0
    with new_folder(out) as folder:
        copy_folder(trunk / "tokenizer", folder / "tokenizer")
        manifest = read_manifest(trunk)
        if checkpoint:
            manifest["branched_from"] = {"run": trunk.absolute().name, "step": last}
        else:
            manifest["sessions"] = []
        write_facts(folder / "manifest.json", manifest)
        write_facts(folder / "config.json", to_dict(config))
        records = [each for each in read_metrics(trunk / "metrics.jsonl") if each["step"] <= last]
        write_text(folder / "metrics.jsonl", "".join(map(to_line, records)))
        if checkpoint:
            copy_folder(checkpoint, folder / "checkpoints" / checkpoint.name)
            if (trunk / DOMAINS_FILE).is_file():  # the rows of its losses stay the same
                shutil.copyfile(trunk / DOMAINS_FILE, folder / DOMAINS_FILE)


def is_end_of(out: Path, start: Path, length: int | timedelta) -> bool:
    """Return whether a folder already holds an early end of this run, or of its checkpoint.

    An end that began at another checkpoint than the named one, or that has another number of steps
    than the given one, is refused. A time is converted to steps at the run's own speed.
    """
    known = read_manifest(out) if (out / "manifest.json").exists() else {}
    begun, run = known.get("branched_from") or {}, run_of(start)
    if begun.get("run") != run.absolute().name:
        return False
    config = read_run_config(out)
    steps, first = config.optimizer.cooldown_steps, begun["step"]
    set_by_end = {"optimizer.cooldown_steps", "optimizer.planned_steps", "method.generator_steps"}
    if not steps or differences(read_run_config(run), config).keys() - set_by_end - MAY_CHANGE:
        return False
    require(
        (start == run or step_of(start) == first)
        and (length == steps or not isinstance(length, int)),
        f"{out} was started at step {first} with --cooldown {steps}: choose another --out, or "
        f"continue with its own settings, by `{command('pretrain', '--resume', out)}`",
    )
    return True


def plan_cooldown(start: Path, length: int | timedelta) -> tuple[Path, PretrainConfig]:
    """Return a run's newest checkpoint, or the named one, and the settings of an early end from it.

    The rate decays to 0 in a `length` of steps, or in a time at the run's own speed. A
    checkpoint at which the schedule cannot be cut is refused.
    """
    run, (step, checkpoint) = run_of(start), find_checkpoint(start)
    begun = read_run_config(run)
    if begun.optimizer.cooldown_steps:
        raise UserError(f"{run} already ends in a cool-down; name the run that it branched from")
    first = begun.second_stage + begun.optimizer.warmup_steps
    require(
        first <= step < begun.train.steps,
        f"{run} can be cooled down from step {first} on, where its warm-up is over, and before "
        f"step {begun.train.steps}, its last; the checkpoint is of step {step}",
    )
    steps = length if isinstance(length, int) else _count_steps(run, length.total_seconds())
    require(steps > 0, f"--cooldown must be at least the time of a step, not {length}")
    changes = [
        f"train.steps={step + steps}",
        f"optimizer.cooldown_steps={steps}",
        f"optimizer.planned_steps={begun.train.steps}",
    ]
    if begun.method.scheme == "two_stage":
        changes.append(f"method.generator_steps={begun.second_stage}")
    return checkpoint, override(begun, changes)


def _count_steps(run: Path, seconds: float) -> int:
    """Return how many steps a run does in a time, by its newest record."""
    for record in reversed(read_metrics(run / "metrics.jsonl")):
        if record["part"] == "train" and record["tokens"]:
            return int(seconds * record["tokens_per_second"] * record["step"] / record["tokens"])
    raise UserError(f"{run} has no record of its speed: give --cooldown as a number of steps")


def recorded_ranking(manifest: dict[str, Any], device: str) -> Ranking | None:
    """Return the ranking of a run's first session on a device; None if there was none.

    Kernels round differently. With the ranking of its first session, a resumed run continues with
    the kernels that it began with.
    """
    for session in manifest["sessions"]:
        ranking: Ranking = session.get("step", {}).get("attention", {})
        if ranking and session.get("device") == device:
            return ranking
    return None
