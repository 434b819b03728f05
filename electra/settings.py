"""Rules of settings: bounds of fields, rules across fields; and how they are written."""

import dataclasses
import math
import re
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple

from electra.errors import require


class Within(NamedTuple):
    """The numbers that a field may have, as an annotation: Annotated[float, Within("[0, 1)")]."""

    interval: str

    def holds(self, number: float) -> bool:
        """Return whether the number is in the interval; NaN is in none."""
        least, most = map(float, self.interval[1:-1].split(","))
        is_above = number >= least if self.interval[0] == "[" else number > least
        return is_above and (number <= most if self.interval[-1] == "]" else number < most)

    def __str__(self) -> str:
        return f"in {self.interval}"


class AtLeast(NamedTuple):
    """The least number that a field may have, as an annotation: Annotated[int, AtLeast(1)]."""

    least: int

    def holds(self, number: float) -> bool:
        """Return whether the number is large enough; NaN is not."""
        return number >= self.least

    def __str__(self) -> str:
        return f">= {self.least}"


class Needs(NamedTuple):
    """A rule across fields: what one setting needs of another.

    Both are written as for --set, such as "kind=bpe|unigram" for two values, or "kind!=bpe". The
    name alone stands for any value but the empty one, 0 and false.
    """

    when: str
    then: str
    why: str = ""

    def check(self, settings: "Settings") -> None:
        """Raise UserError unless the rule holds."""
        (name, value, is_so), (_, other, holds) = map(settings.look_up, (self.when, self.then))
        then = settings.section + self.then.replace("!=", " other than ").replace("|", " or ")
        instead = f", not {other}" if "=" in self.then else ""
        why = f": {self.why}" if self.why else ""
        require(holds or not is_so, f"{name} {value} needs {then}{instead}{why}")


class Order(NamedTuple):
    """A rule across fields: one number is "at most" or "less than" another."""

    name: str
    how: Literal["at most", "less than"]
    other: str

    def check(self, settings: "Settings") -> None:
        """Raise UserError unless the rule holds."""
        number, limit = (attrgetter(each)(settings) or 0 for each in (self.name, self.other))
        holds = number < limit if self.how == "less than" else number <= limit
        settings.must(self.name, holds, f"be {self.how} {settings.section}{self.other} {limit}")


class Settings:
    """Settings whose bounds and rules across fields are checked when they are made."""

    section: ClassVar[str] = ""
    """The prefix of a field's name in --set, such as "train."."""
    needs: ClassVar[tuple[Needs | Order, ...]] = ()
    tag: ClassVar[str] = ""
    """Field whose value chooses the class of the settings; empty: there is one class."""
    kinds: ClassVar[Mapping[str, str]] = {}
    """Module and class below electra by value of the tag; empty: the class that lists them."""
    of_others: ClassVar[Literal["bodies", "objectives"] | None] = None
    """Entry points of other packages for more values of the tag."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for bounds in getattr(field.type, "__metadata__", ()):
                self.must(field.name, value is None or bounds.holds(value), f"be {bounds}")
        for rule in self.needs:
            rule.check(self)
        self.check()
        kind = self.class_for(getattr(self, self.tag)) if self.tag else type(self)
        if type(self) is not kind:  # a bug: assignments choose the class by the tag
            raise TypeError(f"{self.tag} {getattr(self, self.tag)} has {kind.__name__}")

    @classmethod
    def class_for(cls, value: object) -> type["Settings"]:
        """Return the class for a value of the tag, which another package may have."""
        found: type[Settings] = next((each for each in cls.__mro__ if "kinds" in vars(each)), cls)
        name = str(value)
        if place := cls.kinds.get(name):
            module, _, class_name = place.partition(":")
            found = getattr(import_module(f"electra.{module}"), class_name)
        elif name not in cls.kinds and cls.of_others:
            from electra.outside import list_outside, load_outside

            if name in list_outside(cls.of_others):  # what is no such part is refused when built
                found = getattr(load_outside(cls.of_others, name, object), "settings", found)
        return found

    def check(self) -> None:
        """Raise UserError where a rule across fields does not hold that `needs` cannot say."""

    def must(self, name: str, holds: bool, how: str) -> None:
        """Raise UserError unless a setting is as it must be."""
        require(holds, f"{self.section}{name} must {how}, not {attrgetter(name)(self)!r}")

    def look_up(self, condition: str) -> tuple[str, str, bool]:
        """Return a setting's name and value, and whether a condition of `Needs` holds."""
        name, sign, values = re.split("(!?=|$)", condition, maxsplit=1)
        value = attrgetter(name)(self)
        word = f"{value:g}" if isinstance(value, float) else str(value)
        holds = (word in values.split("|")) == (sign == "=") if sign else bool(value)
        return self.section + name, word, holds


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as nested dictionaries for JSON; `assignments.from_dict` is the inverse.

    An infinite value is text, as in --set: JSON has no such number.
    """

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: "inf" if value == math.inf else value for name, value in pairs}

    return dataclasses.asdict(config, dict_factory=make)
