"""The plan of a suite: the runs of every row, seed and fraction, with steps for the budget.

What is finished of it is what lies on disk: runs with results.json, and their fine-tunings.
"""

import hashlib
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import torch

from electra.assignments import differences, override, setting_name
from electra.checkpoints import results_files
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.metrics import read_metrics
from electra.checkpoints.saved import SavedModel, SavedNetwork
from electra.errors import UserError, require, require_choice, tell_place
from electra.files import read_object, take_turns, write_facts
from electra.finetuning.grid import combine
from electra.finetuning.start import fit_to_start as fit_finetuning
from electra.method.flops import FORWARD_AND_BACKWARD, count_run, count_true
from electra.presets import PRESETS, RECIPES, finetune_preset
from electra.pretraining.continuation import MAY_CHANGE
from electra.pretraining.init_from import WARMUP_SHARE, fit_to_start
from electra.pretraining.networks import sketch_objective
from electra.pretraining.plan import time_run
from electra.pretraining.start import build_model, fit_to_shards
from electra.processes import usable_cores
from electra.reproduce.suite import MOST_STEPS, PAIRS, Row, Suite
from electra.settings import Within
from electra.shards.store import Shards, open_shards
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Task
from electra.tasks.registry import OWN, TASKS
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.config import PretrainConfig, longest_warmup, require_schedule
from electra.training.machine import choose_device, prepare_machine

PROBE_SECONDS, ESTIMATE_SECONDS = 10.0, 2.0
"""Length of a timing on which the number of steps depends, and of one that is only shown."""
MOST_ROUNDS = 20
"""Most rounds of a search that could alternate between two neighbouring numbers of steps."""
SAMPLE = 200
"""Training examples of a task whose lengths are measured."""
SECONDS_BETWEEN_SHARES = 1.0
"""Between two writings of how much of a fine-tuning is done."""
SUITE = "suite.json"
"""Name of the file in the folder of all runs."""


class Begun(TypedDict, total=False):
    """suite.json: what must not change between the commands that fill the folder of all runs."""

    shards: str
    finetune: dict[str, list[str]]
    """Settings of fine-tuning by task."""
    rows: dict[str, list[str]]
    """Further ones by row."""
    step_seconds: dict[str, Annotated[float, Within("(0, inf)")]]
    """Seconds of a step of each row that was timed."""


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
    twin: str = ""
    """The run of another row that is the same pre-training, and is copied; empty: there is none."""


Unit = tuple[PlannedRun, ...]
"""The runs of a row and seed, which one process computes one after the other; a trunk is first,
and those of rows with the same pre-training follow."""


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
        """Return the plan without these runs, but with those that the remaining ones start from."""
        units = []
        for unit in self.units:
            left = [run for run in unit if run.name not in names]
            needed = {run.trunk for run in left} | {run.twin for run in left}
            needed |= {run.trunk for run in unit if run.name in needed}
            units.append(tuple(r for r in unit if r in left or r.name in needed))
        return self._replace(units=tuple(unit for unit in units if unit))


def open_plan(suite: Suite, shards_folder: Path, runs: Path, jobs: int) -> Plan:
    """Return the runs of a suite, in a folder that is new or was begun for the same comparison.

    The folder's suite.json (`keep_plan`) holds what must not change between the commands that fill
    it: shards, settings of fine-tuning, and the timed seconds of a step. Its entries for rows and
    tasks without a run may change.
    """
    shards = open_shards(shards_folder, verify=False)
    begun = _read_begun(runs)
    if begun.get("shards", shards.digest) != shards.digest:
        raise UserError(f"{runs} was started with other shards; choose another --runs")
    before = begun.get("finetune", {})  # of tasks that this command may leave out
    for task, settings in suite.finetune_settings.items():
        was, now = (" ".join(each) or "no settings" for each in (before.get(task, ()), settings))
        require(
            before.get(task, settings) == settings or not any(find_finetunings(runs, task)),
            f"{runs} has fine-tunings of {task} with {was}, not {now}; choose another --runs, or "
            f"remove {runs}/*/finetune-{task}*",
        )
    timed = {
        name: seconds
        for name, seconds in begun.get("step_seconds", {}).items()
        if any(runs.glob(f"{_slug(name)}-*-seed-*"))
    }
    plan = make_plan(suite, shards, jobs, timed)
    for run in plan.runs:
        place = runs / run.name
        if place.exists():
            require_same(str(place), read_run_config(place), run.config)
        settings = begun.get("rows", {}).get(run.row.name, [])
        require(
            settings == [*run.row.finetune] or not any(place.glob("finetune-*")),
            f"{place} has fine-tunings with {' '.join(settings) or 'no settings'} of the row; "
            "choose another --runs",
        )
    return plan


