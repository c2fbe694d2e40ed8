"""JSON documents: strict in what is JSON, and fields that know where in the file they stand."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from webnn_py.core.errors import DataError, NotSupportedError
from webnn_py.core.messages import describe_error, shown
from webnn_py.storage.archive import damaged

MAX_BYTES = 2**26
"""The longest document that is written and read; Python's objects take many times as much."""


def to_json(document: object) -> bytes:
    """A document as bytes, in ASCII: half a surrogate pair is escaped.

    Raises:
        NotSupportedError: It is too long, or has an integer of thousands of digits.
    """
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise NotSupportedError(f"a number cannot be written as JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise NotSupportedError(f"{len(text)} bytes of JSON are more than {MAX_BYTES}")
    return text.encode()


def parse(data: bytes | memoryview, where: str) -> Field:
    """What a JSON document holds.

    Args:
        data: Its bytes.
        where: File and entry.

    Raises:
        DataError: It is not JSON, has a name twice, or a number that is none (NaN) or too large.
    """
    if len(data) > MAX_BYTES:
        raise damaged(where, f"{len(data)} bytes of JSON, expected {MAX_BYTES} at most")
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
        raise ValueError("a name stands twice in one object")
    return members


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of the range of numbers")
    return number


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class Field:
    """A value of a document; it never changes.

    Attributes:
        value: What JSON makes of it: dictionaries, lists, strings, numbers, bools and None.
        within: What it stands in; of a whole document, what messages call that.
        step: Its name or number in there.
    """

    value: Any
    within: Field | str
    step: str | int = ""

    @property
    def where(self) -> str:
        """File, entry, and the way to it in the document."""
        if isinstance(self.within, str):
            return self.within
        if isinstance(self.step, int):
            return f"{self.within.where}[{self.step}]"
        between = ": " if isinstance(self.within.within, str) else "."
        return f"{self.within.where}{between}{shown(self.step)[1:-1]}"

    def error(self, what: str) -> DataError:
        """The error that something is wrong here."""
        return damaged(self.where, what)

    def unlike(self, expected: str) -> DataError:
        """The error that something else was expected here."""
        return self.error(f"got {shown(self.value)}, expected {expected}")

    def members(self, *names: str, optional: Sequence[str] = ()) -> dict[str, Field]:
        """The members of an object that has just these, those that are optional maybe not."""
        given = self.mapping()
        for name in names:
            if name not in given:
                raise self.error(f"member {name!r} is missing")
        for name in given:
            if name not in names and name not in optional:
                raise self.error(f"member {shown(name)} is not expected here")
        return given

    def mapping(self) -> dict[str, Field]:
        """The members of an object of any names."""
        if not isinstance(self.value, dict):
            raise self.unlike("an object")
        return {name: Field(value, self, name) for name, value in self.value.items()}

    def items(self, most: int | None = None) -> list[Field]:
        """The members of a list."""
        if not isinstance(self.value, list):
            raise self.unlike("a list")
        if most is not None and len(self.value) > most:
            raise self.error(f"a list of {len(self.value)} members, expected {most} at most")
        return [Field(value, self, i) for i, value in enumerate(self.value)]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.unlike("a string")
        return self.value

    def choice(self, choices: Collection[str]) -> str:
        """One of some strings."""
        if not isinstance(self.value, str) or self.value not in choices:
            raise self.unlike(f"one of {shown(list(choices))}")
        return self.value

    def integer(self, low: int, high: int) -> int:
        """An integer within bounds, both inclusive."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.unlike(f"an integer in {low}..{high}")
        return self.value
