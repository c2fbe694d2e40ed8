"""Equal nodes and equal constants become one; what differs in a bit does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.passes.listings import (
    Built,
    Record,
    assert_prints,
    nodes,
    operators,
    tensor,
)
from webnn_py import MLGraphBuilder, MLOperand

STAGE = "merge_duplicates"


def test_common_subexpressions() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        one = b.softmax(b.mul(x, b.constant(tensor(2, 3))), 1, label="one")
        two = b.softmax(b.mul(x, b.constant(tensor(2, 3))), 1, label="two")
        upper, lower = b.split(b.add(one, two), 2)
        again, _ = b.split(b.add(one, two), 2)
        return b.concat([upper, lower, again], 0)

    built = Built(body)
    assert_prints(
        built.after(STAGE),
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
    built.assert_computes(tensor(2, 3))


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
    built = Built(body, [3, 3])
    exponents = operators(built.before(STAGE)).count("exp")
    left = len(nodes(built.before(STAGE))) - max(0, exponents - 1)
    assert len(nodes(built.after(STAGE))) == left


def _reading(arrays: list[np.ndarray]) -> Record:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        kinds: list[Any] = [array.dtype.name for array in arrays]
        return {
            f"y{i}": b.max(b.cast(x, kind), b.constant(array))
            for i, (kind, array) in enumerate(zip(kinds, arrays, strict=True))
        }

    return body


def assert_constants(arrays: list[np.ndarray], count: int) -> None:
    """So many are left."""
    built = Built(_reading(arrays), [1])
    assert built.after(STAGE).count(" constant") == count
    built.assert_computes(np.float32([-5]))


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
    assert_constants(arrays, len(arrays))


def test_large_constants_are_read_to_the_end() -> None:
    arrays = [np.zeros((100, 100), np.float32) for _ in range(4)]
    arrays[1][99, 97] = 1
    arrays[3][99, 97] = 1
    assert_constants(arrays, 2)


def test_equal_not_a_numbers_and_strided_views_are_equal() -> None:
    nan = np.float32([[np.nan, 1], [np.nan, 2]])
    assert_constants([nan, nan.copy(), nan.T.copy().T], 1)


def test_equal_outputs_share_a_value() -> None:
    assert_prints(
        Built(lambda b, x: {"a": b.exp(x), "b": b.exp(x)}).after(STAGE),
        """
        graph(%x: float32[2,3]) {
          %0: float32[2,3] = exp(%x)
          return a=%0, b=%0
        }
        """,
    )
