"""Products of one operand become one, if its parts are read by strides and nothing else is lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.passes.internal_listings import (
    TENSOR_CORES,
    after,
    assert_keeps,
    recorded,
    results,
)
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.join_products import MIN_ROWS, join_products

SHAPE = (2, MIN_ROWS // 2, 24)
DRAWN = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return DRAWN.normal(size=shape).astype(np.float16)


def heads(b: MLGraphBuilder, y: MLOperand) -> MLOperand:
    *rows, width = y.shape
    return b.reshape(y, [*rows, 2, width // 2])


def attention(
    b: MLGraphBuilder,
    x: MLOperand,
    widths: tuple[int, ...] = (16, 16, 16),
    read: Callable[[MLGraphBuilder, MLOperand], MLOperand] = heads,
) -> MLOperand:
    """Products of x with biases of several ranks, on both sides, and none."""
    parts = []
    for number, width in enumerate(widths):
        y = b.matmul(x, b.constant(drawn(24, width)))
        if number < 3:
            bias = b.constant(drawn(*(1,) * number, width))
            y = b.add(y, bias) if number else b.add(bias, y)
        parts.append(b.relu(read(b, y)))
    return b.concat(parts, axis=len(parts[0].shape) - 1)


@pytest.mark.parametrize("widths", [(16, 16, 16), (32, 8), (24, 16, 8, 40)])
def test_products_of_one_operand_become_one(widths: tuple[int, ...]) -> None:
    graph = recorded(lambda b, x: attention(b, x, widths), SHAPE, "float16")
    made = after(join_products, graph, TENSOR_CORES)
    operators = [node.op for node in made.nodes]
    assert [operators.count(op) for op in ("matmul", "add", "split")] == [1, 1, 1]
    x = drawn(*SHAPE)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_biases_nothing_is_added() -> None:
    def record(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        one, other = (heads(b, b.matmul(x, b.constant(drawn(24, 8)))) for _ in range(2))
        return b.mul(one, other)

    made = after(join_products, recorded(record, SHAPE, "float16"), TENSOR_CORES)
    assert [node.op for node in made.nodes] == ["matmul", "split", "reshape", "reshape", "mul"]


@pytest.mark.parametrize(
    "record",
    [
        lambda b, x: attention(b, x, (16,)),
        lambda b, x: attention(b, x, (12, 12)),
        lambda b, x: attention(b, x, (16, 16), lambda b, y: b.gelu(y)),
        lambda b, x: attention(b, b.slice(x, [0, 0, 0], [2, MIN_ROWS // 2 - 1, 24])),
        lambda b, x: b.matmul(b.matmul(x, b.constant(drawn(24, 24))), b.constant(drawn(24, 24))),
    ],
    ids=["one", "odd widths", "epilogues", "few rows", "a chain"],
)
def test_other_products_stay(record: Callable[[MLGraphBuilder, MLOperand], MLOperand]) -> None:
    graph = recorded(record, SHAPE, "float16")
    assert after(join_products, graph, TENSOR_CORES) is graph


def test_results_of_a_graph_stay() -> None:
    def record(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        y = b.matmul(x, b.constant(drawn(24, 16)))
        return b.add(y, b.matmul(x, b.constant(drawn(24, 16))))

    graph = recorded(record, SHAPE, "float16")
    assert after(join_products, graph, TENSOR_CORES) is graph


def test_without_tensor_cores_and_in_float32_products_stay() -> None:
    assert_keeps(join_products, recorded(attention, SHAPE, "float16"))
    single = recorded(
        lambda b, x: b.concat(
            [heads(b, b.matmul(x, b.constant(np.ones((24, 8), "f4")))) for _ in range(2)], axis=3
        ),
        SHAPE,
    )
    assert after(join_products, single, TENSOR_CORES) is single
