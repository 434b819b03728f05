"""Arguments of verbs: types of scripts made one, and checks of what may be written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import UserError, count_of, require
from electra.terminal.printing import as_word
from electra.text.urls import is_url
from electra.verbs.options import Place


def ignore(*told: object) -> None:
    """Show nothing."""


def as_path(place: Place | None) -> Path | None:
    """Return a path where there is a place."""
    return None if place is None else Path(place)


def as_list(values: Iterable[Any]) -> list[Any]:
    """Return a list of values; refuse a text, whose values would be its characters."""
    if isinstance(values, str):
        raise UserError(f"give a list of texts, as [{values[:40]!r}]")
    return list(values)


def as_paths(places: Iterable[Place]) -> list[Path]:
    """Return the paths of a list of places."""
    return list(map(Path, as_list(places)))


def as_words(settings: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return settings as the words of --set."""
    if not isinstance(settings, Mapping):
        return as_list(settings)
    return [f"{name}={as_word(value)}" for name, value in settings.items()]


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


@contextmanager
def keeping(folder: Path, what: str, pattern: str) -> Iterator[None]:
    """Let an interrupt say how many parts of the work are kept in a folder, if any."""
    try:
        yield
    except KeyboardInterrupt:
        if is_url(folder):
            told = f"{folder} keeps each {what}; the same command continues there"
            raise KeyboardInterrupt(told) from None
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
