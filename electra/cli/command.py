"""Turn a verb into a command with the function's names, types, defaults and help."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from electra.assignments import flatten, to_dict
from electra.terminal.printing import print_plan
from electra.verbs.options import Planned


def make_command(verb: Callable[..., Any]) -> Callable[..., None]:
    """Return a verb's function for the parser: it prints, and exits with 1 if a claim fails."""
    function = inspect.unwrap(verb)

    def run(*given: Any, **named: Any) -> None:
        try:
            found = function(*given, **named)
            if isinstance(found, list) and any(getattr(x, "status", "") == "FAILED" for x in found):
                raise SystemExit(1)
        except Planned as plan:
            settings = plan.settings and dict(flatten(to_dict(plan.settings)))
            print_plan(settings or {}, plan.action)

    parameters = inspect.signature(function).parameters
    run.__name__, run.__doc__ = function.__name__.removesuffix("_file"), function.__doc__
    run.__annotations__ = {name: _as_word(each.annotation) for name, each in parameters.items()}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(annotation=run.__annotations__[each.name]) for each in parameters.values()]
    )
    return run


def _as_word(hint: Any) -> Any:
    """Return the command-line type: the first of a union that starts with a path, text or list."""
    if get_origin(hint) is Annotated:
        inner, *how = get_args(hint)
        return Annotated[(_as_word(inner), *how)]
    if get_origin(hint) in (Union, UnionType):
        first, *others = get_args(hint)
        if first in (Path, str) or get_origin(first) is Sequence:
            return _as_word(first) | None if NoneType in others else _as_word(first)
    if get_origin(hint) is Sequence:
        return tuple[_as_word(get_args(hint)[0]), ...]  # type: ignore[misc]
    return hint
