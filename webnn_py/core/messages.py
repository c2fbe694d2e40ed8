"""Formatting of objects for messages: short, printable, and never raising.

Users may pass a number of a million digits, an array, or an object whose `__repr__` raises.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import re
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

LOG = logging.getLogger("webnn_py")
"""Logger for facts that users should know but that are no errors."""

MAX_SHOWN_CHARS = 160
"""Longest text of an object in a message, in characters."""


class _Short(reprlib.Repr):
    """Abbreviating `repr`."""

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
    """Return the `repr` of an object in at most 160 printable characters."""
    if _is_awaitable(value):
        return type_name(value)
    try:
        text = printable(_SHORT.repr(value))
    except Exception:  # its own methods may raise anything
        return f"<{type_name(value)}>"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


class Deferred:
    """Message that is composed when it is shown, because many errors are caught before.

    Args:
        compose: Returns the text.
        *parts: Its arguments.
    """

    def __init__(self, compose: Callable[..., str], *parts: object) -> None:
        self._compose, self._parts = compose, parts

    def __str__(self) -> str:
        return self._compose(*self._parts)

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


@functools.lru_cache(maxsize=1024)
def named(kind: str, name: str) -> str:
    """Return the title of a graph's operand in messages; cached, as each run needs it."""
    return f"{kind} {shown(name)}"


def printable(text: str) -> str:
    """Return the text in one line, with escapes for characters that are not printable."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """Return the text with its line ends, other characters escaped as by `printable`."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def is_text(text: str) -> bool:
    """Whether a string contains no lone surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def type_name(value: object) -> str:
    """Return the name of an object's type, even with an unusual metaclass."""
    name: str = type.__getattribute__(type(value), "__name__")
    if isinstance(value, types.CoroutineType):
        return f"a coroutine (put await before the call of {value.__qualname__})"
    return f"{name} (put await before it)" if _is_awaitable(value) else name


def _is_awaitable(value: object) -> bool:
    mro: tuple[type, ...] = type.__getattribute__(type(value), "__mro__")
    return any("__await__" in type.__getattribute__(base, "__dict__") for base in mro)


def describe_error(error: BaseException) -> str:
    """Return the type and message of another library's error, shortened."""
    try:
        text = printable(str(error))
    except Exception:  # its own methods may raise anything
        text = ""
    short = text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
    return f"{type_name(error)}: {short}" if short else type_name(error)


def python_name(idl: str) -> str:
    """Convert a name of WebNN's IDL to Python: convTranspose2d to conv_transpose2d."""
    return re.sub(r"(?<=[a-z0-9])([A-Z]+)", r"_\1", idl.replace("NaN", "Nan")).lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that was probably meant, or an empty string."""
    names = list(known)
    spelt = python_name(name)
    if spelt != name and spelt in names:
        return f"; names are in snake_case here: {spelt}"
    wanted = [form for form in (spelt, f"{spelt}_sync") if form in names]
    near = wanted or difflib.get_close_matches(spelt, names, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


P = ParamSpec("P")
T = TypeVar("T")


def suggest_options(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to name the option that was probably meant by an unknown one.

    The error is Python's own TypeError, as for any call that does not fit a signature.
    """
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    has = frozenset(known)

    def check(options: Iterable[str]) -> None:
        for option in options:
            if option not in has:
                meant = suggestion(option, known) or f"; it takes {', '.join(known)}"
                name = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{name}() got an unexpected keyword argument {option!r}{meant}")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(kwargs)
            return await function(*args, **kwargs)

        return awaited  # type: ignore[return-value]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        check(kwargs)
        return function(*args, **kwargs)

    return called


def did_you_mean(text: object, choices: Iterable[str], others: Mapping[str, str]) -> str:
    """Return a hint with the choice that was probably meant, or an empty string.

    Args:
        text: The value from the user.
        choices: The valid strings.
        others: Names from elsewhere, in lower case, with the choice that each stands for.
    """
    if not isinstance(text, str):
        return ""
    names = list(choices)
    low = str.lower(text)
    near = [others[low]] if low in others else difflib.get_close_matches(low, names, 1, 0.75)
    return f"; did you mean {near[0]!r}?" if near else ""


class Suggesting:
    """Base class whose errors name the attribute or option that was probably meant.

    It checks the options of `__init__`, if it has any, and of methods with keyword-only options;
    other methods are called too often.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, member in [*vars(cls).items()]:
            if not inspect.isfunction(member) or (name.startswith("_") and name != "__init__"):
                continue
            parameters = inspect.signature(member).parameters.values()
            has_defaults = any(one.default is not one.empty for one in parameters)
            keyword_only = any(one.kind is one.KEYWORD_ONLY for one in parameters)
            if keyword_only or (name == "__init__" and has_defaults):
                setattr(cls, name, suggest_options(member))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type_name(self)!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                public = (known for known in dir(type(self)) if not known.startswith("_"))
                message += suggestion(name, public)
            raise AttributeError(message, name=name, obj=self)
