"""What a suite will do: the runs of every row, seed and fraction, with steps for the budget."""

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra.checkpoints.folder import read_run_config, read_start
from electra.config import FinetuneConfig, PretrainConfig, require_schedule
from electra.errors import UserError, did_you_mean, require
from electra.files import read_object, write_json
from electra.method.flops import count_run, count_true
from electra.method.registry import sketch_objective
from electra.presets import PRESETS, RECIPES, finetune_preset
from electra.pretraining.continuation import MAY_CHANGE
from electra.pretraining.init_from import WARMUP_SHARE, fit_to_start
from electra.pretraining.plan import time_run
from electra.pretraining.start import build_model, fit_to_shards
from electra.processes import usable_cores
from electra.reproduce.suite import MOST_STEPS, Row, Suite
from electra.settings import flatten, override, setting_name, to_dict
from electra.shards.store import Shards, open_shards
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import choose_device, prepare_machine

PROBE_SECONDS = 10.0
MOST_ROUNDS = 20
"""Of a search that could go back and forth between two neighbouring numbers of steps."""
SUITE = "suite.json"
"""Name of the file in the folder of all runs."""


class PlannedRun(NamedTuple):
    """One pre-training, and the fine-tunings that score it."""

    name: str
    """Its folder in the folder of the suite's runs."""
    row: Row
    seed: int
    fraction: float
    config: PretrainConfig
    flops: dict[str, float]
    """Operations of the whole run: "true" and "paper"."""
    trunk: str = ""
    """The run whose stable part this run shares; empty: it starts by itself."""

    @property
    def own_flops(self) -> float:
        """True FLOPs that no other run of the plan has spent."""
        if not self.trunk:
            return self.flops["true"]
        return self.flops["true"] * self.config.optimizer.decay_fraction


Cost = Callable[[str, PretrainConfig], float]
"""Mean cost of a step of a row with these settings, in the unit of the budget."""
Unit = tuple[PlannedRun, ...]
"""The runs of a row and seed, which one process computes one after the other; a trunk is first."""


