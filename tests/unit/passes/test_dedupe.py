"""Equal nodes and equal constants become one; what differs in a bit does not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.unit.passes.listings import (
    Record,
    after,
    assert_keeps,
    assert_prints,
    recorded,
    results,
    tensor,
)
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.dedupe import merge_duplicates


def test_common_subexpressions() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        one = b.softmax(b.mul(x, b.constant(tensor(2, 3))), 1, label="one")
        two = b.softmax(b.mul(x, b.constant(tensor(2, 3))), 1, label="two")
        upper, lower = b.split(b.add(one, two), 2)
        again, _ = b.split(b.add(one, two), 2)
        return b.concat([upper, lower, again], 0)

    graph = recorded(body)
    assert_prints(
        graph,
        """
        graph(%x: float32[2,3]) {
          %c0: float32[2,3] constant
          %c1: float32[2,3] constant
          %0: float32[2,3] = mul(%x, %c0)
          %1: float32[2,3] = softmax(%0, axis=1)  "one"
          %2: float32[2,3] = mul(%x, %c1)
          %3: float32[2,3] = softmax(%2, axis=1)  "two"
          %4: float32[2,3] = add(%1, %3)
          %5: float32[1,3], %6: float32[1,3] = split(%4, splits=2, axis=0)
          %7: float32[2,3] = add(%1, %3)
          %8: float32[1,3], %9: float32[1,3] = split(%7, splits=2, axis=0)
          %10: float32[3,3] = concat(%5, %6, %8, axis=0)
          return y=%10
        }
        """,
    )
    merged = after(merge_duplicates, graph)
    assert_prints(
        merged,
        """
        graph(%x: float32[2,3]) {
          %c0: float32[2,3] constant
          %0: float32[2,3] = mul(%x, %c0)
          %1: float32[2,3] = softmax(%0, axis=1)  "one"
          %2: float32[2,3] = add(%1, %1)
          %3: float32[1,3], %4: float32[1,3] = split(%2, splits=2, axis=0)
          %5: float32[3,3] = concat(%3, %4, %3, axis=0)
          return y=%5
        }
        """,
    )
    x = tensor(2, 3)
    np.testing.assert_array_equal(results(merged, x), results(graph, x))


@pytest.mark.parametrize(
    "body",
    [
        lambda b, x: b.sub(b.sub(x, b.exp(x)), b.sub(b.exp(x), x)),
        lambda b, x: b.add(b.clamp(x, min_value=0.0), b.clamp(x, min_value=-0.0)),
        lambda b, x: b.add(b.clamp(x, min_value=0.0), b.clamp(x, max_value=0.0)),
        lambda b, x: b.add(b.elu(x, alpha=1.0), b.elu(x, alpha=2.0)),
        lambda b, x: b.add(b.reduce_sum(x, axes=[0]), b.reduce_sum(x, axes=[1])),
        lambda b, x: b.add(b.reduce_sum(x), b.reduce_mean(x)),
    ],
)
def test_other_operands_and_attributes(body: Record) -> None:
    graph = recorded(body, [3, 3])
    exponents = sum(node.op == "exp" for node in graph.nodes)
    left = after(merge_duplicates, graph)
    assert len(left.nodes) == len(graph.nodes) - max(0, exponents - 1)


def _reading(arrays: list[np.ndarray]) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        numbers = [b.reshape(b.cast(b.constant(a), "float32"), [a.size]) for a in arrays]
        return b.concat([b.reshape(x, [6]), *numbers], 0)

    return body


@pytest.mark.parametrize(
    "arrays",
    [
        [np.float32([0.0, 1.0]), np.float32([-0.0, 1.0])],
        [np.float32([1, 2]), np.int32([1, 2])],
        [np.float32([0, 0]), np.int32([0, 0]), np.uint32([0, 0])],
        [np.zeros((2, 3), np.int8), np.zeros((3, 2), np.int8), np.zeros(6, np.int8)],
        [np.float32([1, 2]), np.float32([1, 2.0000002])],
    ],
)
def test_constants_that_only_look_equal(arrays: list[np.ndarray]) -> None:
    assert_keeps(merge_duplicates, recorded(_reading(arrays)))


def test_large_constants_are_read_to_the_end() -> None:
    arrays = [np.zeros((100, 100), np.float32) for _ in range(4)]
    arrays[1][99, 97] = 1
    arrays[3][99, 97] = 1
    graph = after(merge_duplicates, recorded(_reading(arrays)))
    assert [array.max() for array in graph.constants.values()] == [0, 1]
    assert all(a is not b for a, b in pairwise(graph.constants))


def test_equal_not_a_numbers_and_strided_views_are_equal() -> None:
    nan = np.float32([[np.nan, 1], [np.nan, 2]])
    graph = after(merge_duplicates, recorded(_reading([nan, nan.copy(), nan.T.copy().T])))
    assert len(graph.constants) == 1


def test_equal_outputs_share_a_value() -> None:
    graph = recorded(lambda b, x: b.add(b.exp(x), b.exp(x)))
    one, two, _ = graph.nodes
    pair = graph.replace(outputs=[("a", one.output), ("b", two.output)])
    merged = after(merge_duplicates, pair)
    assert_prints(
        merged,
        """
        graph(%x: float32[2,3]) {
          %0: float32[2,3] = exp(%x)
          return a=%0, b=%0
        }
        """,
    )
