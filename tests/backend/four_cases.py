"""Elements computed four at a time by one invocation, of small results taken for large ones."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from tests.backend.kernel_cases import SETTINGS, Case, numbers
from webnn_py import MLOperand

FOURS = tuple(name for name in SETTINGS if "by fours" in name)

MOVED: dict[str, Callable[..., MLOperand]] = {
    "row": lambda b, x, y: b.add(x, b.slice(y, [1, 0], [1, 24])),
    "column": lambda b, x, y: b.sub(b.mul(x, b.slice(y, [0, 3], [10, 1])), y),
    "turned": lambda b, x, y: b.add(b.transpose(b.reshape(x, [24, 10])), y),
    "heads": lambda b, x: b.transpose(b.reshape(x, [10, 3, 8]), permutation=[1, 0, 2]),
    "heads of two": lambda b, x: b.transpose(b.reshape(x, [10, 12, 2]), permutation=[1, 0, 2]),
    "joined": lambda b, x, y: b.concat([x, y], 1),
    "every second": lambda b, x: b.slice(x, [2, 1], [8, 22], strides=[2, 2]),
    "moved": lambda b, x, y: b.slice(b.add(x, y), [1, 6], [8, 16]),
    "reversed": lambda b, x, y: b.add(b.reverse(x, axes=[1]), y),
    "repeated": lambda b, x, y: b.tile(b.add(x, y), [2, 3]),
    "padded": lambda b, x: b.pad(x, [1, 4], [1, 3], mode="reflection"),
    "triangle": lambda b, x, y: b.triangular(b.mul(x, y), diagonal=2),
    "gathered": lambda b, x, y: b.gather(x, b.cast(b.slice(y, [0, 0], [10, 3]), "int32")),
    "cast": lambda b, x, y: b.cast(b.add(x, y), "int32"),
    "cast to halves": lambda b, x, y: b.cast(b.add(x, y), "float16"),
    "chosen": lambda b, x, y: b.where(b.greater(x, y), x, y),
    "both": lambda b, x, y: b.add(b.mul(x, y), b.reverse(b.sub(x, y), axes=[0, 1])),
    "compared": lambda b, x, y: b.greater(x, y),
    "of bytes": lambda b, x, y: b.add(b.cast(b.cast(x, "uint8"), x.data_type), y),
    "of odd size": lambda b, x: b.slice(x, [0, 0], [9, 23]),
}
"""Elements computed by themselves, 4 of whose operands lie side by side, or not."""


def in_fours() -> Iterator[Case]:
    """Four elements an invocation, what lies side by side read at once."""
    few = ("row", "turned", "joined", "both")
    for (name, move), data_type in itertools.product(
        MOVED.items(), ("float32", "float16", "int32", "uint32", "int64")
    ):
        if not data_type.startswith("float") and name not in few:
            continue
        names = list(inspect.signature(move).parameters)[1:]
        inputs = {key: numbers(key, (10, 24), data_type) for key in names}
        yield Case(f"{name} {data_type}", move, inputs, FOURS if name in few else FOURS[:1])
    for data_type in ("int8", "uint8"):
        inputs = {key: numbers(key, (10, 24), data_type) for key in "xy"}
        for name in few:
            yield Case(f"{name} {data_type}", MOVED[name], inputs, FOURS[:1])
    x, i = numbers("x", (12, 8)), np.random.default_rng(0).integers(-12, 12, (5, 1), np.int32)
    scattered = {"x": x, "i": i, "u": numbers("u", (5, 8))}
    yield Case("scattered", lambda b, x, i, u: b.scatter_nd(x, i, u), scattered, FOURS)
    image = {"x": numbers("x", (1, 2, 3, 4))}
    for scale in (2, 3):
        yield Case(
            f"enlarged {scale}",
            lambda b, x, scale=scale: b.resample2d(x, scales=[scale, scale]),
            image,
            FOURS,
        )


CASES = [*in_fours()]
