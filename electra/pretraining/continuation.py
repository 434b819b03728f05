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
from electra.settings import flatten, to_dict

MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("log_every", "evaluate_every", "save_every", "keep_checkpoints", "keep_every"),
        "profile_step",
        *("accumulation", "sharding", "recompute_activations", "device", "precision", "threads"),
        *("check_memory", "compile", "combine_kernels", "autotune", "dependent_launch"),
        *("cuda_graph", "layers"),
        "steps",
    )
)
"""The length of a run, what it writes, and how it is computed."""


def read_run(
    run: Path, given: PretrainConfig | None, device: str
) -> tuple[dict[str, Any], dict[str, str], dict[str, str], Ranking | None, dict[str, Any] | None]:
    """Return what process 0 reads for all of them when a run goes on.

    Args:
        run: The run folder.
        given: The settings of the command; None: those of the run.
        device: Name of the device.

    Returns:
        The settings, what changes in them, the shards' source, the recorded attention kernels, and
        the weights that a continued pre-training began with.

    Raises:
        UserError: The run is complete or damaged, or the command has settings that may not change.
    """
    config = read_run_config(run)
    changed: dict[str, str] = {}
    is_longer = given is not None and given.train.steps > config.train.steps
    require(
        is_longer or not (run / "results.json").exists(),
        f"{run} is complete; there is nothing to resume"
        + ("; it exists already: choose another --out, or more train.steps" if given else ""),
    )
    manifest = read_manifest(run)
    source = manifest.get("shards")
    require(
        isinstance(source, dict) and {"folder", "sha256"} <= source.keys(),
        f"{run / 'manifest.json'} is damaged: shards must have a folder and a sha256",
    )
    assert source is not None
    if given:
        config, changed = continue_with(str(run), config, _fit_to_run(given, config))
    ranking = recorded_ranking(manifest, device)
    return to_dict(config), changed, source, ranking, manifest.get("init_from")


def _fit_to_run(given: PretrainConfig, begun: PretrainConfig) -> PretrainConfig:
    """Return the settings of a command with the sizes that the run took from shards and others."""
    model = dataclasses.replace(given.model, vocab_size=begun.model.vocab_size)
    generator = given.generator
    if generator.kind == "frozen" or given.train.init_from:
        sizes = begun.generator
        generator = dataclasses.replace(
            generator, hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_hidden_layers
        )
    return dataclasses.replace(given, model=model, generator=generator)


def continue_with(
    run: str, begun: PretrainConfig, given: PretrainConfig
) -> tuple[PretrainConfig, dict[str, str]]:
    """Return the settings that a run goes on with, and what changes, by name, as "OLD -> NEW".

    Args:
        run: The run folder, for messages.
        begun: The settings of the run so far.
        given: The settings of the command, for the same shards.

    Raises:
        UserError: A setting differs that the weights or the meaning of the metrics depend on.
    """
    before, after = (dict(flatten(to_dict(config))) for config in (begun, given))
    changed = [name for name in after if after[name] != before[name]]
    for name in changed:
        if name == "method.generator_steps":  # 0 is half of the steps; what counts is below
            continue
        what = f"{run} was begun with {name}={before[name]}, not {after[name]}"
        require(
            name in MAY_CHANGE,
            f"{what}: the run would be neither the one nor the other; choose another --out",
        )
        require(
            name != "train.steps" or after[name] > before[name],
            f"{what}: a run can be made longer, not shorter",
        )
    require(
        given.second_stage == begun.second_stage,
        f"{run}: the second stage began at step {begun.second_stage}, and with train.steps="
        f"{given.train.steps} it would begin at {given.second_stage}: set "
        f"{'generator.warmup' if begun.generator.warmup_steps else 'method.generator'}_steps="
        f"{begun.second_stage}",
    )
    return given, {name: f"{before[name]} -> {after[name]}" for name in changed}


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
    longer = dataclasses.replace(
        config, train=dataclasses.replace(config.train, steps=max(steps, begun.train.steps))
    )
    if longer.train.steps > begun.train.steps or fraction == 1:
        raise UserError(f"{trunk} has no stable part that a run of {steps} steps could share")
    continue_with(str(trunk), begun, longer)
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
