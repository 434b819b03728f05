"""A suite: pre-training runs that are compared at equal compute, described by a TOML file.

The suites of the paper's tables and figures are the files in `suites/`. A suite of your own is the
same kind of file (docs/REPRODUCE.md).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from electra.assignments import parse_toml, parse_value, setting_name
from electra.errors import did_you_mean, require, require_choice, tell_place

SUITES = Path(__file__).parent / "suites"
SUFFIX = ".toml"
PAIRS = "minimal-pairs"
"""The task without training: how often the better of two sentences is the more likely one."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pre-training that is compared, with every seed and at every fraction of the budget."""

    name: str
    set: tuple[str, ...] = ()
    """Settings of pre-training that differ from the suite's, as section.field=value."""
    finetune: tuple[str, ...] = ()
    """Settings of this row's fine-tunings on all tasks, as field=value. Rows that differ in these
    alone have one pre-training."""
    preset: str = ""
    """Preset of this row; empty: the suite's."""
    fractions: tuple[float, ...] = ()
    """Shares of the budget after which this row is scored; empty: the suite's."""
    paper: tuple[float, ...] = ()
    """The paper's scores at these fractions, points; empty: the paper does not print them."""
    against: str = ""
    """The row that this row is compared with; empty: the suite's reference."""
    side: Literal["", "higher", "lower"] = ""
    """Whether the paper has this row higher or lower, if it prints no scores."""
    line: str = ""
    """The row's line in a figure with `x`; rows without one have a line in common."""
    x: float | None = None
    """The row's place on the axis `x`."""


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A comparison of two rows beside those of the rows with their references."""

    row: str
    against: str
    side: Literal["", "higher", "lower"] = ""
    """Whether the paper has the row higher or lower, if it prints no scores."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row of the paper's table that is not trained, because other people's systems are in it."""

    name: str
    source: str = "published"
    """Who described the system."""
    paper: float
    """Score, points."""
    flops: float
    """Training FLOPs, by the paper's count."""


MOST_STEPS = 1_000_000_000
"""Steps or seconds from which on a budget was rather meant in FLOPs."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Rows, what is held equal between them, and how they are scored."""

    title: str
    paper: str = ""
    """The paper's finding, in a sentence or two."""
    reference: str
    """The row that the others are compared with."""
    rows: tuple[Row, ...]
    preset: str = "small"
    recipe: Literal["paper", "best"] = "paper"
    set: tuple[str, ...] = ()
    """Settings of pre-training of all rows, as section.field=value."""
    equal: Literal["flops", "steps", "seconds"] = "flops"
    """The unit of equal cost: true FLOPs (`electra flops`), optimizer steps, or training seconds
    as a probe of this machine estimates them."""
    budget: float | None = None
    """The cost of a row, in the unit of `equal`; None: what `budget_of` spends in its preset."""
    budget_of: str = ""
    """A row; empty: of the rows that are compared with one another, the one that spends the most.
    """
    fractions: tuple[float, ...] = (1.0,)
    """Shares of the budget after which every row is scored."""
    seeds: int = 3
    """Pre-training seeds of each row."""
    tasks: tuple[str, ...] = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte")
    """The score of a run is the mean of its scores on these tasks."""
    finetune: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings of fine-tuning as field=value, by task; those of "all" are for all tasks."""
    grid: tuple[str, ...] = ()
    """More such settings, as field=value,value: a task's score is the best of all combinations."""
    x: str = ""
    """Label of a figure's axis on which rows have places; empty: a figure with several fractions
    has FLOPs there."""
    orderings: tuple[Ordering, ...] = ()
    published: tuple[Published, ...] = ()

    @property
    def references(self) -> dict[str, str]:
        """The row that each row is compared with, by name."""
        return {row.name: row.against or self.reference for row in self.rows}

    @property
    def num_combinations(self) -> int:
        """Number of fine-tunings of a run on a task."""
        return math.prod(1 + setting.count(",") for setting in self.grid)

    @property
    def finetune_settings(self) -> dict[str, list[str]]:
        """Settings of fine-tuning of each task, as field=value, then those of the grid."""
        return self.finetune_settings_of(None)

    def finetune_settings_of(self, row: Row | None) -> dict[str, list[str]]:
        """Return the settings of fine-tuning of a row, or of all rows, on each task."""
        return {
            task: [] if task == PAIRS else [*self.fixed_settings(task, row), *self.grid]
            for task in self.tasks
        }

    def fixed_settings(self, task: str, row: Row | None) -> list[str]:
        """Return what all fine-tunings of a row on a task have in common, as field=value."""
        own = row.finetune if row else ()
        return [*self.finetune.get("all", ()), *self.finetune.get(task, ()), *own]

    def fractions_of(self, row: Row) -> tuple[float, ...]:
        """Return the shares of the budget after which a row is scored."""
        return row.fractions or self.fractions

    def __post_init__(self) -> None:
        _require_distinct("the rows' names", [row.name for row in self.rows])
        _require_distinct("tasks", self.tasks)
        for task in self.tasks:
            require(Path(task).name == task, f"a task's name is that of a folder, not {task!r}")
        for name in self.finetune:
            require_choice("task of finetune", name, (*self.tasks, "all"))
        require(self.seeds >= 1, f"seeds must be >= 1, not {self.seeds}")
        self._check_references()
        self._check_budget()
        for row in self.rows:
            self._check_row(row)

    def _check_references(self) -> None:
        names, usual = [row.name for row in self.rows], self.references
        for name in (self.reference, *(row.against for row in self.rows if row.against)):
            require_choice("row to compare with", name, names)
        for each in self.orderings:
            for name in (each.row, each.against):
                require_choice("row of orderings", name, names)
            require(
                each.against not in (each.row, usual[each.row]),
                f"orderings: {each.row} is compared with {usual[each.row]} anyway; name another "
                f"row than {each.against}",
            )
            require(
                usual[each.row] == usual[each.against],
                f"orderings: {each.row} and {each.against} have different references",
            )

    def _check_budget(self) -> None:
        # budget_of is not read beside a budget, so that a suite of some of the rows can extend
        # this one.
        if self.budget is None and self.budget_of:
            require_choice("row of budget_of", self.budget_of, [row.name for row in self.rows])
        budget = 1.0 if self.budget is None else self.budget
        require(0 < budget < math.inf, f"budget must be > 0 and finite, not {budget:g}")
        require(
            self.equal == "flops" or budget < MOST_STEPS,
            f"budget is a number of {self.equal}, below {MOST_STEPS:,}, not {budget:g}",
        )

    def _check_row(self, row: Row) -> None:
        fractions = self.fractions_of(row)
        _require_distinct(f"{row.name}: fractions", fractions)
        require(
            any(map(str.isalnum, row.name)),
            f"a row's name must have a letter or digit, not {row.name!r}",
        )
        require(
            all(0 < fraction <= 1 for fraction in fractions),
            f"{row.name}: fractions must be in (0, 1], not {_join(fractions)}",
        )
        require(
            len(row.paper) in (0, len(fractions)),
            f"{row.name}: paper has {len(row.paper)} scores for {len(fractions)} fractions",
        )
        require(
            all(map(math.isfinite, row.paper)),
            f"{row.name}: the paper's scores must be numbers, not {_join(row.paper)}",
        )
        require(
            not self.x or row.x is not None,
            f"{row.name} has no place x on the suite's axis x, {self.x!r}",
        )
        require(
            bool(self.x) or row.x is None,
            f"{row.name} has a place x = {row.x}, but the suite names no axis: x = LABEL",
        )


