"""The error for a user's mistake, and messages that several modules share."""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*:/{1,2}[^/\s:@]*):(?!\d+/)\S+@", re.IGNORECASE)
"""A URL (`Path` makes one slash of two) up to its password, which may have @ and /; no port."""


def hide_passwords(text: str) -> str:
    """Return the text with the password of each URL in it replaced."""
    return PASSWORD.sub(r"\1:***@", text)


class UserError(ValueError):
    """Error in what the user asked for: one line with value, rule and nearest valid choice."""

    def __init__(self, message: str) -> None:
        super().__init__(hide_passwords(message))


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the choice nearest to `name`, or a list of all choices."""
    choices = list(choices)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(choices)}"


def count_of(number: int, noun: str) -> str:
    """Return "1 file" or "1,234 files"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def command(*words: object) -> str:
    """Return a command line of electra as a shell reads it; no name is taken for an option."""
    said = ["electra"]
    for word in words:
        is_option = isinstance(word, str) and word.startswith("--")
        said.append(f"./{word}" if str(word).startswith("-") and not is_option else str(word))
    return shlex.join(said)


def require(rule_holds: bool, message: str) -> None:
    """Raise UserError(message) unless the rule holds."""
    if not rule_holds:
        raise UserError(message)


@contextmanager
def tell_place(place: object) -> Iterator[None]:
    """Put a place, such as a file, before what a UserError says."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


@contextmanager
def refuse_unlike(what: str) -> Iterator[None]:
    """Raise UserError, beginning with `what`, if a file's values have another form."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{what}: it lacks {error}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{what}: {error}") from None


def require_choice(what: str, value: object, choices: Iterable[object]) -> None:
    """Raise UserError, with the nearest choice, unless the value is one of the choices."""
    choices = list(choices)
    if value not in choices:
        near = did_you_mean(str(value), (str(each) for each in choices if each is not None))
        raise UserError(f"unknown {what} {str(value)!r}{near}")


def import_extra(module: str, extra: str, purpose: Path | str) -> ModuleType:
    """Return an optional module; if it is missing, the error names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        what = f"reading {purpose}" if isinstance(purpose, Path) else purpose
        raise UserError(f"{what} needs {package}: pip install 'electra[{extra}]'") from None
