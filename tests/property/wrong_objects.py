"""Objects that no argument wants: of every kind, malformed, and with methods that raise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

HUGE = 10**5000  # more digits than Python turns into text


class Boom(Exception):
    """What the methods of these objects raise; it must never come out alone."""


def boom(*_: Any, **__: Any) -> Any:
    raise Boom("boom")


class Text(str):
    """A string with methods of its own."""

    __repr__ = __str__ = __format__ = boom


class Whole(int):
    """An integer that is none."""

    __repr__ = __int__ = __index__ = __trunc__ = __float__ = boom


class Names(Mapping[str, Any]):
    """A mapping that cannot be read."""

    __getitem__ = __iter__ = __len__ = boom


class Hostile:
    """Every question to it is answered with an error."""

    __repr__ = __str__ = __bool__ = __len__ = __iter__ = __getitem__ = __getattr__ = boom
    __eq__ = __int__ = __index__ = __float__ = __call__ = __contains__ = boom
    __hash__ = object.__hash__


def producer(device: Any, gives: Any) -> object:
    """Something that speaks DLPack badly."""

    class Producer:
        def __dlpack_device__(self) -> Any:
            return device() if callable(device) else device

        def __dlpack__(self, **_: Any) -> Any:
            return gives() if callable(gives) else gives

    return Producer()


def with_attribute(name: str, value: Any) -> object:
    """Something with a protocol's attribute, malformed."""
    return type("Malformed", (), {name: value})()


def released() -> memoryview:
    view = memoryview(bytearray(24))
    view.release()
    return view


def array_of_hostile() -> np.ndarray:
    made = np.empty(1, object)
    made[0] = Hostile()
    return made


def failing() -> Iterator[int]:
    yield 1
    boom()


ARRAY = np.zeros((2, 3), np.float32)
INTERFACE = ARRAY.__array_interface__

WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "-inf": lambda: -math.inf,
    "2**64": lambda: 2**64,
    "huge": lambda: HUGE,
    "-huge": lambda: -HUGE,
    "1j": lambda: 1j,
    "whole": lambda: Whole(3),
    "empty": lambda: "",
    "x": lambda: "x",
    "float32": lambda: "float32",
    "surrogate": lambda: "\ud800",
    "zero byte": lambda: "a\0b\n",
    "long": lambda: "x" * 100_000,
    "text": lambda: Text("x"),
    "bytes": lambda: b"x",
    "bytearray": lambda: bytearray(5),
    "released": released,
    "[]": list,
    "[None]": lambda: [None],
    "[huge]": lambda: [HUGE],
    "[1, [2]]": lambda: [1, [2]],
    "()": lambda: (),
    "(1, -1)": lambda: (1, -1),
    "{}": dict,
    "{'x': None}": lambda: {"x": None},
    "{1: 2}": lambda: {1: 2},
    "{None: ''}": lambda: {None: ""},
    "{'y': huge}": lambda: {"y": HUGE},
    "{'resource'}": lambda: {"resource": None},
    "{'buffer'}": lambda: {"buffer": None},
    "names": Names,
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "generator": lambda: (n for n in (1, 2)),
    "failing generator": failing,
    "endless": itertools.count,
    "object": object,
    "class": lambda: np.ndarray,
    "function": lambda: boom,
    "module": lambda: np,
    "array 0-d": lambda: np.array(1),
    "array": lambda: np.array([1, 2]),
    "array float64": lambda: np.zeros((2, 3)),
    "array of text": lambda: np.array(["a", "b"]),
    "array of objects": lambda: np.array([None, 1], object),
    "array of records": lambda: np.zeros(2, "i4,f4"),
    "array of dates": lambda: np.zeros(2, "M8[s]"),
    "empty array": lambda: np.zeros((0, 3), np.float32),
    "masked": lambda: np.ma.masked_array(ARRAY, mask=True),
    "float32(1)": lambda: np.float32(1),
    "float64(nan)": lambda: np.float64("nan"),
    "int64(-1)": lambda: np.int64(-1),
    "bool_": lambda: np.bool_(True),
    "NaT": lambda: np.datetime64("NaT", "s"),
    "timedelta64": lambda: np.timedelta64(1, "s"),
    "hostile": Hostile,
    "hostile class": lambda: Hostile,
    "array of hostile": array_of_hostile,
    "[hostile]": lambda: [Hostile()],
    "{'x': hostile}": lambda: {"x": Hostile()},
    "dlpack": lambda: producer((1, 0), None),
    "dlpack boom": lambda: producer((1, 0), boom),
    "dlpack device": lambda: producer(None, None),
    "dlpack device boom": lambda: producer(boom, boom),
    "dlpack device empty": lambda: producer((), None),
    "dlpack attribute": lambda: with_attribute("__dlpack__", 5),
    "dlpack property": lambda: with_attribute("__dlpack__", property(boom)),
    "interface": lambda: with_attribute("__array_interface__", 5),
    "interface {}": lambda: with_attribute("__array_interface__", {}),
    "interface property": lambda: with_attribute("__array_interface__", property(boom)),
    "interface shape": lambda: with_attribute(
        "__array_interface__", {**INTERFACE, "shape": ("a",)}
    ),
    "interface type": lambda: with_attribute("__array_interface__", {**INTERFACE, "typestr": "?"}),
    "__array__": lambda: with_attribute("__array__", boom),
    "shape": lambda: with_attribute("shape", property(boom)),
}
"""How each is made, by a name."""