def keep_plan(suite: Suite, plan: Plan, runs: Path) -> None:
    """Write the suite.json of the folder of all runs, which exists; `open_plan` reads it."""
    with take_turns(runs / f"{SUITE}.lock"):  # tasks of a queue begin at once
        begun = _read_begun(runs)
        write_facts(
            runs / SUITE,
            {
                "shards": plan.shards,
                "finetune": begun.get("finetune", {}) | suite.finetune_settings,
                "rows": begun.get("rows", {}) | {row.name: [*row.finetune] for row in suite.rows},
                "step_seconds": begun.get("step_seconds", {}) | plan.step_seconds,
            },
        )


def find_finetunings(runs: Path, task: str) -> Iterator[Path]:
    """Yield the folders of all fine-tunings on a task that have settings, unfinished ones first.

    If another process finishes one meanwhile, its new name also appears.
    """
    for name in (f"finetune-{task}.incomplete", f"finetune-{task}"):
        yield from (path.parent for path in sorted(runs.glob(f"*/{name}/config.json")))


def _read_begun(runs: Path) -> dict[str, Any]:
    """Return the content of suite.json; nothing if the folder holds no run."""
    path = runs / SUITE
    return read_object(path, Begun) if path.exists() and any(runs.glob("*-seed-*")) else {}


def require_same(place: str, begun: PretrainConfig, planned: PretrainConfig) -> None:
    """Refuse a run that was begun with other settings than those of the plan."""
    named = ", ".join(
        f"{name}={before}, not {after}"
        for name, (before, after) in differences(begun, planned).items()
        if name not in MAY_CHANGE or name == "train.steps"
    )
    require(not named, f"{place} was started with {named}; choose another folder")


def finetune_configs(
    suite: Suite, row: Row, config: PretrainConfig, task: str
) -> dict[str, FinetuneConfig]:
    """Return the settings of a run's fine-tunings on a task, by combination of the suite's grid."""
    if task == PAIRS:
        return {}
    # A collapsed seed counts, so that all rows have the same seeds.
    fixed, own = ["reseeds=0", f"threads={config.train.threads}"], suite.fixed_settings(task, row)
    given = {setting_name(setting) for setting in (*own, *suite.grid)}
    require(
        not {"reseeds", "threads"} & given,
        "reseeds is 0 in a suite, and threads is train.threads of the pre-training; leave them out",
    )
    if task not in TASKS and "own.name" not in given:
        fixed.append(f"own.name={task}")
    return combine(finetune_preset(config.model), [*fixed, *own], suite.grid)


def known_name(task: str) -> str:
    """Return the name in TASKS of a suite's task; your own may have any other name."""
    return task if task in TASKS else OWN


def probe_step(config: PretrainConfig, probe_seconds: float = PROBE_SECONDS) -> float:
    """Return the mean time of a step of a run, over the stages of its objective, seconds."""
    machine = prepare_machine(config.train.device, config.train.precision, config.train.threads)
    frequencies_V = torch.ones(config.model.vocab_size)  # they do not change the time
    tokenizer = make_tokenizer(config.model.vocab_size)
    model = build_model(config, tokenizer, machine, frequencies_V)
    return time_run(model, config, machine, probe_seconds) / config.train.steps


def make_plan(
    suite: Suite, shards: Shards, jobs: int = 1, step_seconds: Mapping[str, float] | None = None
) -> Plan:
    """Return the runs of a suite.

    A run of a smaller fraction of the budget shares the stable part of the longest run of its row
    and seed if its schedule has one (optimizer.decay_fraction < 1). Otherwise each is a run of its
    own, with a schedule of its own. Rows that were timed before have their `step_seconds`.
    """
    rows = {row.name: _PlannedRow(suite, row, shards, jobs) for row in suite.rows}
    timed = dict(step_seconds or {})
    if suite.equal == "seconds":
        timed |= {name: probe_step(row.config) for name, row in rows.items() if name not in timed}
        for name, row in rows.items():
            row.step_seconds = timed[name]
    budgets = {name: suite.budget or _find_budget(suite, name, rows) for name in rows}
    units = [
        row.plan(seed, budgets[name]) for seed in range(suite.seeds) for name, row in rows.items()
    ]
    units = share_pretrainings(units)
    row_of: dict[str, str] = {}
    for run in (run for unit in units for run in unit):
        other = row_of.setdefault(run.name, run.row.name)
        require(
            other == run.row.name,
            f"rows {other!r} and {run.row.name!r} differ in punctuation only, and their runs would "
            f"have one name, {run.name}",
        )
    return Plan(tuple(units), timed, shards.digest)


