"""The places of the greatest elements: those of windows, for every way to lay these out."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from tests.onnx.models import model
from webnn_py import MLAwaitedExecution, MLContext
from webnn_py.onnx import load

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8


def by_hand(x: Any, taps: Any, **options: Any) -> tuple[Any, Any]:
    """Each window's elements one after the other, as ONNX describes it."""
    rank = len(taps)
    strides, dilations = (options.get(k) or [1] * rank for k in ("strides", "dilations"))
    size, reach = x.shape[2:], [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
    auto, pads = options.get("auto_pad", ""), options.get("pads") or [0] * (2 * rank)
    if auto.startswith("SAME"):
        total = [
            max(0, (-(-n // s) - 1) * s + r - n)
            for n, s, r in zip(size, strides, reach, strict=True)
        ]
        low = [t // 2 if auto == "SAME_UPPER" else -(-t // 2) for t in total]
        pads = [*low, *(t - b for t, b in zip(total, low, strict=True))]
    counts = []
    for i in range(rank):
        room = size[i] + pads[i] + pads[i + rank] - reach[i]
        count = (-(-room // strides[i]) if options.get("ceil_mode") else room // strides[i]) + 1
        if options.get("ceil_mode") and (count - 1) * strides[i] >= size[i] + pads[i]:
            count -= 1
        counts.append(count)
    steps = [
        math.prod(size[:i]) if options.get("storage_order") else math.prod(size[i + 1 :])
        for i in range(rank)
    ]
    best = np.empty([*x.shape[:2], *counts], x.dtype)
    places = np.empty(best.shape, np.int64)
    for window in itertools.product(*map(range, best.shape)):
        plane = x[window[:2]]
        found = None
        for tap in itertools.product(*map(range, taps)):
            at = tuple(
                window[2 + i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank)
            )
            inside = all(0 <= a < n for a, n in zip(at, size, strict=True))
            if inside and (found is None or plane[at] > plane[found]):
                found = at
        assert found is not None
        best[window] = plane[found]
        first = (window[0] * x.shape[1] + window[1]) * math.prod(size)
        places[window] = first + sum(a * b for a, b in zip(found, steps, strict=True))
    return best, places


CASES: dict[str, tuple[list[int], dict[str, Any], int]] = {
    "plain": ([2, 3, 8, 6], {"kernel_shape": [2, 2], "strides": [2, 2]}, FLOAT),
    "overlapping": ([1, 2, 7, 6], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, FLOAT),
    "one line": ([2, 2, 11], {"kernel_shape": [5], "strides": [2], "pads": [2, 1]}, FLOAT),
    "volume": (
        [1, 2, 5, 6, 4],
        {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1], "pads": [1, 0, 0, 0, 1, 1]},
        FLOAT,
    ),
    "dilated": (
        [1, 2, 9, 8],
        {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 2, 3, 0]},
        FLOAT,
    ),
    "rounded up": (
        [1, 2, 8, 7],
        {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
        FLOAT,
    ),
    "rounded up and padded": (
        [1, 1, 7, 8],
        {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [1, 1, 0, 1]},
        FLOAT,
    ),
    "same, upper": (
        [1, 2, 7, 5],
        {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        FLOAT,
    ),
    "same, lower": (
        [1, 2, 7, 5],
        {"kernel_shape": [2, 4], "strides": [2, 1], "auto_pad": "SAME_LOWER"},
        FLOAT,
    ),
    "column by column": (
        [2, 2, 6, 5],
        {"kernel_shape": [3, 3], "strides": [2, 1], "storage_order": 1},
        FLOAT,
    ),
    "large window": ([1, 2, 16, 13], {"kernel_shape": [11, 13], "strides": [2, 1]}, FLOAT),
    "one element": ([1, 2, 5, 4], {"kernel_shape": [1, 1], "strides": [2, 3]}, FLOAT),
    "int8": ([1, 2, 7, 6], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, INT8),
    "uint8": ([1, 2, 7, 6], {"kernel_shape": [3, 2], "pads": [2, 1, 0, 0]}, UINT8),
}


def values(shape: list[int], elem: int, is_low: bool) -> Any:
    """Numbers with many equal ones; or all of them the lowest, as padding is."""
    dtype = {FLOAT: "f4", INT8: "i1", UINT8: "u1"}[elem]
    if is_low:
        return np.full(shape, {FLOAT: -np.inf, INT8: -128, UINT8: 0}[elem], dtype)
    drawn = np.random.default_rng(3).integers(0, 9, shape)
    return (
        drawn.astype("u1") if elem == UINT8 else (drawn - 4).astype("i1" if elem == INT8 else "f4")
    )


@pytest.mark.parametrize("name", CASES)
def test_places(own: MLContext, name: str) -> None:
    shape, options, elem = CASES[name]
    made = model(
        [make_node("MaxPool", ["x"], ["y", "i"], **options)], {"x": shape}, "yi", elem=elem
    )
    graph = load(made, own)
    taps, rest = options["kernel_shape"], {k: v for k, v in options.items() if k != "kernel_shape"}
    for is_low in (False, True):
        x = values(shape, elem, is_low)
        found = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))
        best, places = by_hand(x, taps, **rest)
        if not is_low or elem != FLOAT:  # of minus infinity alone, D46 of spec/deviations.md
            np.testing.assert_array_equal(found["y"], best)
        np.testing.assert_array_equal(found["i"], places)
