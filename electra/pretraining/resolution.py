"""The settings of a run: preset, TOML, --set, and what another model or the run itself determines.

Command line and library resolve settings here. Nothing here imports torch until another model is
read, so that the settings of a run are printed at once.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from electra.assignments import flatten, override, parse_toml, setting_name
from electra.errors import require_choice
from electra.method.config import SIZES_OF_GENERATOR
from electra.presets import PRESETS, RECIPES
from electra.training.config import PretrainConfig, longest_warmup, require_schedule

GENTLER = 6
"""The preset's learning rate divided by that of a continued model: at a higher rate, the model
forgets more of the old text (docs/DOMAIN.md)."""

_SIZES = tuple(f"generator.{name}" for name in SIZES_OF_GENERATOR)

_OF_JUDGES = ("method.disc_weight", "train.evaluate_with")

UNREAD = {
    "method.objective=mlm|causal_lm": (
        *("generator.", "method.sharing", "model.published_heads"),
        *_OF_JUDGES,
    ),
    "method.objective=causal_lm": ("method.mask_prob",),
    "method.objective=replace_mlm|all_tokens_mlm": _OF_JUDGES,
    "method.objective=electric": ("method.shown_at_mask", "train.evaluate_with"),
    "generator.kind=uniform|unigram": ("method.sharing", "method.shown_at_mask", *_SIZES),
    "generator.kind=frozen": _SIZES,
    "generator.num_hidden_layers": ("generator.layers_fraction",),
    "generator.hidden_size": ("generator.hidden_fraction",),
    "train.evaluate_rows=0": ("train.also_evaluate", "train.evaluate_with", "train.evaluate_every"),
}
"""Settings (or prefixes of their names) without effect that no rule refuses, by condition."""


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
    With train.init_from, sizes are those of that model, and the rate is a sixth of the preset's. A
    run that was begun keeps what it determined when it began, also if it is made longer. A warning
    names each setting that the run does not read.

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
    full_rate = settings.optimizer.learning_rate
    given = {setting_name(each) for each in assignments}
    values = dict(flatten(parse_toml(toml))) if toml else {}  # read once: it may be a pipe
    settings = override(settings, assignments, values, toml or Path())
    given.update(values)
    for sentence in tell_unread(settings, given):
        warnings.warn(sentence, stacklevel=3)
    if run is not None and "model.vocab_size" in given:
        warnings.warn("model.vocab_size has no effect: the shards set it", stacklevel=3)
    if run is not None and (run / "config.json").exists():
        from electra.checkpoints.folder import read_run_config
        from electra.pretraining.continuation import settle

        return settle(run, read_run_config(run), settings, given)[0]
    if settings.train.init_from:
        settings = _fit_to_start(settings, full_rate, given, note)
    if settings.generator.kind == "frozen":
        from electra.checkpoints.folder import read_pretrained
        from electra.pretraining.init_from import fit_to_frozen

        frozen = read_pretrained(Path(settings.generator.frozen_run)).masked_lm
        settings = fit_to_frozen(settings, frozen) if frozen else settings  # training refuses None
    if "optimizer.warmup_steps" not in given:
        settings = _shorten_warmup(settings, note)
    require_schedule(settings)
    return settings


def _shorten_warmup(settings: PretrainConfig, note: Callable[[str], None]) -> PretrainConfig:
    """Return settings whose warm-up is at most a tenth of the schedule."""
    longest = longest_warmup(settings.shortest_schedule)
    planned = settings.optimizer.warmup_steps
    if planned <= longest:
        return settings
    note(
        f"shortened optimizer.warmup_steps from the preset's {planned:,} to {longest}, "
        "a tenth of this run's schedule"
    )
    return override(settings, [f"optimizer.warmup_steps={longest}"])


def _fit_to_start(
    settings: PretrainConfig, full_rate: float, given: Collection[str], note: Callable[[str], None]
) -> PretrainConfig:
    """Return the settings with the sizes of train.init_from, and a rate that keeps knowledge."""
    from electra.checkpoints.folder import read_pretrained
    from electra.pretraining.init_from import MADE, find_origin, fit_to_start

    start = read_pretrained(Path(settings.train.init_from))
    settings = _fit_length(settings, start.sequence_length, given, note)
    settings = fit_to_start(settings, start, given)
    if "optimizer.learning_rate" not in given:
        rate = f"optimizer.learning_rate={full_rate / GENTLER:g}"
        settings = override(settings, [rate])
        note(f"{rate}, one sixth of the preset's, so that the model forgets less (docs/DOMAIN.md)")
    method, times = settings.method, full_rate / settings.optimizer.learning_rate
    has_two = (method.mode, method.scheme) == ("paper", "joint") and method.sharing != "all"
    is_made = find_origin(settings, start) in MADE
    if is_made and has_two and times > 1 and "optimizer.generator_rate" not in given:
        # The discriminator would unlearn from the bad samples of a generator that learns slowly.
        rate = f"optimizer.generator_rate={times:.3g}"
        settings = override(settings, [rate])
        note(
            f"{rate}: the generator cannot predict yet, so it uses the full learning rate of "
            f"{full_rate:g}"
        )
    return settings


def _fit_length(
    settings: PretrainConfig, longest: int, given: Collection[str], note: Callable[[str], None]
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


def tell_unread(config: PretrainConfig, given: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each setting, of those that were given, that the run will not read."""
    for when, names in (*UNREAD.items(), *config.model.unread.items()):
        name, value, is_so = config.look_up(when)
        unread = sorted(each for each in given if is_so and each.startswith(names))
        yield from (f"{each} has no effect when {name} is {value}" for each in unread)
    train = config.train
    if train.profile_step >= train.steps:
        step = train.profile_step
        yield f"train.profile_step {step} has no effect: it must be less than train.steps"