def share_pretrainings(units: Iterable[Unit]) -> list[Unit]:
    """Return units, merged if they share a pre-training, which belongs to the first row's runs."""
    shared: dict[tuple[PretrainConfig, ...], Unit] = {}
    for unit in units:
        configs = tuple(run.config for run in unit)
        pairs = zip(unit, shared.get(configs, ()), strict=False)
        twins = tuple(run._replace(trunk="", twin=own.name) for run, own in pairs)
        shared[configs] = shared.get(configs, ()) + (twins or unit)
    return list(shared.values())


def _find_budget(suite: Suite, name: str, rows: Mapping[str, "_PlannedRow"]) -> float:
    """Return what the costliest preset spends, of the rows that a row is compared with."""
    references = suite.references
    payers = (
        [suite.budget_of]
        if suite.budget_of
        else [other for other in rows if references[other] == references[name]]
    )
    return max(
        rows[other].cost(rows[other].config) * rows[other].config.train.steps for other in payers
    )


class _PlannedRow:
    """A row of a suite: its settings before the steps follow from the budget."""

    def __init__(self, suite: Suite, row: Row, shards: Shards, jobs: int):
        self.suite, self.row = suite, row
        self.given = {setting_name(setting) for setting in (*suite.set, *row.set)}
        self.step_seconds = 0.0
        require(
            not self.given & {"train.seed", "train.steps"},
            f"{row.name}: train.seed and train.steps follow from seeds and budget; leave them out",
        )
        self.config = self._configure(shards)
        # Checked before the pre-training that precedes the fine-tunings.
        for task in suite.tasks:
            with tell_place(f"fine-tuning of {task}"):
                finetune_configs(suite, row, self.config, task)
        train = self.config.train
        if train.threads == 0 and jobs > 1 and choose_device(train.device).type == "cpu":
            self.config = override(self.config, [f"train.threads={max(1, usable_cores() // jobs)}"])

    def _configure(self, shards: Shards) -> PretrainConfig:
        suite, row = self.suite, self.row
        preset = row.preset or suite.preset
        require_choice(f"preset of {row.name}" if row.preset else "preset", preset, PRESETS)
        with tell_place("settings of all rows"):
            config = override(RECIPES[suite.recipe][preset], suite.set)
        with tell_place(row.name):
            config = override(config, row.set)
            if config.train.init_from:
                start = read_pretrained(Path(config.train.init_from))
                config = fit_to_start(config, start, self.given)
            return fit_to_shards(config, shards)

    def cost(self, config: PretrainConfig) -> float:
        """Return the mean cost of a step with these settings, in the unit of the budget."""
        if self.suite.equal == "steps":
            return 1.0
        if self.suite.equal == "seconds":
            return self.step_seconds
        length = config.examples.sequence_length
        return count_true(sketch_objective(config), length) * config.train.batch_size * length

    def plan(self, seed: int, budget: float) -> Unit:
        """Return the runs of a seed, the longest first."""
        fractions = sorted(self.suite.fractions_of(self.row), reverse=True)
        config = override(self.config, [f"train.seed={seed}"])
        generator = config.generator  # what it does may depend on the length of the run
        is_even = not generator.warmup_steps and not generator.temperature_decay
        is_stable = config.optimizer.decay_fraction < 1 and config.method.scheme == "joint"
        is_shared = is_stable and is_even and len(fractions) > 1
        steps = [self._find_steps(fraction * budget) for fraction in fractions]
        runs: list[PlannedRun] = []
        for fraction, own in zip(fractions, steps, strict=True):
            planned = self._schedule(config, own, steps[-1] if is_shared else 0)
            require_schedule(planned)
            runs.append(
                PlannedRun(
                    f"{_slug(self.row.name)}-{fraction:g}-seed-{seed}",
                    self.row,
                    seed,
                    fraction,
                    planned,
                    count_run(sketch_objective(planned), *planned.amount),
                    runs[0].name if is_shared and runs else "",
                )
            )
        return tuple(runs)

    def _schedule(self, config: PretrainConfig, own: int, shortest: int) -> PretrainConfig:
        """Return the settings of a run of `own` steps; `shortest`: of runs that share a part."""
        # Runs that share a part have one warm-up, that of the shortest.
        schedule = self._lengthen(config, shortest or own).shortest_schedule
        warmup = min(config.optimizer.warmup_steps, longest_warmup(schedule))
        # The last checkpoint of a shared part is kept, whatever is given.
        stable = max(1, own // 8)
        if shortest:
            stable = max(1, int((1 - config.optimizer.decay_fraction) * shortest))
        every = stable // -(-stable // config.train.save_every)
        settings = {
            "train.save_every": every,
            "train.evaluate_every": max(1, own // 8),
            "optimizer.warmup_steps": warmup,
        }
        given = self.given
        if shortest:
            settings["train.keep_every"] = stable // every
            given = given - {"train.save_every", "train.keep_every"}
        chosen = [f"{name}={value}" for name, value in settings.items() if name not in given]
        return override(self._lengthen(config, own), chosen)

    def _lengthen(self, config: PretrainConfig, steps: int) -> PretrainConfig:
        """Return the settings with other steps, and the generator's warm-up of `fit_to_start`."""
        settings = [f"train.steps={steps}"]
        if config.generator.warmup_steps and "generator.warmup_steps" not in self.given:
            settings.append(f"generator.warmup_steps={steps // WARMUP_SHARE}")
        return override(config, settings)

    def _find_steps(self, budget: float) -> int:
        """Return the steps that spend a budget, on whose number a step's mean cost depends."""
        name, step = self.row.name, self.cost(self.config)
        require(
            budget >= step,
            f"{name}: its share of the budget, {budget:g}, is less than a step, {step:.3g}",
        )
        require(
            budget < step * MOST_STEPS,
            f"{name}: a step costs {step:.3g}; a budget of {budget:g} is {MOST_STEPS:,} steps "
            "or more",
        )
        steps, again = 0, max(1, round(budget / step))
        for _ in range(MOST_ROUNDS):
            if again == steps:
                break
            steps = again
            again = max(1, round(budget / self.cost(self._lengthen(self.config, steps))))
        return again


def _slug(name: str) -> str:
    words = "".join(char if char.isalnum() else " " for char in name.lower()).split()
    return "-".join(words)


# What is left of a plan, and how long it takes on this machine


class Work(NamedTuple):
    """Pre-training and fine-tuning, in true FLOPs or in seconds."""

    pretraining: float
    finetuning: float


Finetunings = Mapping[tuple[str, str], float]
"""True FLOPs of a fine-tuning, by the name of the row and the task."""


class Setup(NamedTuple):
    """A suite, and where its shards, tasks and runs lie."""

    suite: Suite
    shards: Path
    data: Mapping[str, Path]
    """The folder of each task."""
    runs: Path
    """The folder of all runs."""

    def finetuning(self, run: PlannedRun, task: str) -> Path:
        """Return the folder of a fine-tuning of a run."""
        return self.runs / run.name / f"finetune-{task}"

    @contextmanager
    def telling(self, run: PlannedRun, task: str) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yield a function that writes a fine-tuning's progress to a file, for `find_work`."""
        path, told = self.share_file(run, task), 0.0

        def tell(record: dict[str, Any]) -> None:
            nonlocal told
            if record["part"] == "train" and time.monotonic() - told >= SECONDS_BETWEEN_SHARES:
                told = time.monotonic()
                steps = record.get("run", 0) * record["steps"] + record["step"]
                path.write_text(f"{steps / record['steps'] / self.suite.num_combinations}")

        try:
            yield tell
        finally:
            path.unlink(missing_ok=True)

    def share_file(self, run: PlannedRun, task: str) -> Path:
        """Return where the share of a running fine-tuning is kept."""
        return self.runs / run.name / f"{task}.share"

    def find_share(self, run: PlannedRun, task: str) -> float:
        """Return the share of a fine-tuning that is done."""
        try:
            return float(self.share_file(run, task).read_text())
        except (OSError, ValueError):  # none, or just being written
            return 0.0

    def is_pretrained(self, run: PlannedRun) -> bool:
        """Return whether the pre-training of a run is finished."""
        return (self.runs / run.name / "results.json").exists()

    def is_done(self, run: PlannedRun) -> bool:
        """Return whether a run and all its fine-tunings are finished."""
        return self.is_pretrained(run) and not self.unfinished_tasks(run)

    def unfinished_tasks(self, run: PlannedRun) -> list[str]:
        """Return the tasks on which a run is not fine-tuned yet."""
        return [task for task in self.suite.tasks if not self.finetuning(run, task).exists()]


def digest_files(digests: Iterable[str]) -> str:
    """Return a digest of files from the sha256 of each, whatever their folder."""
    return hashlib.sha256(" ".join(sorted(digests)).encode()).hexdigest()


def find_digest(finetuning: Path) -> str:
    """Return the digest of the files that a fine-tuning reads."""
    return digest_files(
        read_object(finetuning / "config.json", results_files.Begun)["files"].values()
    )


def count_finetunings(
    setup: Setup, plan: Plan, tasks: Mapping[str, Task]
) -> dict[tuple[str, str], float]:
    """Return the true FLOPs of the training on each task; evaluations and PAIRS are not counted.

    The mean length of a task's rows is that of a sample. Settings that do not fit a task are
    refused here, before the pre-training.
    """
    tokenizer = open_shards(setup.shards, verify=False).tokenizer
    configs = {run.row: run.config for run in plan.runs}
    encoders = {row: sketch_objective(config).kept for row, config in configs.items()}
    counts: dict[tuple[str, str], float] = {}
    counts |= {(row.name, PAIRS): 0.0 for row in encoders}
    for task, question in tasks.items():
        train = question.training_examples
        sample = train[:: -(-len(train) // SAMPLE)]
        for row, encoder in encoders.items():
            longest, name = configs[row].examples.sequence_length, row.name
            start = SavedModel(SavedNetwork("", encoder.config, ({},)), tokenizer, longest, name)
            counts[name, task] = 0.0
            for config in finetune_configs(setup.suite, row, configs[row], task).values():
                config = fit_finetuning(config, start, question, from_scratch=False)
                rows = question.family.encode(sample, tokenizer, config.sequence_length)
                lengths = rows.lengths.float()
                share = config.train_examples / len(question.examples["train"]) or 1
                examples = share * len(train) * config.epochs
                tokens = examples * lengths.sum().item() / len(sample)
                passes = 1 if config.features.layers else FORWARD_AND_BACKWARD
                forward = sum(encoder.count_flops(round(lengths.mean().item())).values())
                counts[name, task] += passes * forward * tokens
    return counts


def find_work(setup: Setup, run: PlannedRun, finetunings: Finetunings) -> Work:
    """Return the true FLOPs that are left of a run, from the files that it writes.

    If a run shares a part with another, only its own part counts.
    """
    pretraining = 0.0
    if not setup.is_pretrained(run) and not run.twin:
        steps = [each["step"] for each in read_metrics(setup.runs / run.name / "metrics.jsonl")]
        left = run.flops["true"] * (1 - max(steps, default=0) / run.config.train.steps)
        share = run.config.optimizer.decay_fraction if run.trunk else 1.0
        pretraining = min(run.flops["true"] * share, left)
    shares = {task: 1 - setup.find_share(run, task) for task in setup.unfinished_tasks(run)}
    finetuning = sum(left * finetunings[run.row.name, task] for task, left in shares.items())
    return Work(pretraining, finetuning)


def estimate_seconds(plan: Plan, left: Mapping[str, Work]) -> Work:
    """Return the time of the remaining work on this machine, one run at a time, seconds.

    The row of the run with the most work is timed, and every FLOP is assumed to take as long as
    one of its pre-training. Evaluations are left out.
    """
    total = Work(*map(sum, zip(*left.values(), strict=True)))
    run = max((run for run in plan.runs if run.name in left), key=lambda run: sum(left[run.name]))
    step = plan.step_seconds.get(run.row.name) or probe_step(run.config, ESTIMATE_SECONDS)
    seconds = step * run.config.train.steps / run.flops["true"]
    return Work(seconds * total.pretraining, seconds * total.finetuning)
