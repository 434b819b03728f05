"""Settings from `section.field=value`, from TOML and from JSON."""

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from electra.errors import UserError, did_you_mean, require, tell_place
from electra.settings import to_dict

ConfigType = TypeVar("ConfigType")


def setting_name(assignment: str) -> str:
    """Return the name in `section.field=value`."""
    return assignment.partition("=")[0].strip()


def override(
    config: ConfigType,
    assignments: Iterable[str],
    file: Mapping[str, Any] | None = None,
    path: Path = Path(),
) -> ConfigType:
    """Return the config with all `section.field=value` assignments applied together.

    The type of a field determines how the value is read. Unknown names, names that are given twice,
    wrong types and values that contradict each other are refused. The assignments come after the
    values of a `file`, by dotted name, which is read from `path`.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        # White space alone may be a value, such as a separator.
        name, text = name.strip(), value.strip() or value
        require(bool(equals), f"--set takes section.field=value, not {assignment!r}")
        require(name not in values, f"{name} is set twice: {values.get(name)} and {text}")
        values[name] = text
    if file:
        try:
            with tell_place(path):
                config = _replace(config, file)
        except UserError:
            with suppress(UserError):  # the assignments may mend what the file alone contradicts
                return _replace(config, {**file, **values})
            raise
    return _replace(config, values)


def override_from_toml(
    config: ConfigType, path: Path | None, assignments: Iterable[str] = ()
) -> ConfigType:
    """Return the config with a TOML file, whose tables are sections, and then assignments."""
    if path is None:
        return override(config, assignments)
    return override(config, assignments, dict(flatten(parse_toml(path))), path)


def parse_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. All TOML that the package reads is read here."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also of numbers with too many digits
        raise UserError(f"{path} is not valid TOML: {error}") from None


def from_dict(config_type: type[ConfigType], values: Mapping[str, Any]) -> ConfigType:
    """Return the config from the dictionaries of `to_dict`. Missing fields get their defaults.

    A field that is unknown, or has a value of another type, is a UserError.
    """
    config_type = _choose_kind(config_type, values)
    hints = _types(config_type)
    arguments = {}
    for name, value in values.items():
        require(
            name in hints, f"unknown setting {name}; it may come from a newer version of electra"
        )
        if dataclasses.is_dataclass(hints[name]):
            require(isinstance(value, dict), f"{name} must be a table, not {value!r}")
            value = from_dict(hints[name], value)
        elif type(value) is not hints[name]:
            value = parse_value(name, value, hints[name])
        arguments[name] = value
    return config_type(**arguments)


def flatten(tables: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield (dotted name, value) for every value of nested dictionaries; names as in --set."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def list_names(config: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of each setting, also of those that it has with another tag."""
    for name, value in vars(config).items():
        inside = dataclasses.is_dataclass(value)
        yield from list_names(value, f"{prefix}{name}.") if inside else [prefix + name]
    for value in getattr(config, "kinds", ()):
        others = _types(config.class_for(value)).keys() - vars(config)
        yield from sorted(prefix + name for name in others)


def differences(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return the value before and the value after of each setting that differs, by dotted name."""
    old, new = (dict(flatten(to_dict(config))) for config in (before, after))
    return {
        name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)
    }


def _replace(config: ConfigType, values: Mapping[str, Any], prefix: str = "") -> ConfigType:
    """Return the config with all values, by dotted name, applied before any check runs."""
    kind = _choose_kind(type(config), values, config)
    hints = _types(kind)
    changes: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        key, _, rest = name.partition(".")
        if key not in hints:
            _refuse_other_kinds(config, name, values, prefix)
            are_sections = [dataclasses.is_dataclass(hint) for hint in hints.values()]
            what = "section" if all(are_sections) or (rest and any(are_sections)) else "field"
            raise UserError(
                f"unknown {what} {key!r} in {prefix + name!r}{did_you_mean(key, hints)}"
            )
        if dataclasses.is_dataclass(hints[key]):
            fields = ", ".join(_types(hints[key]))
            require(bool(rest), f"{prefix + name!r} is a section; set one of its fields: {fields}")
            inside.setdefault(key, {})[rest] = value
        else:
            require(not rest, f"{key!r} in {prefix + name!r} is a field, not a section")
            is_unset = value == "none" and getattr(kind, key, None) == ""
            changes[key] = "" if is_unset else parse_value(prefix + name, value, hints[key])
    for key, section in inside.items():
        changes[key] = _replace(getattr(config, key), section, f"{prefix}{key}.")
    if kind is type(config):
        return dataclasses.replace(config, **changes)  # type: ignore[type-var]
    kept = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in kept.items() if name in hints} | changes)


def _choose_kind(
    config_type: type[ConfigType], values: Mapping[str, Any], config: ConfigType | None = None
) -> type[ConfigType]:
    """Return the class of settings that the value of their tag chooses (`Settings.kinds`)."""
    tag = getattr(config_type, "tag", "")
    if not tag:
        return config_type
    value = values.get(tag, getattr(config or config_type, tag, None))
    kind: type[ConfigType] = config_type.class_for(value)  # type: ignore[attr-defined]
    return kind


def _refuse_other_kinds(config: Any, name: str, values: Mapping[str, Any], prefix: str) -> None:
    """Refuse a setting that only settings of another kind have, by the value that they need."""
    for value in getattr(config, "kinds", ()):
        if name in _types(config.class_for(value)):
            is_now = values.get(config.tag, getattr(config, config.tag))
            raise UserError(f"{prefix}{name} needs {prefix}{config.tag}={value}, not {is_now}")


def parse_value(name: str, value: Any, hint: Any) -> Any:
    """Return the value for a field of type `hint`, from text (--set) or from a TOML value."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None or value == "none":
            return None
        return parse_value(name, value, next(part for part in parts if part is not type(None)))
    if origin is Literal:
        choices = [choice for choice in parts if choice != ""]
        near = did_you_mean(str(value), choices)
        require(value in parts, f"{name} cannot be {value!r}{near}")
        return value
    if origin is tuple:
        require(isinstance(value, list), f"{name} must be a list, not {value!r}")
        return tuple(parse_value(name, each, parts[0]) for each in value)
    if origin is dict or dataclasses.is_dataclass(hint):
        require(isinstance(value, dict), f"{name} must be a table, not {value!r}")
        if origin is dict:
            return {key: parse_value(key, each, parts[1]) for key, each in value.items()}
        return _parse_table(name, value, hint)
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
        exact = Decimal(value)  # a float would round integers of more than 53 bits
        is_whole = math.isfinite(number) and exact == int(exact)
        require(is_whole, f"{name} must be {_words(hint)}, not {value!r}")
        return int(exact)
    except (ValueError, ArithmeticError):
        raise UserError(f"{name} must be {_words(hint)}, not {value!r}") from None


def _parse_table(name: str, table: dict[str, Any], kind: Any) -> Any:
    hints, missing = _types(kind), dataclasses.MISSING
    for key in table:
        require(key in hints, f"{name}: unknown key {key!r}{did_you_mean(key, hints)}")
    lacking = [
        field.name
        for field in dataclasses.fields(kind)
        if field.name not in table and field.default is field.default_factory is missing
    ]
    require(not lacking, f"{name} lacks {', '.join(lacking)}")
    return kind(**{key: parse_value(key, each, hints[key]) for key, each in table.items()})


def _types(kind: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass, without bounds."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _words(hint: type) -> str:
    return {int: "a whole number", float: "a number", str: "text"}.get(hint, str(hint))
