"""The shape of a JSON value, described by a type: a TypedDict for each kind of file that we write.

A TypedDict is beside the code that writes the file; `files.read_object` compares what it reads.
"""

import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from electra.errors import UserError

WORDS: Mapping[Any, str] = {
    **{str: "text", int: "a whole number", float: "a number", bool: "true or false"},
    **{list: "a list", dict: "a JSON object", NoneType: "null"},
}
"""The rule for a value, by its type."""
SHORT = reprlib.Repr()
"""A value in a message: of a list or an object what is directly in it."""
SHORT.maxlevel = 1


def check_shape(value: object, shape: Any, place: object, *keys: str | int) -> None:
    """Refuse a value that is not of a type; the message has place, field and type.

    A type is one of JSON's, Any, a list or a dict of a type, a union, a TypedDict, or Annotated
    with bounds of `settings`. For a TypedDict, fields that are not required may be missing, and
    additional fields are accepted.
    """
    plain, *bounds = get_args(shape) if get_origin(shape) is Annotated else (shape,)
    kinds = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
    # Among several kinds that of the value, so that the message is about the field inside.
    kind = next((each for each in kinds if _is_of(value, each)), None)
    if kind is None or not all(each.holds(value) for each in bounds):
        must = " ".join([" or ".join(WORDS[_plain(each)] for each in kinds), *map(str, bounds)])
        raise UserError(f"{place}: {_name(keys)}must be {must}, not {SHORT.repr(value)}")
    fields: Mapping[Any, Any] = {}
    if is_typeddict(kind) and isinstance(value, dict):
        require_fields(value, kind.__required_keys__, place, *keys)
        fields = _fields(kind)
    of_all = next(iter(get_args(kind)[-1:]), Any)
    for key, each in _list_items(value):
        of_field = fields.get(key, of_all)
        if of_field is not Any:
            check_shape(each, of_field, place, *keys, key)


def require_fields(
    value: Mapping[str, Any], names: Iterable[str], place: object, *keys: str | int
) -> None:
    """Refuse an object that lacks some fields."""
    if missing := [repr(name) for name in sorted(names) if name not in value]:
        raise UserError(f"{place}: {_name(keys) or 'it '}lacks {', '.join(missing)}")


def check_unicode(value: object, place: object, *keys: str | int) -> None:
    """Refuse text with half of a surrogate pair, which JSON can hold and UTF-8 cannot."""
    for text in (value, *keys[-1:]):
        if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text):
            raise UserError(f"{place}: {_name(keys)}must be whole characters, not {text!a}")
    for key, each in _list_items(value):
        check_unicode(each, place, *keys, key)


def _list_items(value: object) -> list[tuple[str | int, Any]]:
    """Return the keys and values of a JSON object, or the places and values of a list."""
    if isinstance(value, dict):
        return [*value.items()]
    return [*enumerate(value)] if isinstance(value, list) else []


def _plain(kind: Any) -> type:
    """Return the type of JSON's values that a type describes."""
    return dict if is_typeddict(kind) else get_origin(kind) or kind


def _is_of(value: object, kind: Any) -> bool:
    plain = _plain(kind)
    if plain in (int, float):  # also whole numbers that a float holds
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) < 1 << 63 if isinstance(value, int) else plain is float
    return kind is Any or isinstance(value, plain)


@cache
def _fields(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a TypedDict."""
    hints = get_type_hints(kind, include_extras=True)
    is_marked = (NotRequired, Required)
    return {key: get_args(h)[0] if get_origin(h) in is_marked else h for key, h in hints.items()}


def _name(keys: tuple[str | int, ...]) -> str:
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return "".join(parts).removeprefix(".") + " " * bool(keys)
