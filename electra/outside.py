"""Objectives, bodies and families of tasks of other packages, found by their entry points.

A package names them in the groups electra.objectives, electra.bodies and electra.families
(docs/EXTENDING.md). To install it is the user's consent: a run folder can name such a part, and
never brings its code.
"""

from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from electra.errors import UserError, require, require_choice

Kind = Literal["objectives", "bodies", "families"]


@cache
def list_outside(kind: Kind) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages, by name; refuse a name that two have."""
    found: dict[str, EntryPoint] = {}
    for each in entry_points(group=f"electra.{kind}"):
        other = found.setdefault(each.name, each)
        require(
            other.value == each.value,
            f"two packages have electra.{kind} {each.name!r}: {other.value} and {each.value}; "
            "uninstall one",
        )
    return found


def require_known(what: str, name: str, own: Collection[str], kind: Kind) -> None:
    """Refuse a name that neither this package nor another one has."""
    if name not in own:  # others are looked up when they are asked for
        require_choice(what, name, (*own, *list_outside(kind)))


def load_outside(kind: Kind, name: str, wanted: type) -> Any:
    """Return the subclass, or the instance, of `wanted` that another package has."""
    point = list_outside(kind)[name]
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"electra.{kind} {name!r} cannot be loaded: {error}") from None
    fits = isinstance(found, wanted) or (isinstance(found, type) and issubclass(found, wanted))
    require(fits, f"electra.{kind} {name!r}: {point.value} must be a {wanted.__name__}")
    return found