class Plan(NamedTuple):
    """All that a suite will do."""

    units: tuple[Unit, ...]
    """Seed by seed, so that a suite that is stopped early has compared all rows."""
    step_seconds: Mapping[str, float]
    """Seconds of a step of each row, as timed."""
    shards: str
    """Digest of the shards."""

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs, unit by unit."""
        return [run for unit in self.units for run in unit]

    def without(self, names: Container[str]) -> "Plan":
        """Return the plan without the runs of these names, but with the trunks of those left."""
        units = []
        for unit in self.units:
            trunks = {run.trunk for run in unit if run.name not in names}
            units.append(tuple(r for r in unit if r.name not in names or r.name in trunks))
        return self._replace(units=tuple(unit for unit in units if unit))


def open_plan(suite: Suite, shards_folder: Path, runs: Path, jobs: int) -> Plan:
    """Return the runs of a suite, in a folder that is new or was begun for the same comparison.

    The folder's suite.json (`keep_plan`) holds what must not change between the commands that fill
    it: shards, settings of fine-tuning, and the timed seconds of a step. It says nothing about rows
    and tasks of which there is no run.

    Args:
        suite: The suite.
        shards_folder: Shards that `electra prepare` wrote.
        runs: The folder of all runs.
        jobs: Runs that are computed at a time. On a CPU they share its cores.

    Raises:
        UserError: Settings or budget do not fit together, or the folder holds other runs.
    """
    shards = open_shards(shards_folder, verify=False)
    begun = _read_begun(runs)
    finetune = suite.finetune_settings
    require(
        begun.get("shards", shards.digest) == shards.digest,
        f"{runs} was begun with other shards; choose another --runs",
    )
    finetuned = begun.get("finetune", {})  # of tasks that this command may leave out
    changed = [task for task in finetune if finetuned.get(task, finetune[task]) != finetune[task]]
    for task in changed:
        require(
            not find_finetunings(runs, task),
            f"{runs} has fine-tunings of {task} with {' '.join(finetuned[task]) or 'no settings'}, "
            f"not {' '.join(finetune[task]) or 'no settings'}; choose another --runs, or remove "
            f"{runs}/*/finetune-{task}*",
        )
    timed = {
        name: seconds
        for name, seconds in begun.get("step_seconds", {}).items()
        if any(runs.glob(f"{_slug(name)}-*-seed-*"))
    }
    plan = make_plan(suite, shards, jobs, timed)
    for run in plan.runs:
        if (runs / run.name).exists():
            require_same(str(runs / run.name), read_run_config(runs / run.name), run.config)
    return plan


def keep_plan(suite: Suite, plan: Plan, runs: Path) -> None:
    """Write the suite.json of the folder of all runs, which `open_plan` reads.

    Args:
        suite: The suite.
        plan: Its plan, from `open_plan`.
        runs: The folder of all runs; exists.
    """
    begun = _read_begun(runs)
    write_json(
        runs / SUITE,
        {
            "shards": plan.shards,
            "finetune": begun.get("finetune", {}) | suite.finetune_settings,
            "step_seconds": begun.get("step_seconds", {}) | plan.step_seconds,
        },
    )


def find_finetunings(runs: Path, task: str) -> list[Path]:
    """Return the folders of all fine-tunings on a task that were begun, finished or not."""
    names = (f"finetune-{task}", f"finetune-{task}.incomplete")
    return sorted(path for name in names for path in runs.glob(f"*/{name}"))


def _read_begun(runs: Path) -> dict[str, Any]:
    """Return the content of suite.json; nothing if the folder holds no run."""
    path = runs / SUITE
    return read_object(path) if path.exists() and any(runs.glob("*-seed-*")) else {}


def make_plan(
    suite: Suite, shards: Shards, jobs: int = 1, step_seconds: Mapping[str, float] | None = None
) -> Plan:
    """Return the runs of a suite.

    A run of a smaller fraction of the budget shares the stable part of the longest run of its row
    and seed if its schedule has one (optimizer.decay_fraction < 1). Otherwise each is a run of its
    own, with a schedule of its own.

    Args:
        suite: The suite.
        shards: The shards.
        jobs: Runs that are computed at a time.
        step_seconds: Seconds of a step by row, as far as they were timed before.

    Raises:
        UserError: Settings or budget do not fit together.
    """
    configs = {row.name: _configure(suite, row, shards, jobs) for row in suite.rows}
    step_seconds = dict(step_seconds or {})
    if suite.equal == "seconds":
        step_seconds |= {
            name: probe_step(config) for name, config in configs.items() if name not in step_seconds
        }
    cost = _cost_of_a_step(suite, step_seconds)
    in_preset = {name: cost(name, each) * each.train.steps for name, each in configs.items()}
    units = []
    for seed in range(suite.seeds):
        for row in suite.rows:
            config = override(configs[row.name], [f"train.seed={seed}"])
            budget = suite.budget
            if budget is None:
                budget = max(in_preset[name] for name in _find_payers(suite, row))
            units.append(_plan_unit(suite, row, seed, config, budget, cost))
    row_of: dict[str, str] = {}
    for run in (run for unit in units for run in unit):
        other = row_of.setdefault(run.name, run.row.name)
        require(
            other == run.row.name,
            f"rows {other!r} and {run.row.name!r} differ in punctuation only, and their runs would "
            f"have one name, {run.name}",
        )
    return Plan(tuple(units), step_seconds, shards.digest)


def _find_payers(suite: Suite, row: Row) -> list[str]:
    """Return the rows the costliest of whose presets is a row's budget."""
    if suite.budget_of:
        return [suite.budget_of]
    reference = row.against or suite.reference
    return [each.name for each in suite.rows if (each.against or suite.reference) == reference]


def require_same(place: str, begun: PretrainConfig, planned: PretrainConfig) -> None:
    """Refuse a run that was begun with other settings than those of the plan.

    Raises:
        UserError: A setting differs that is neither how the run is computed nor what it writes.
    """
    before, after = (dict(flatten(to_dict(each))) for each in (begun, planned))
    different = [
        name
        for name in after
        if after[name] != before[name] and (name not in MAY_CHANGE or name == "train.steps")
    ]
    named = ", ".join(f"{name}={before[name]}, not {after[name]}" for name in different)
    require(not different, f"{place} was begun with {named}; choose another folder")


def _configure(suite: Suite, row: Row, shards: Shards, jobs: int) -> PretrainConfig:
    preset = row.preset or suite.preset
    place = f"{row.name}: " if row.preset else ""
    given = {setting_name(setting) for setting in (*suite.set, *row.set)}
    require(preset in PRESETS, f"{place}unknown preset {preset!r}{did_you_mean(preset, PRESETS)}")
    try:
        config = override(RECIPES[suite.recipe][preset], suite.set)
    except UserError as error:
        raise UserError(f"settings of all rows: {error}") from None
    try:
        config = override(config, row.set)
        if config.train.init_from:
            config = fit_to_start(config, read_start(Path(config.train.init_from)), given)
        config = fit_to_shards(config, shards)
    except UserError as error:
        raise UserError(f"{row.name}: {error}") from None
    # Checked before the pre-training that precedes the fine-tunings.
    for task in suite.tasks:
        try:
            finetune_config(suite, config, task)
        except UserError as error:
            raise UserError(f"fine-tuning of {task}: {error}") from None
    require(
        not given & {"train.seed", "train.steps"},
        f"{row.name}: train.seed and train.steps follow from seeds and budget; leave them away",
    )
    if config.train.threads == 0 and jobs > 1 and choose_device(config.train.device).type == "cpu":
        config = override(config, [f"train.threads={max(1, usable_cores() // jobs)}"])
    return config


