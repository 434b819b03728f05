"""Records: what a user asks a fine-tuned model, as dictionaries, with checks of their fields."""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from electra.config import UserError, did_you_mean, require


@dataclass(frozen=True)
class Record:
    """The fields of one record. A family reads those it needs and ignores the others."""

    number: int
    """Its position among the records of a request, from 1."""
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return a field that is text.

        Raises:
            UserError: The field is missing or not text.
        """
        return self._take(name, str, "text")

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts.

        Raises:
            UserError: The field is missing or not a list of texts.
        """
        values = self._take(name, list, "a list of texts")
        self.require(
            all(isinstance(value, str) for value in values),
            f"{name!r} is {reprlib.repr(values)}; it must be a list of texts",
        )
        return values

    def require(self, rule_holds: bool, message: str) -> None:
        """Raise UserError with the record's number and the message unless the rule holds."""
        require(rule_holds, f"record {self.number}: {message}")

    def _take(self, name: str, kind: type, rule: str) -> Any:
        if name not in self.fields:
            near = did_you_mean(name, map(str, self.fields)) if self.fields else ""
            self.require(False, f"no {name!r}, which must be {rule}{near}")
        value = self.fields[name]
        self.require(
            isinstance(value, kind), f"{name!r} is {reprlib.repr(value)}; it must be {rule}"
        )
        return value


def number_records(values: Iterable[Any]) -> list[Record]:
    """Return dictionaries as records, numbered from 1.

    Raises:
        UserError: One of the values is not a dictionary.
    """
    records = []
    for number, value in enumerate(values, 1):
        if not isinstance(value, Mapping):
            raise UserError(
                f"record {number}: {reprlib.repr(value)} must be a dictionary of fields"
            )
        records.append(Record(number, value))
    return records
