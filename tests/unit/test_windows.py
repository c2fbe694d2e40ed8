"""Sliding windows of the reference engine: in parts or at once, the results are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import build, normal
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand
from webnn_py.engines.reference import window

Make = Callable[[MLGraphBuilder, MLOperand], MLOperand]
POOLS: dict[str, Make] = {
    name: lambda b, x, name=name: getattr(b, name)(  # type: ignore[misc]
        x, window_dimensions=[3, 2], padding=[1, 1, 0, 1], strides=[2, 1]
    )
    for name in ("average_pool2d", "l2_pool2d", "max_pool2d")
}
CASES: dict[str, Make] = {
    **POOLS,
    "conv2d": lambda b, x: b.conv2d(
        x, b.constant(normal(6, 2, 3, 3)), bias=b.constant(normal(6)), groups=2, padding=[1] * 4
    ),
    "conv_transpose2d": lambda b, x: b.conv_transpose2d(
        x, b.constant(normal(4, 3, 3, 3)), strides=[2, 2]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_make_the_whole(cpu: MLContext, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": CASES[name](b, b.input("x", "float32", [5, 4, 7, 6]))}

    graph, execution = build(cpu, what), MLExecution(cpu)
    inputs = {"x": normal(5, 4, 7, 6, seed=3)}
    whole = execution.compute(graph, inputs)["y"]
    for size in (1, 3000):  # a sample and a row at a time; a few
        monkeypatch.setattr(window, "TILE_BYTES", size)
        parts = execution.compute(graph, inputs)["y"]
        np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-6)
