"""Showing what was got in a message: in few characters, whatever it is, and never with an error.

What users give may be a number of a million digits, an array, or an object whose `__repr__` raises.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

LOG = logging.getLogger("webnn_py")
"""For what users should know, and nothing is raised over."""

MAX_LENGTH = 160
"""Characters of a shown object at most."""


class _Short(reprlib.Repr):
    """`repr`, with what is long left out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 12
        self.maxarray, self.maxdict, self.maxstring, self.maxother = 4, 4, 80, 80

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 256:
            return f"an integer of {value.bit_length()} bits"
        return str(value)

    def repr_bytes(self, value: bytes, level: int) -> str:
        more = f"… ({len(value)} bytes)" if len(value) > 16 else ""
        return repr(value[:16]) + more

    repr_bytearray = repr_bytes

    def repr_ndarray(self, value: np.ndarray[Any, Any], level: int) -> str:
        return f"array {value.dtype}[{','.join(map(str, value.shape))}]"


_SHORT = _Short()


def shown(value: object) -> str:
    """An object for a message: its `repr` in at most 160 printable characters."""
    try:
        text = printable(_SHORT.repr(value))
    except Exception:  # whatever its own methods raise
        return f"<{type_name(value)}>"
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


@functools.lru_cache(maxsize=1024)
def named(kind: str, name: str) -> str:
    """What an operand of a graph is called in messages; kept, as each run asks for it."""
    return f"{kind} {shown(name)}"


def printable(text: str) -> str:
    """The text in one line; what is not printable is escaped."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def is_text(text: str) -> bool:
    """Whether all of a string are characters: half a surrogate pair is none."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def type_name(value: object) -> str:
    """The name of an object's type, whatever its metaclass makes of it."""
    name: str = type.__getattribute__(type(value), "__name__")
    return name


def said(error: BaseException) -> str:
    """An error of somebody else's code in a message: its type and what it says."""
    try:
        text = printable(str(error))
    except Exception:  # whatever its own methods raise
        text = ""
    short = text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
    return f"{type_name(error)}: {short}" if short else type_name(error)


def python_name(idl: str) -> str:
    """A name of the specification's IDL in Python: convTranspose2d -> conv_transpose2d."""
    return re.sub(r"(?<=[a-z0-9])([A-Z]+)", r"_\1", idl.replace("NaN", "Nan")).lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """The known name that may have been meant, as the end of a message; empty if there is none."""
    names = list(known)
    spelt = python_name(name)
    if spelt != name and spelt in names:
        return f"; names are in snake_case here: {spelt}"
    wanted = [form for form in (spelt, f"{spelt}_sync") if form in names]
    near = wanted or difflib.get_close_matches(spelt, names, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


class Suggesting:
    """An object that tells, where an attribute is missing, which one may have been meant."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type_name(self)!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                public = (known for known in dir(type(self)) if not known.startswith("_"))
                message += suggestion(name, public)
            raise AttributeError(message, name=name, obj=self)
