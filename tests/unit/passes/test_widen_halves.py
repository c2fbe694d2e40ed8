"""float16 becomes float32 between a graph's ends, and what rounds to float16 still does."""

from __future__ import annotations

import numpy as np

from tests.unit.passes.internal_listings import (
    after,
    assert_keeps,
    assert_prints,
    recorded,
    results,
)
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes import widen_halves

HALVES = np.array([[1, 2, 3], [4, 5, 6]], np.float16)


def test_ends_stay_and_weights_are_widened() -> None:
    graph = recorded(lambda b, x: b.relu(b.add(x, b.constant(HALVES))), (2, 3), data_type="float16")
    made = after(widen_halves, graph)
    assert_prints(
        made,
        """
        graph(%x: float16[2,3]) {
          %c0: float32[2,3] constant
          %0: float32[2,3] = cast(%x, data_type=float32)
          %1: float32[2,3] = add(%0, %c0)
          %2: float32[2,3] = relu(%1)
          %3: float16[2,3] = cast(%2, data_type=float16)
          return y=%3
        }
        """,
    )
    np.testing.assert_array_equal(results(made, HALVES)[0], results(graph, HALVES)[0])


def test_numbers_are_those_that_float16_holds() -> None:
    graph = recorded(lambda b, x: b.hard_sigmoid(x), (2, 3), data_type="float16")
    made = after(widen_halves, graph)
    x = np.full((2, 3), -2.5, np.float16)
    np.testing.assert_array_equal(results(made, x)[0], results(graph, x)[0])
    assert results(made, x)[0].any()


def test_numbers_that_float16_does_not_hold() -> None:
    """An option would have to be infinite."""
    assert_keeps(widen_halves, recorded(lambda b, x: b.elu(x, alpha=1e6), data_type="float16"))


def test_what_is_cast_to_float16_is_rounded() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        return b.cast(b.mul(b.cast(x, "float16"), b.constant(np.float16(3))), "float32")

    graph = recorded(body)
    made = after(widen_halves, graph)
    assert [node.op for node in made.nodes] == ["cast", "cast", "mul", "cast"]
    x = np.full((2, 3), 1 + 2.0**-12, np.float32)
    np.testing.assert_array_equal(results(made, x)[0], np.full((2, 3), 3, np.float32))


def test_several_outputs_and_operands_of_other_types() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        first, second = b.split(x, 2, axis=0)
        chosen = b.where(b.greater(first, second), first, second)
        return b.concat([chosen, b.gather(x, b.constant(np.array([1], np.int32)))], 0)

    graph = recorded(body, (2, 3), data_type="float16")
    made = after(widen_halves, graph)
    np.testing.assert_array_equal(results(made, HALVES)[0], results(graph, HALVES)[0])


def test_graphs_without_float16_stay() -> None:
    assert_keeps(widen_halves, recorded(lambda b, x: b.relu(x)))