def _require_distinct(what: str, values: Sequence[object]) -> None:
    is_distinct = len(set(values)) == len(values) > 0
    require(is_distinct, f"{what} must differ, and be at least one, not {_join(values) or 'none'}")


def _join(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def list_suites() -> dict[str, Suite]:
    """Return the suites that come with the package, by name."""
    return {path.stem: read_suite(path) for path in sorted(SUITES.glob(f"*{SUFFIX}"))}


def find_suite(name: str) -> Path:
    """Return the file of a suite: one that comes with the package by its name, or a user's file."""
    if name.endswith(SUFFIX):
        return Path(name)
    known = [path.stem for path in sorted(SUITES.glob(f"*{SUFFIX}"))]
    require(
        name in known,
        f"unknown suite {name!r}{did_you_mean(name, known)}; a suite of your own is a file "
        f"NAME{SUFFIX}",
    )
    return SUITES / (name + SUFFIX)


def read_suite(path: Path) -> Suite:
    """Return the suite of a file.

    Its key `extends` names the suite that it changes, or several files, of which later ones
    override earlier ones. A file NAME.toml is looked up in its folder.
    """
    values = _read_values(path, ())
    with tell_place(path):
        suite: Suite = parse_value("the suite", values, Suite)
    return suite


def change_suite(suite: Suite, settings: Sequence[str], **changes: Any) -> Suite:
    """Return a suite with what a command changes of it."""
    given = {setting_name(setting) for setting in settings}
    kept = [setting for setting in suite.set if setting_name(setting) not in given]
    changes = {name: value for name, value in changes.items() if value not in (None, ())}
    tasks = (*changes.get("tasks", suite.tasks), "all")
    finetune = {task: each for task, each in suite.finetune.items() if task in tasks}
    return replace(suite, set=(*kept, *settings), finetune=finetune, **changes)


def _read_values(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """Return the keys of a file and of those that it extends."""
    require(path.resolve() not in extended_by, f"{path} extends itself")
    values = parse_toml(path)
    bases = values.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    require(
        isinstance(bases, list) and all(isinstance(base, str) for base in bases),
        f"{path}: extends must be the name of a suite or a list of names, not {bases!r}",
    )
    layers = []
    for base in bases:
        with tell_place(f"{path}: extends"):
            place = path.parent / base if base.endswith(SUFFIX) else find_suite(base)
        layers.append(_read_values(place, (*extended_by, path.resolve())))
    merged: dict[str, Any] = {}
    for layer in (*layers, values):
        if "rows" in layer:
            merged.pop("orderings", None)  # they are of other rows
        merged |= layer
    return merged
