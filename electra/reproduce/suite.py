"""A suite: pre-training runs that are compared at equal compute, described by a TOML file.

The suites of the paper's tables and figures are the files in `suites/`. A suite of your own is the
same kind of file (docs/REPRODUCE.md).
"""

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from electra.errors import UserError, did_you_mean, require
from electra.files import read_text

SUITES = Path(__file__).parent / "suites"
SUFFIX = ".toml"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pre-training that is compared, with every seed and at every fraction of the budget."""

    name: str
    set: tuple[str, ...] = ()
    """Settings of pre-training that differ from the suite's, as section.field=value."""
    preset: str = ""
    """Preset of this row; empty: the suite's."""
    fractions: tuple[float, ...] = ()
    """Shares of the budget after which this row is scored; empty: the suite's."""
    paper: tuple[float, ...] = ()
    """The paper's scores at these fractions, points; empty: the paper does not print them."""
    against: str = ""
    """The row that this row is compared with; empty: the suite's reference."""
    side: Literal["", "higher", "lower"] = ""
    """On which side of that row the paper has this one, where it prints no scores."""
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
    """On which side of the other the paper has the row, where it prints no scores."""


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
    paper: str
    """What the paper found there, in a sentence or two."""
    reference: str
    """The row that the others are compared with."""
    rows: tuple[Row, ...]
    preset: str = "small"
    recipe: Literal["paper", "best"] = "paper"
    set: tuple[str, ...] = ()
    """Settings of pre-training of all rows, as section.field=value."""
    equal: Literal["flops", "steps", "seconds"] = "flops"
    """What all rows spend alike: true FLOPs (`electra flops`), optimizer steps, or training seconds
    as a probe of this machine estimates them."""
    budget: float | None = None
    """What a row spends, in the unit of `equal`; None: what `budget_of` spends in its preset."""
    budget_of: str = ""
    """A row; empty: of the rows that are compared with one another, the one that spends the most.
    """
    fractions: tuple[float, ...] = (1.0,)
    """Shares of the budget after which every row is scored."""
    seeds: int = 3
    """Pre-training seeds of each row."""
    tasks: tuple[str, ...] = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte")
    """The score of a run is the mean of its scores on these tasks."""
    finetune: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Settings of fine-tuning as field=value, by task; those of "all" are for all tasks."""
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
    def finetune_settings(self) -> dict[str, list[str]]:
        """Settings of fine-tuning of each task, as field=value."""
        return {
            task: [*self.finetune.get("all", ()), *self.finetune.get(task, ())]
            for task in self.tasks
        }

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        require(len(set(names)) == len(names), f"rows must have different names, not {names}")
        for name in (self.reference, *(row.against for row in self.rows if row.against)):
            require(name in names, f"{name!r} is no row to compare with{did_you_mean(name, names)}")
        require(
            # Not read beside a budget, so that a suite of some of the rows can extend this one.
            self.budget is not None or self.budget_of in ("", *names),
            f"budget_of names no row: {self.budget_of!r}{did_you_mean(self.budget_of, names)}",
        )
        usual = self.references
        for each in self.orderings:
            for name in (each.row, each.against):
                require(name in names, f"orderings: no row {name!r}{did_you_mean(name, names)}")
            require(
                each.against not in (each.row, usual[each.row]),
                f"orderings: {each.row} is compared with {usual[each.row]} anyway; name another "
                f"row than {each.against}",
            )
            require(
                usual[each.row] == usual[each.against],
                f"orderings: {each.row} and {each.against} have different references",
            )
        require(self.seeds >= 1, f"seeds must be >= 1, not {self.seeds}")
        budget = 1.0 if self.budget is None else self.budget
        require(0 < budget < math.inf, f"budget must be > 0 and finite, not {budget:g}")
        require(
            self.equal == "flops" or budget < MOST_STEPS,
            f"the suite holds {self.equal} equal: the budget is a number of {self.equal}, below "
            f"{MOST_STEPS:,}, not {budget:g}",
        )
        require(bool(self.tasks), "tasks must name at least one task")
        twice = [task for place, task in enumerate(self.tasks) if task in self.tasks[:place]]
        require(not twice, f"tasks must differ; {', '.join(twice)} is named twice")
        unknown = [name for name in self.finetune if name not in (*self.tasks, "all")]
        require(
            not unknown,
            f"finetune names {', '.join(unknown)}, which is none of the suite's tasks"
            f"{did_you_mean(unknown[0], (*self.tasks, 'all')) if unknown else ''}",
        )
        require(bool(self.fractions), "fractions must name at least one share of the budget")
        for row in self.rows:
            require(
                any(char.isalnum() for char in row.name),
                f"a row's name must have a letter or digit, not {row.name!r}",
            )
            fractions = row.fractions or self.fractions
            require(
                all(0 < fraction <= 1 for fraction in fractions),
                f"{row.name}: fractions must lie in (0, 1], not {', '.join(map(str, fractions))}",
            )
            require(
                len(set(fractions)) == len(fractions),
                f"{row.name}: fractions must differ, not {', '.join(map(str, fractions))}",
            )
            require(
                len(row.paper) in (0, len(fractions)),
                f"{row.name}: paper has {len(row.paper)} scores for {len(fractions)} fractions",
            )
            scores = ", ".join(map(str, row.paper))
            require(
                all(map(math.isfinite, row.paper)),
                f"{row.name}: the paper's scores must be numbers, not {scores}",
            )
            require(
                not self.x or row.x is not None,
                f"{row.name} has no place x on the suite's axis x, {self.x!r}",
            )
            require(
                bool(self.x) or row.x is None,
                f"{row.name} has a place x = {row.x}, but the suite names no axis: x = LABEL",
            )


def list_suites() -> dict[str, Suite]:
    """Return the suites that come with the package, by name."""
    return {path.stem: read_suite(path) for path in sorted(SUITES.glob(f"*{SUFFIX}"))}


def find_suite(name: str) -> Path:
    """Return the file of a suite: one that comes with the package by its name, or a user's file.

    Raises:
        UserError: There is no such suite.
    """
    if name.endswith(SUFFIX):
        return Path(name)
    path = SUITES / (name + SUFFIX)
    known = [each.stem for each in sorted(SUITES.glob(f"*{SUFFIX}"))]
    require(
        path.is_file(),
        f"unknown suite {name!r}{did_you_mean(name, known)}; a suite of your own is a file "
        f"NAME{SUFFIX}",
    )
    return path


def read_suite(path: Path) -> Suite:
    """Return the suite of a file.

    Its key `extends` names the suite that it changes, or several files of keys, of which the later
    ones change the earlier. A file NAME.toml is sought beside it.

    Raises:
        UserError: The file cannot be read, or has an unknown key or a value of a wrong type.
    """
    values = _read_values(path, ())
    try:
        suite: Suite = _build(Suite, values, "")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return suite


def _read_values(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    require(path.resolve() not in extended_by, f"{path} extends itself")
    try:
        values = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    bases = values.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    require(
        isinstance(bases, list) and all(isinstance(base, str) for base in bases),
        f"{path}: extends must be the name of a suite or a list of names, not {bases!r}",
    )
    layers = []
    for base in bases:
        try:
            place = path.parent / base if base.endswith(SUFFIX) else find_suite(base)
        except UserError as error:
            raise UserError(f"{path}: extends: {error}") from None
        layers.append(_read_values(place, (*extended_by, path.resolve())))
    merged: dict[str, Any] = {}
    for layer in (*layers, values):
        if "rows" in layer:
            merged.pop("orderings", None)  # they are of other rows
        merged |= layer
    return merged


def _build(kind: Any, value: Any, name: str) -> Any:
    """Return a TOML value as the type of its field."""
    if dataclasses.is_dataclass(kind):
        require(isinstance(value, dict), f"{name} must be a table, not {value!r}")
        hints = get_type_hints(kind)
        place = f"{name}." if name else ""
        for key in value:
            require(key in hints, f"unknown key {place}{key}{did_you_mean(key, list(hints))}")
        missing = [
            field.name
            for field in dataclasses.fields(kind)
            if field.name not in value
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        require(not missing, f"{name or 'the suite'} lacks {', '.join(missing)}")
        fields = {key: _build(hints[key], each, place + key) for key, each in value.items()}
        return kind(**fields)  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        require(isinstance(value, list), f"{name} must be a list, not {value!r}")
        return tuple(_build(arguments[0], each, name) for each in value)
    if origin is dict:
        require(isinstance(value, dict), f"{name} must be a table, not {value!r}")
        return {key: _build(arguments[1], each, f"{name}.{key}") for key, each in value.items()}
    if origin is Literal:
        choices = [each for each in arguments if each]
        near = did_you_mean(str(value), choices)
        require(value in arguments, f"unknown {name} {value!r}{near}")
        return value
    is_float = float in (kind, *arguments)
    if is_float and type(value) is int:
        return float(value)
    wanted = float if is_float else kind
    require(type(value) is wanted, f"{name} must be a {wanted.__name__}, not {value!r}")
    return value
