"""The options that several verbs share, and what is done with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from electra import files
from electra.assignments import flatten, list_names, to_dict
from electra.errors import count_of, require
from electra.presets import PRESETS, RECIPES
from electra.terminal.printing import print_plan
from electra.text.urls import is_url


def completed(name: Callable[[], Iterable[str]]) -> Parameter:
    """Return a parameter whose values the shell completes with these names."""
    return Parameter(completer=lambda context: list(name()))


def settings_of(config: Any) -> Parameter:
    """Return a parameter of settings, which the shell completes with the fields of a config."""
    return completed(lambda: [f"{name}=" for name in list_names(config)])


Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
Paths = Annotated[tuple[Path, ...], Parameter(consume_multiple=True)]
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
    settings_of(PRESETS["tiny"]),
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
        "wrote, or english-tiny, whose weights and sizes the run begins with; the same as --set "
        "train.init_from=FOLDER."
    ),
]
PRESET = completed(lambda: PRESETS)
BEST_BY_DEFAULT = [name for name, preset in PRESETS.items() if preset == RECIPES["best"][name]]
Recipe = Annotated[
    Literal["paper", "best"] | None,
    Parameter(
        name="--recipe",
        help="paper: settings as published. best: those found by experiment at the size of tiny. "
        f"If not given, best for {', '.join(BEST_BY_DEFAULT)}, paper for the others.",
    ),
]
Precision = Annotated[
    Literal["float32", "bfloat16", "auto"],
    Parameter(
        name="--precision",
        help="What the answers are computed in. bfloat16 is faster on hardware that multiplies it, "
        "and changes an answer by its rounding; auto chooses it there.",
    ),
]
DryRun = Annotated[
    bool,
    Parameter(
        name="--dry-run", help="Print the settings and what would be done, and write nothing."
    ),
]


def repeat(
    assignments: Sequence[str], toml: Path | None = None, recipe: str | None = None
) -> list[object]:
    """Return the words that give the same settings to the next command."""
    return [
        *(["--recipe", recipe] if recipe else []),
        *(["--config", toml] if toml else []),
        *(["--set", *assignments] if assignments else []),
    ]


def refuse_existing(out: Path) -> None:
    """Refuse to write where something is, or to a URL, before any work is done."""
    refuse_url(out)
    files.refuse_existing(out)


def refuse_file(out: Path, formats: Sequence[str] = (), *, replace: bool = False) -> None:
    """Refuse a file that cannot be written, before any work is done.

    Args:
        out: The file.
        formats: The suffixes that it may have; none: any.
        replace: Whether a file that is there is replaced.
    """
    refuse_url(out)
    kind = out.suffix.lower()
    is_right = not formats or kind in formats
    require(is_right, f"--out {out} must be a {' or '.join(formats)} file, not {kind!r}")
    if not replace:
        files.refuse_existing(out)
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
    print_plan(dict(flatten(to_dict(settings))) if settings is not None else {}, action)


@contextmanager
def keeping(folder: Path, what: str, pattern: str) -> Iterator[None]:
    """Let an interrupt say how many parts of the work are kept in a folder, if any."""
    try:
        yield
    except KeyboardInterrupt:
        if number := len([*folder.glob(pattern)]):
            kept = f"{folder} keeps {count_of(number, what)}; the same command continues there"
            raise KeyboardInterrupt(kept) from None
        raise


def parse_share(text: str) -> tuple[int, int]:
    """Return I and N of "I/N"."""
    number, _, size = text.partition("/")
    is_right = number.isdecimal() and size.isdecimal() and int(number) < int(size)
    require(is_right, f"--task takes I/N with I from 0 to N - 1, not {text!r}")
    return int(number), int(size)
