"""Clip between numbers is one operator, and between what is computed, or in no order, two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node as node

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

FAR = 2**53 + 1
"""No float64."""
CASES: dict[str, tuple[Any, list[Any], bool]] = {
    "both": (np.float32, [0, 6], True),
    "halves": (np.float16, [-0.5, 0.25], True),
    "the lower one": (np.float32, [1], True),
    "the upper one": (np.float32, [None, 1], True),
    "neither": (np.float32, [], True),
    "large integers": (np.int64, [-FAR, FAR], True),
    "no order": (np.float32, [2, -1], False),
}


@pytest.mark.parametrize("name", CASES)
def test_between_numbers(cpu: MLContext, name: str) -> None:
    dtype, bounds, is_clamp = CASES[name]
    given = {f"b{i}": np.asarray(b, dtype) for i, b in enumerate(bounds) if b is not None}
    names = ["" if b is None else f"b{i}" for i, b in enumerate(bounds)]
    elem = {np.float32: 1, np.float16: 10, np.int64: 7}[dtype]
    graph = load(
        model([node("Clip", ["x", *names], ["y"])], {"x": [5]}, ["y"], given, elem=elem), cpu
    )
    assert ("max(" not in str(graph) and "min(" not in str(graph)) is is_clamp
    x = np.asarray([-FAR * 2, -1, 0, 3, FAR * 2] if elem == 7 else [-9, -1, 0, 3, 9], dtype)
    wanted = x
    for bound, function in zip(bounds, (np.maximum, np.minimum), strict=False):
        wanted = wanted if bound is None else function(wanted, np.asarray(bound, dtype))
    assert MLExecution(cpu).compute(graph, {"x": x})["y"].tolist() == wanted.tolist()


def test_between_what_is_computed(cpu: MLContext) -> None:
    clip = node("Clip", ["x", "low"], ["y"])
    graph = load(model([clip], {"x": [3], "low": []}, ["y"], {}), cpu)
    given = {"x": np.asarray([1, 2, 3], np.float32), "low": np.asarray(2, np.float32)}
    assert MLExecution(cpu).compute(graph, given)["y"].tolist() == [2, 2, 3]
