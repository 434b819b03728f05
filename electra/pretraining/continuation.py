"""What may change when a run is continued by its command, and runs that branch from another."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from electra.checkpoints.checkpoint import list_checkpoints, step_of
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_metrics
from electra.config import PretrainConfig
from electra.errors import UserError, require
from electra.files import new_folder, write_json, write_text
from electra.pretraining.acceleration import Ranking, recorded_ranking
from electra.settings import flatten, override, to_dict

MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("steps", "log_every", "evaluate_every", "save_every", "keep_checkpoints", "keep_every"),
        *("accumulation", "sharding", "recompute_activations", "device", "precision", "threads"),
        *("check_memory", "compile", "combine_kernels", "autotune", "dependent_launch"),
        *("cuda_graph", "layers", "profile_step"),
    )
)
"""The length of a run, what it writes, and how it is computed."""


def read_run(
    run: Path, given: PretrainConfig | None, device: str
) -> tuple[dict[str, Any], dict[str, str], dict[str, str], Ranking | None, dict[str, Any] | None]:
    """Return what process 0 reads for all of them when a run goes on.

    These are the settings, what the settings of the command (`given`) change in them, the shards'
    source, the attention kernels recorded for the device, and the weights of train.init_from.

    Raises:
        UserError: The run is complete or damaged, or the command has settings that may not change.
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
    if not isinstance(source, dict) or not {"folder", "sha256"} <= source.keys():
        what = f"{run / 'manifest.json'} is damaged"
        raise UserError(f"{what}: shards must have a folder and a sha256")
    if given:
        given = _fit_to_run(given, config)
        config, changed = given, find_changes(run, config, given)
    ranking = recorded_ranking(manifest, device)
    return to_dict(config), changed, source, ranking, manifest.get("init_from")


def _fit_to_run(given: PretrainConfig, begun: PretrainConfig) -> PretrainConfig:
    """Return the settings of a command with the sizes that the run took from shards and others."""
    model = dataclasses.replace(given.model, vocab_size=begun.model.vocab_size)
    given = dataclasses.replace(given, model=model)
    if given.generator.kind != "frozen":
        return given
    sizes = {name: getattr(begun.generator, name) for name in ("hidden_size", "num_hidden_layers")}
    return dataclasses.replace(given, generator=dataclasses.replace(given.generator, **sizes))


def find_changes(run: Path, begun: PretrainConfig, given: PretrainConfig) -> dict[str, str]:
    """Return how the settings of a run change, by name, as "OLD -> NEW".

    Settings that the weights or the meaning of the metrics depend on are refused if they differ.
    """
    before, after = (dict(flatten(to_dict(config))) for config in (begun, given))
    changed = [name for name in after if after[name] != before[name]]
    for name in changed:
        if name == "method.generator_steps":  # 0 is half of the steps; what counts is below
            continue
        what = f"{run} was begun with {name}={before[name]}, not {after[name]}"
        mixed = f"{what}: the run would be neither the one nor the other; choose another --out"
        require(name in MAY_CHANGE, mixed)
        is_shorter = name == "train.steps" and after[name] < before[name]
        require(not is_shorter, f"{what}: a run can be made longer, not shorter")
    first, setting = begun.second_stage, "generator.warmup_steps"
    if not begun.generator.warmup_steps:
        setting = "method.generator_steps"
    require(
        given.second_stage == first,
        f"{run}: the second stage began at step {first}, and with train.steps={given.train.steps} "
        f"it would begin at {given.second_stage}: set {setting}={first}",
    )
    return {name: f"{before[name]} -> {after[name]}" for name in changed}


def branch(trunk: Path, out: Path, config: PretrainConfig) -> None:
    """Write the folder of a shorter run that shares the stable part of another; `resume` goes on.

    Up to the decay of the shorter one, the learning rates of both are the same, and so are the
    steps. The folder holds the newest checkpoint of the trunk from that part and the metrics before
    it; its manifest says where it comes from. If the trunk has no such checkpoint, the run begins
    at step 0.

    Args:
        trunk: The longer run, with an `optimizer.decay_fraction` below 1.
        out: The run folder to write.
        config: The settings of the shorter run.

    Raises:
        UserError: The settings differ from the trunk's by more than its length, or `out` exists.
    """
    begun = read_run_config(trunk)
    fraction, steps = config.optimizer.decay_fraction, config.train.steps
    if steps > begun.train.steps or fraction == 1:
        raise UserError(f"{trunk} has no stable part that a run of {steps} steps could share")
    find_changes(trunk, begun, override(config, [f"train.steps={begun.train.steps}"]))
    stable = steps - max(1, round(fraction * steps))
    shared = [each for each in list_checkpoints(trunk) if step_of(each) <= stable]
    last = step_of(shared[-1]) if shared else 0
    with new_folder(out) as folder:
        shutil.copytree(trunk / "tokenizer", folder / "tokenizer")
        manifest = read_manifest(trunk)
        if shared:
            manifest["branched_from"] = {"run": trunk.name, "step": last}
        else:
            manifest["sessions"] = []
        write_json(folder / "manifest.json", manifest)
        write_json(folder / "config.json", to_dict(config))
        records = [each for each in read_metrics(trunk / "metrics.jsonl") if each["step"] <= last]
        write_text(folder / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in records))
        if shared:
            shutil.copytree(shared[-1], folder / "checkpoints" / shared[-1].name)
