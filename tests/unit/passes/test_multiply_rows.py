"""Rows times large weights become convolutions of one element; other products stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.passes.listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.multiply_rows import multiply_rows

Step = Callable[[MLGraphBuilder, MLOperand], MLOperand]
SHAPE = (1, 1024)
WEIGHTS = (1024, 520)


def floats(b: MLGraphBuilder, *shape: int) -> MLOperand:
    array = np.random.default_rng(len(shape)).normal(size=shape)
    return b.constant(array.astype(np.float32))


PRODUCTS: dict[str, Step] = {
    "alone": lambda b, x: b.gemm(x, floats(b, *WEIGHTS)),
    "transposed": lambda b, x: b.gemm(x, floats(b, *WEIGHTS[::-1]), b_transpose=True),
    "with a row": lambda b, x: b.gemm(x, floats(b, *WEIGHTS), c=floats(b, 520)),
    "with a number": lambda b, x: b.gemm(x, floats(b, *WEIGHTS), c=floats(b, 1, 1)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_are_convolved(name: str) -> None:
    graph = recorded(PRODUCTS[name], SHAPE)
    made = after(multiply_rows, graph)
    assert [node.op for node in made.nodes] == ["reshape", "conv2d", "reshape"]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["alone", "transposed"])
def test_weights_stay_as_they_lie(name: str) -> None:
    graph = recorded(PRODUCTS[name], SHAPE)
    made = after(multiply_rows, graph)
    (given,) = graph.constants.values()
    (kept,) = made.constants.values()
    assert np.shares_memory(given, kept)


STAYING: dict[str, tuple[Step, tuple[int, ...]]] = {
    "two rows": (PRODUCTS["alone"], (2, 1024)),
    "few weights": (lambda b, x: b.gemm(x, floats(b, 1024, 500)), SHAPE),
    "channels that fill no blocks": (lambda b, x: b.gemm(x, floats(b, 1000, 600)), (1, 1000)),
    "weights that are computed": (
        lambda b, x: b.gemm(x, b.mul(floats(b, *WEIGHTS), b.reshape(x, [1024, 1]))),
        SHAPE,
    ),
    "a summand that is computed": (
        lambda b, x: b.gemm(x, floats(b, 1024, 1024), c=x),
        SHAPE,
    ),
    "a factor": (lambda b, x: b.gemm(x, floats(b, *WEIGHTS), alpha=2), SHAPE),
    "a column": (lambda b, x: b.gemm(x, floats(b, 1, 1 << 19), a_transpose=True), (1, 1)),
}


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    step, shape = STAYING[name]
    assert_keeps(multiply_rows, recorded(step, shape))


def test_other_data_types_and_open_rows_stay() -> None:
    def halves(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.gemm(x, b.constant(np.ones(WEIGHTS, np.float16)))

    assert_keeps(multiply_rows, recorded(halves, SHAPE, "float16"))
    assert_keeps(multiply_rows, recorded(PRODUCTS["alone"], ["n", 1024]))
