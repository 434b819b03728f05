"""The options that several verbs share, and what is done with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from electra.config import NOT_SIZES, PretrainConfig, require_schedule
from electra.errors import did_you_mean, require
from electra.presets import PRESETS, RECIPES
from electra.settings import (
    flatten,
    override,
    override_from_toml,
    override_values,
    read_toml,
    to_dict,
)
from electra.text.streams import is_url

Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        consume_multiple=True,
        help="Settings as field=value or section.field=value; --dry-run lists all of them.",
    ),
]
SetPretraining = Annotated[
    Set,
    Parameter(
        help="Settings of pre-training as section.field=value; `electra pretrain --dry-run` lists "
        "all of them."
    ),
]
Toml = Annotated[
    Path | None, Parameter(name="--config", help="A TOML file of settings; --set overrides it.")
]
InitFrom = Annotated[
    Path | None,
    Parameter(
        help="Continued pre-training: a run, or a folder that `electra export` or `electra import` "
        "wrote, whose weights and sizes the run begins with; the same as --set "
        "train.init_from=FOLDER."
    ),
]
BEST_BY_DEFAULT = [name for name, preset in PRESETS.items() if preset == RECIPES["best"][name]]
Recipe = Annotated[
    Literal["paper", "best"] | None,
    Parameter(
        name="--recipe",
        help="paper: settings as published. best: those found by experiment at the size of tiny. "
        f"If not given, best for {', '.join(BEST_BY_DEFAULT)}, paper for the others.",
    ),
]
DryRun = Annotated[
    bool,
    Parameter(
        name="--dry-run",
        help="Print the settings and what would be done, and write nothing.",
    ),
]

ConfigType = TypeVar("ConfigType")
TAKEN_BY_GENERATOR = (
    *("hidden_fraction", "layers_fraction", "hidden_size", "num_hidden_layers"),
    "warmup_steps",
)
"""Fields of GeneratorConfig that train.init_from may determine."""


def resolve(settings: ConfigType, toml: Path | None, assignments: Sequence[str]) -> ConfigType:
    """Return the settings with those of --config, then those of --set."""
    if toml is not None:
        settings = override_from_toml(settings, toml)
    return override(settings, assignments)


def repeat(
    assignments: Sequence[str], toml: Path | None = None, recipe: str | None = None
) -> list[str]:
    """Return the words that give the same settings to the next command."""
    return [
        *(["--recipe", recipe] if recipe else []),
        *(["--config", str(toml)] if toml else []),
        *(["--set", *assignments] if assignments else []),
    ]


def resolve_pretraining(
    preset: str,
    recipe: str | None,
    toml: Path | None,
    assignments: Sequence[str],
    begun: PretrainConfig | None = None,
) -> PretrainConfig:
    """Return the settings of a pre-training; a preset's warm-up is cut to a tenth of a short one.

    A warm-up that was set is kept, or refused. A run that was begun keeps its own, also if it is
    made longer.
    """
    require(preset in PRESETS, f"unknown preset {preset!r}{did_you_mean(preset, PRESETS)}")
    settings = RECIPES[recipe][preset] if recipe else PRESETS[preset]
    given = {word.partition("=")[0].strip() for word in assignments}
    if toml is not None:
        values = read_toml(toml)
        settings = override_values(settings, values, toml)
        given.update(values)
    settings = override(settings, assignments)
    if settings.train.init_from:
        settings = _take_sizes(settings, given, begun)
        if not begun and "optimizer.learning_rate" not in given:
            from electra.terminal.printing import print_note

            print_note(
                f"optimizer.learning_rate={settings.optimizer.learning_rate:g} is {preset}'s for a "
                "run from scratch; less of what was learnt is lost with a smaller one, such as a "
                "sixth (docs/DOMAIN.md)"
            )
    if begun and "optimizer.warmup_steps" not in given:
        settings = override(settings, [f"optimizer.warmup_steps={begun.optimizer.warmup_steps}"])
    warmup_steps, tenth = settings.optimizer.warmup_steps, settings.shortest_schedule // 10
    if warmup_steps > tenth and not begun and "optimizer.warmup_steps" not in given:
        from electra.terminal.printing import print_note

        print_note(
            f"optimizer.warmup_steps={tenth}, a tenth of the schedule: {preset}'s {warmup_steps:,} "
            "are for a longer one"
        )
        settings = override(settings, [f"optimizer.warmup_steps={tenth}"])
    require_schedule(settings)
    return settings


def _take_sizes(
    settings: PretrainConfig, given: set[str], begun: PretrainConfig | None
) -> PretrainConfig:
    """Return the settings with what was not given taken from train.init_from.

    A run that was begun keeps what it took: the folder need not be there any more.
    """
    if begun is None:
        from electra.checkpoints.folder import read_start
        from electra.pretraining.init_from import fit_to_start

        return fit_to_start(settings, read_start(Path(settings.train.init_from)), given)
    taken = {
        f"{section}.{name}": value
        for section in ("model", "generator")
        for name, value in to_dict(begun)[section].items()
        if value is not None
        and (name not in NOT_SIZES if section == "model" else name in TAKEN_BY_GENERATOR)
    }
    taken["train.initial_weights"] = begun.train.initial_weights
    return override(
        settings, [f"{name}={value}" for name, value in taken.items() if name not in given]
    )


def refuse_existing(out: Path) -> None:
    """Refuse to write where something is, or to a URL, before any work is done."""
    refuse_url(out)
    require(not out.exists(), f"{out} exists already; remove it or choose another --out")


def refuse_folder_in_the_way(out: Path) -> None:
    """Refuse to write a file whose temporary name is that of a folder, or to a URL."""
    refuse_url(out)
    incomplete = out.with_name(f"{out.name}.incomplete")
    require(
        not incomplete.is_dir(),
        f"{incomplete} is a folder in the way of {out}; move it or choose another --out",
    )


def refuse_url(out: Path) -> None:
    """Refuse to write to a URL, of which `Path` would make a folder of this machine."""
    require(
        not is_url(out),
        f"{out} is a URL, and only shards are written to one: choose a path of this machine, "
        "and copy it",
    )


def print_dry_run(settings: Any, action: str) -> None:
    """Print what a verb would do, with its settings where it has some."""
    from electra.terminal.printing import print_plan

    print_plan(dict(flatten(to_dict(settings))) if settings is not None else {}, action)