def finetune_config(suite: Suite, config: PretrainConfig, task: str) -> FinetuneConfig:
    """Return the settings of the fine-tuning of a run on a task.

    Raises:
        UserError: A setting of the suite is wrong.
    """
    # A collapsed seed counts, so that all rows have the same seeds.
    settings = ["reseeds=0", f"threads={config.train.threads}", *suite.finetune_settings[task]]
    return override(finetune_preset(config.model), settings)


def probe_step(config: PretrainConfig) -> float:
    """Return the mean time of a step of a run, over the stages of its objective, seconds."""
    machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
    frequencies_V = torch.ones(config.model.vocab_size)  # they do not change the time
    tokenizer = make_tokenizer(config.model.vocab_size)
    model = build_model(config, tokenizer, machine, frequencies_V)
    return time_run(model, config, machine, PROBE_SECONDS) / config.train.steps


def _cost_of_a_step(suite: Suite, step_seconds: Mapping[str, float]) -> Cost:
    def cost(name: str, config: PretrainConfig) -> float:
        if suite.equal == "steps":
            return 1.0
        if suite.equal == "seconds":
            return step_seconds[name]
        length = config.examples.sequence_length
        return count_true(sketch_objective(config), length) * config.train.batch_size * length

    return cost


def _plan_unit(
    suite: Suite, row: Row, seed: int, config: PretrainConfig, budget: float, cost: Cost
) -> Unit:
    given = {setting_name(setting) for setting in (*suite.set, *row.set)}
    fractions = sorted(row.fractions or suite.fractions, reverse=True)
    decay = config.optimizer.decay_fraction
    is_joint = config.method.scheme == "joint" and not config.generator.warmup_steps
    is_shared = decay < 1 and is_joint and len(fractions) > 1
    steps = [_find_steps(row, config, given, fraction * budget, cost) for fraction in fractions]
    shortest = steps[-1]
    runs: list[PlannedRun] = []
    for fraction, own in zip(fractions, steps, strict=True):
        # Runs that share a part have one warm-up, that of the shortest.
        schedule = _lengthen(config, given, shortest if is_shared else own).shortest_schedule
        warmup = min(config.optimizer.warmup_steps, schedule // 10)
        # The last checkpoint of a shared part is kept, whatever is given.
        stable = max(1, int((1 - decay) * shortest)) if is_shared else max(1, own // 8)
        every = stable // -(-stable // config.train.save_every)
        settings = [
            f"train.save_every={every}",
            f"train.evaluate_every={max(1, own // 8)}",
            f"optimizer.warmup_steps={warmup}",
            *([f"train.keep_every={stable // every}"] if is_shared else []),
        ]
        free = given - {"train.save_every", "train.keep_every"} if is_shared else given
        chosen = [setting for setting in settings if setting_name(setting) not in free]
        planned = override(_lengthen(config, given, own), chosen)
        require_schedule(planned)
        runs.append(
            PlannedRun(
                f"{_slug(row.name)}-{fraction:g}-seed-{seed}",
                row,
                seed,
                fraction,
                planned,
                count_run(sketch_objective(planned), planned),
                runs[0].name if is_shared and runs else "",
            )
        )
    return tuple(runs)


def _lengthen(config: PretrainConfig, given: Container[str], steps: int) -> PretrainConfig:
    """Return the settings of a run of a number of steps.

    The warm-up of a generator that train.init_from does not have follows from them, as
    `fit_to_start` has it.
    """
    settings = [f"train.steps={steps}"]
    if config.generator.warmup_steps and "generator.warmup_steps" not in given:
        settings.append(f"generator.warmup_steps={steps // WARMUP_SHARE}")
    return override(config, settings)


def _find_steps(
    row: Row, config: PretrainConfig, given: Container[str], budget: float, cost: Cost
) -> int:
    """Return the steps that spend a budget.

    Where a part of the run with a fixed number of steps costs less, such as a generator's warm-up,
    the mean cost of a step depends on the number of steps.

    Raises:
        UserError: The budget is less than a step, or more than any run.
    """
    step = cost(row.name, config)
    require(
        budget >= step,
        f"{row.name}: its share of the budget, {budget:g}, is less than a step, {step:.3g}",
    )
    require(
        budget < step * MOST_STEPS,
        f"{row.name}: a step costs {step:.3g}; a budget of {budget:g} is {MOST_STEPS:,} or more",
    )
    steps = 0
    again = max(1, round(budget / step))
    for _ in range(MOST_ROUNDS):
        if again == steps:
            break
        steps = again
        again = max(1, round(budget / cost(row.name, _lengthen(config, given, steps))))
    return again


def _slug(name: str) -> str:
    words = "".join(char if char.isalnum() else " " for char in name.lower()).split()
    return "-".join(words)
