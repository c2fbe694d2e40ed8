"""Strict JSON documents whose fields know their position, for error messages."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from webnn_py.core.errors import DataError, NotSupportedError
from webnn_py.core.messages import describe_error, shown
from webnn_py.storage.archive import damaged

MAX_JSON_BYTES = 2**26
"""Longest document to write or read; as Python objects it takes many times that memory."""


def to_json(document: object) -> bytes:
    """Encode a document as JSON in ASCII.

    Raises:
        NotSupportedError: The text is too long, or an integer has thousands of digits.
    """
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise NotSupportedError(f"a number cannot be written as JSON: {error}") from None
    if len(text) > MAX_JSON_BYTES:
        raise NotSupportedError(f"{len(text)} bytes of JSON are more than {MAX_JSON_BYTES}")
    return text.encode()


def parse(data: bytes | memoryview, where: str) -> Field:
    """Parse a JSON document.

    Args:
        data: The document's bytes.
        where: File and entry, for error messages.

    Raises:
        DataError: The data is not JSON, repeats a name in an object, or contains NaN, an infinity
            or a number out of range.
    """
    if len(data) > MAX_JSON_BYTES:
        raise damaged(where, f"{len(data)} bytes of JSON, expected {MAX_JSON_BYTES} at most")
    try:
        value = json.loads(
            str(data, "utf-8"),
            object_pairs_hook=_members,
            parse_constant=_refuse,
            parse_float=_finite,
        )
    except RecursionError:
        raise damaged(where, "its lists are nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or an integer of thousands of digits
        raise damaged(where, f"it cannot be read as JSON: {describe_error(error)}") from None
    return Field(value, where)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return members


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of the range of numbers")
    return number


@dataclass(slots=True, eq=False)  # a frozen dataclass takes three times as long to construct
class Field:
    """An immutable value of a document with its position.

    Attributes:
        value: The parsed value: dictionaries, lists, strings, numbers, bools and None.
        within: The enclosing field; for a whole document, its name in messages.
        step: Name or index in the enclosing field.
    """

    value: Any
    within: Field | str
    step: str | int = ""

    @property
    def where(self) -> str:
        """File, entry and path of the field in the document."""
        if isinstance(self.within, str):
            return self.within
        if isinstance(self.step, int):
            return f"{self.within.where}[{self.step}]"
        between = ": " if isinstance(self.within.within, str) else "."
        return f"{self.within.where}{between}{shown(self.step)[1:-1]}"

    def error(self, what: str) -> DataError:
        """Return the error for a fault in this field."""
        return damaged(self.where, what)

    def unlike(self, expected: str) -> DataError:
        """Return the error that the value is not as expected."""
        return self.error(f"got {shown(self.value)}, expected {expected}")

    def members(self, *names: str, optional: Sequence[str] = ()) -> dict[str, Field]:
        """Return the members of an object; raise if one is missing or unexpected."""
        fields = self.mapping()
        for name in names:
            if name not in fields:
                raise self.error(f"member {name!r} is missing")
        for name in fields:
            if name not in names and name not in optional:
                raise self.error(f"member {shown(name)} is not expected here")
        return fields

    def mapping(self) -> dict[str, Field]:
        """Return the members of an object, whatever their names."""
        if not isinstance(self.value, dict):
            raise self.unlike("an object")
        return {name: Field(value, self, name) for name, value in self.value.items()}

    def items(self, most: int | None = None) -> list[Field]:
        """Return the members of a list; raise if there are more than `most`."""
        if not isinstance(self.value, list):
            raise self.unlike("a list")
        if most is not None and len(self.value) > most:
            raise self.error(f"a list of {len(self.value)} members, expected {most} at most")
        return [Field(value, self, i) for i, value in enumerate(self.value)]

    def text(self) -> str:
        """Return the value, which must be a string."""
        if not isinstance(self.value, str):
            raise self.unlike("a string")
        return self.value

    def choice(self, choices: Collection[str]) -> str:
        """Return the value, which must be one of `choices`."""
        if not isinstance(self.value, str) or self.value not in choices:
            raise self.unlike(f"one of {shown(list(choices))}")
        return self.value

    def integer(self, low: int, high: int) -> int:
        """Return the value, which must be an integer from `low` to `high`, both inclusive."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.unlike(f"an integer in {low}..{high}")
        return self.value
