"""What may change when a run is continued by its command, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

from electra.config import PretrainConfig, require
from electra.pretraining.attention import Ranking, recorded_ranking
from electra.runs.manifest import read_manifest
from electra.runs.pretrained import read_run_config
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
