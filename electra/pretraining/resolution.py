"""The settings of a run: preset, TOML, --set, and what another model or the run itself determines.

Command line and library resolve settings here. Nothing here imports torch until another model is
read, so that the settings of a run are printed at once.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from electra.config import (
    NOT_SIZES,
    SIZES_OF_GENERATOR,
    PretrainConfig,
    longest_warmup,
    require_schedule,
)
from electra.errors import require_choice
from electra.presets import PRESETS, RECIPES
from electra.settings import override, override_values, read_toml, setting_name, to_dict


def resolve(
    preset: str,
    recipe: str | None = None,
    assignments: Sequence[str] = (),
    *,
    toml: Path | None = None,
    run: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> PretrainConfig:
    """Return the settings of a pre-training.

    A preset's warm-up is cut to a tenth of a short schedule; one that was set is kept, or refused.
    With train.init_from, sizes are those of that model. A run that was begun keeps the warm-up and
    the sizes that it began with, also if it is made longer.

    Args:
        preset: Name of the preset.
        recipe: paper or best; None: the preset's own.
        assignments: Settings as `section.field=value`, which come after those of `toml`.
        toml: A TOML file of settings.
        run: The run folder, which may have been begun.
        note: Called with each sentence that the user should read.

    Raises:
        UserError: A setting is unknown or wrong, or contradicts others or the model.
    """
    require_choice("preset", preset, PRESETS)
    require_choice("recipe", recipe, (None, *RECIPES))
    settings = RECIPES[recipe][preset] if recipe else PRESETS[preset]
    given = {setting_name(each) for each in assignments}
    if toml is not None:
        values = read_toml(toml)
        settings = override_values(settings, values, toml)
        given.update(values)
    settings = override(settings, assignments)
    init_from, optimizer = settings.train.init_from, settings.optimizer
    if run is not None and (run / "config.json").exists():
        from electra.checkpoints.folder import read_run_config

        settings = _keep_begun(settings, read_run_config(run), given)
    else:
        if init_from:
            from electra.checkpoints.folder import read_pretrained
            from electra.pretraining.init_from import fit_to_start

            start = read_pretrained(Path(init_from))
            settings = _fit_length(settings, start.sequence_length, given, note)
            settings = fit_to_start(settings, start, given)
            if "optimizer.learning_rate" not in given:
                note(
                    f"optimizer.learning_rate={optimizer.learning_rate:g} is {preset}'s for a run "
                    "from scratch; less of what was learnt is lost with a smaller one, such as a "
                    "sixth (docs/DOMAIN.md)"
                )
        longest = longest_warmup(settings.shortest_schedule)
        if optimizer.warmup_steps > longest and "optimizer.warmup_steps" not in given:
            settings = override(settings, [f"optimizer.warmup_steps={longest}"])
            what = f"{preset}'s {optimizer.warmup_steps:,} are for a longer one"
            note(f"optimizer.warmup_steps={longest}, a tenth of the schedule: {what}")
    require_schedule(settings)
    return settings


def _fit_length(
    settings: PretrainConfig, longest: int, given: Iterable[str], note: Callable[[str], None]
) -> PretrainConfig:
    """Return the settings with rows no longer than the start was trained on, unless given."""
    length = settings.examples.sequence_length
    if length <= longest:
        return settings
    if "examples.sequence_length" not in given:
        length = longest
        settings = override(settings, [f"examples.sequence_length={length}"])
    note(f"examples.sequence_length={length}: the start was trained on rows of {longest} tokens")
    return settings


def _keep_begun(
    settings: PretrainConfig, begun: PretrainConfig, given: Iterable[str]
) -> PretrainConfig:
    """Return the settings with those that a run determined when it began, unless they are given.

    The model of train.init_from need not be there any more.
    """
    kept: dict[str, Any] = {"optimizer.warmup_steps": begun.optimizer.warmup_steps}
    if settings.train.init_from:
        kept["train.initial_weights"] = begun.train.initial_weights
        kept |= {
            f"model.{name}": value
            for name, value in to_dict(begun.model).items()
            if name not in NOT_SIZES
        }
        for name in (*SIZES_OF_GENERATOR, "warmup_steps"):
            kept[f"generator.{name}"] = getattr(begun.generator, name)
    return override(
        settings,
        [
            f"{name}={value}"
            for name, value in kept.items()
            if value is not None and name not in given
        ],
    )
