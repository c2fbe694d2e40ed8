"""Large arrays that the reference engine computes part by part give what they give as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graphs import build
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand, ml
from webnn_py.engines.reference import parts

Make = Callable[..., MLOperand]
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 5, 7)).astype(np.float32)
PLACES = RANDOM.integers(-7, 7, (3, 5, 4)).astype(np.int32)
CASES: dict[str, tuple[Make, tuple[Any, ...]]] = {
    "gelu": (lambda b, x: b.gelu(x), (X,)),
    "add a row": (lambda b, x, y: b.add(x, y), (X, X[0, :1])),
    "add a column": (lambda b, x, y: b.add(x, y), (X[:1, :, :1], X)),
    "where": (lambda b, x, y: b.where(b.greater(x, y), x, y), (X, X[::-1])),
    "cast": (lambda b, x: b.cast(x, "int8"), (X * 300,)),
    "integers": (lambda b, x: b.div(b.cast(x, "int32"), b.constant(3, "int32")), (X * 300,)),
    "softmax": (lambda b, x: b.softmax(x, 1), (X,)),
    "softmax of the first": (lambda b, x: b.softmax(x, 0), (X,)),
    "softmax of float16": (lambda b, x: b.softmax(b.cast(x, "float16"), 2), (X,)),
    "gather": (lambda b, x, i: b.gather_elements(x, i, axis=2), (X, PLACES)),
    "scatter": (
        lambda b, x, i: b.scatter_elements(x, i, b.slice(x, [0, 0, 0], [3, 5, 4]), axis=2),
        (X, np.sort(PLACES % 7)),
    ),
    "top k": (lambda b, x: b.arg_top_k(x, 1, 3), (X,)),
    "least": (lambda b, x: b.arg_top_k(x, 2, 3, largest=False), (X,)),
    "sums": (lambda b, x: b.cumulative_sum(x, 2), (X,)),
    "sums of others": (lambda b, x: b.cumulative_sum(x, 2, exclusive=True, reversed=True), (X,)),
    "sums of columns": (lambda b, x: b.cumulative_sum(x, 0, reversed=True), (X,)),
    "sums of integers": (lambda b, x: b.cumulative_sum(b.cast(x, "int32"), 1), (X * 2e9,)),
    "tile": (lambda b, x: b.tile(x, [2, 1, 3]), (X,)),
    "enlarged": (lambda b, x: b.resample2d(b.reshape(x, [1, 3, 5, 7]), mode="linear"), (X,)),
    "enlarged by two": (
        lambda b, x: b.resample2d(b.reshape(x, [3, 5, 1, 7]), mode="linear", scales=[2, 3]),
        (X,),
    ),
    "products": (lambda b, x, y: b.matmul(x, y), (X, X.transpose(0, 2, 1))),
    "products with one": (lambda b, x, y: b.matmul(x, y), (X, X[0].T)),
}


@pytest.fixture(scope="module")
def reference() -> MLContext:
    return ml.create_context_sync(engine="reference")


@pytest.mark.parametrize("tile", [1, 4, 20])
@pytest.mark.parametrize("case", CASES)
def test_parts_are_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, reference: MLContext, case: str, tile: int
) -> None:
    make, arrays = CASES[case]
    inputs = {f"x{n}": np.ascontiguousarray(array) for n, array in enumerate(arrays)}

    def outputs(b: MLGraphBuilder) -> dict[str, MLOperand]:
        given = (b.input(name, array.dtype.name, array.shape) for name, array in inputs.items())
        return {"y": make(b, *given)}

    graph = build(reference, outputs)
    mode = MLExecution(reference)
    whole = mode.compute(graph, inputs)["y"]
    for module in _users():
        monkeypatch.setattr(module, "TILE_ELEMENTS", tile)
    np.testing.assert_array_equal(mode.compute(graph, inputs)["y"], whole)


def _users() -> list[Any]:
    """The modules that have its size."""
    from webnn_py.engines.reference import linalg, scan

    return [parts, linalg, scan]


def test_parts_make_up_all_and_are_small() -> None:
    for shape in ((3, 5, 7), (105,), (1, 1, 105), (0, 4), ()):
        seen = np.zeros(shape, int)
        for place in parts.parts(shape):
            seen[place] += 1
        assert (seen == 1).all()


def test_parts_of_large_shapes_are_small() -> None:
    for shape, whole in (((64, 1 << 20), ()), ((1 << 20, 64), (1,)), ((8, 8, 1 << 18), (0,))):
        array = np.broadcast_to(np.zeros((), np.int8), shape)
        sizes = [array[place].size for place in parts.parts(shape, whole)]
        assert sum(sizes) == array.size
        assert max(sizes) <= parts.TILE_ELEMENTS
