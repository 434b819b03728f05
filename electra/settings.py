"""Reading and overriding settings: `section.field=value`, TOML, and JSON there and back."""

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from electra.config import UserError, did_you_mean, require

ConfigType = TypeVar("ConfigType")


def override(config: ConfigType, assignments: Iterable[str]) -> ConfigType:
    """Return the config with `section.field=value` assignments applied, all at once.

    Values are read by the field's type; nothing is guessed and nothing is ignored.

    Raises:
        UserError: Unknown section or field, one given twice, a value of the wrong type, or values
            that do not fit together.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        require(bool(equals), f"--set takes section.field=value, not {assignment!r}")
        require(name not in values, f"{name} is set twice: {values.get(name)} and {text}")
        values[name] = text
    return _replace(config, values)


def override_from_toml(config: ConfigType, path: Path) -> ConfigType:
    """Return the config with a TOML file's tables and keys applied; they are named as in --set."""
    return override_values(config, read_toml(path), path)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file by dotted name."""
    try:
        return dict(flatten(tomllib.loads(path.read_text(encoding="utf-8"))))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def override_values(config: ConfigType, values: Mapping[str, Any], path: Path) -> ConfigType:
    """Return the config with the values applied that `read_toml` found in this file."""
    try:
        return _replace(config, values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as nested dictionaries, for JSON; `from_dict` reads it back."""
    return dataclasses.asdict(config)


def from_dict(config_type: type[ConfigType], values: Mapping[str, Any]) -> ConfigType:
    """Return the config that `to_dict` wrote; what an older version did not know has its default.

    Raises:
        UserError: A value is not of its field's type.
        KeyError, TypeError, AttributeError: It is nothing that `to_dict` wrote.
    """
    hints = get_type_hints(config_type)
    arguments = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]):
            value = from_dict(hints[name], value)
        elif type(value) is not hints[name]:
            value = _parse(name, value, hints[name])
        arguments[name] = value
    return config_type(**arguments)


def flatten(tables: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield every value of nested dictionaries under its dotted name, as --set takes it."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _replace(config: ConfigType, values: Mapping[str, Any], prefix: str = "") -> ConfigType:
    """Return the config with values by dotted name; each dataclass is checked once, when whole."""
    hints = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        key, _, rest = name.partition(".")
        if key not in hints:
            has_sections = any(dataclasses.is_dataclass(hint) for hint in hints.values())
            what = "section" if has_sections else "field"
            raise UserError(
                f"unknown {what} {key!r} in {prefix + name!r}{did_you_mean(key, hints)}"
            )
        if dataclasses.is_dataclass(hints[key]):
            fields = ", ".join(get_type_hints(hints[key]))
            require(bool(rest), f"{prefix + name!r} is a section; set one of its fields: {fields}")
            inside.setdefault(key, {})[rest] = value
        else:
            require(not rest, f"{key!r} in {prefix + name!r} is a field, not a section")
            changes[key] = _parse(prefix + name, value, hints[key])
    for key, section in inside.items():
        changes[key] = _replace(getattr(config, key), section, f"{prefix}{key}.")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _parse(name: str, value: Any, hint: Any) -> Any:
    """Read a value for a field of type `hint`: from text (--set) or as TOML gave it."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None or value == "none":
            return None
        return _parse(name, value, next(part for part in get_args(hint) if part is not type(None)))
    if origin is Literal:
        choices = get_args(hint)
        require(value in choices, f"{name} cannot be {value!r}{did_you_mean(str(value), choices)}")
        return value
    if hint is bool:
        words = {"true": True, "false": False}
        known = isinstance(value, bool) or str(value).lower() in words
        require(known, f"{name} must be true or false, not {value!r}")
        return value if isinstance(value, bool) else words[str(value).lower()]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{name} must be {_words(hint)}, not {value!r}")
    if hint is str:
        return str(value)
    try:
        number = float(value)
        if hint is float:
            return number
        exact = Decimal(value)  # a float holds no more than 53 bits
        is_whole = math.isfinite(number) and exact == int(exact)
        require(is_whole, f"{name} must be {_words(hint)}, not {value!r}")
        return int(exact)
    except (ValueError, OverflowError):
        raise UserError(f"{name} must be {_words(hint)}, not {value!r}") from None


def _words(hint: type) -> str:
    return {int: "a whole number", float: "a number", str: "text"}.get(hint, str(hint))
