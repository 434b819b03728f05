"""The parameters that several verbs share, and what a verb is.

A type declares the values that a script may pass and, by its `Parameter`, how the command line
parses them. If a parameter has several types, the command line uses the first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from electra.assignments import list_names
from electra.presets import PRESETS, RECIPES
from electra.terminal.printing import silenced


def completed(name: Callable[[], Iterable[str]]) -> Parameter:
    """Return a parameter whose values the shell completes with these names."""
    return Parameter(completer=lambda context: list(name()))


def settings_of(config: Any) -> Parameter:
    """Return a parameter of settings, which the shell completes with the fields of a config."""
    return completed(lambda: [f"{name}=" for name in list_names(config)])


Place = Path | str
"""A file or folder."""
Words = Annotated[Sequence[str], Parameter(consume_multiple=True)]
Places = Annotated[Sequence[Place], Parameter(consume_multiple=True)]
Set = Annotated[
    Sequence[str] | Mapping[str, Any],
    Parameter(
        name="--set",
        consume_multiple=True,
        help="Settings as field=value or section.field=value; --dry-run lists all of them.",
    ),
]
"""The words of --set, or a dictionary such as `{"train.steps": 1000}`."""
SetPretraining = Annotated[
    Set,
    settings_of(PRESETS["tiny"]),
    Parameter(
        help="Settings of pre-training as section.field=value; `electra pretrain --dry-run` lists "
        "all of them."
    ),
]
Toml = Annotated[
    Place | None, Parameter(name="--config", help="A TOML file of settings; --set overrides it.")
]
InitFrom = Annotated[
    Place | None,
    Parameter(
        help="Folder whose weights and sizes the run starts with (continued pre-training): a run, "
        "a folder that `electra export` or `electra import` wrote, or english-tiny; the same as "
        "--set train.init_from=FOLDER."
    ),
]
PRESET = completed(lambda: PRESETS)
BEST_BY_DEFAULT = [name for name, preset in PRESETS.items() if preset == RECIPES["best"][name]]
Recipe = Annotated[
    Literal["paper", "best"] | None,
    Parameter(
        help="paper: settings as published. best: those found by experiment at the size of tiny. "
        f"If not given, best for {', '.join(BEST_BY_DEFAULT)}, paper for the others."
    ),
]
Precision = Annotated[
    Literal["float32", "bfloat16", "auto"] | None,
    Parameter(
        help="The dtype in which answers are computed; float32 if not given. bfloat16 is faster on "
        "hardware that multiplies it natively, and changes answers by rounding; auto uses it there."
    ),
]
DryRun = Annotated[
    bool, Parameter(help="Print the settings and what would be done, and write nothing.")
]
"""In a script, `Planned` is raised in place of what would be done."""
Show = Annotated[Callable[..., None], Parameter(parse=False)]
"""Where a script gets the progress; a command has a display."""
Verb = TypeVar("Verb", bound=Callable[..., Any])


class Planned(Exception):
    """The end of a dry run, after every check that needs no writing has passed."""

    def __init__(self, settings: Any, action: str):
        super().__init__(f"would {action}")
        self.settings = settings
        """A dataclass; None: the verb has no settings."""
        self.action = action


def verb(function: Verb) -> Verb:
    """Return a verb as a script calls it: nothing is printed. The command is `__wrapped__`."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        with silenced():
            return function(*given, **named)

    return call  # type: ignore[return-value]
