"""What may change when a run is continued by its command, and what is refused."""

from electra.config import PretrainConfig, require
from electra.settings import flatten, to_dict

MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("log_every", "evaluate_every", "save_every", "keep_checkpoints", "keep_every"),
        *("accumulation", "recompute_activations", "device", "precision", "threads"),
        *("check_memory", "compile", "autotune", "dependent_launch", "cuda_graph", "layers"),
        "steps",
    )
)
"""The length of a run, what it writes, and how it is computed."""


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
        f"{given.train.steps} it would begin at {given.second_stage}: set method.generator_steps="
        f"{begun.second_stage}",
    )
    return given, {name: f"{before[name]} -> {after[name]}" for name in changed}
