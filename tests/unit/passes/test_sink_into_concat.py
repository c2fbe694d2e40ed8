"""What is computed of a concat is computed of its parts where kernels make all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.internal_listings import after, assert_keeps, recorded, results
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.passes.sink_into_concat import sink_into_concat

SHAPE = (1, 2, 4, 4)


def parts(b: MLGraphBuilder, x: MLOperand) -> list[MLOperand]:
    return [b.max_pool2d(x), b.neg(b.average_pool2d(x))]


def test_parts_are_computed_first() -> None:
    graph = recorded(lambda b, x: b.relu(b.relu(b.concat(parts(b, x), 1))), SHAPE)
    made = after(sink_into_concat, graph)
    assert [node.op for node in made.nodes] == [
        *("max_pool2d", "average_pool2d", "neg"),
        *("relu", "relu", "concat", "relu"),
    ]
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for one, other in zip(results(graph, x), results(made, x), strict=True):
        np.testing.assert_array_equal(one, other)


def given(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.relu(b.concat([b.max_pool2d(x, window_dimensions=[1, 1]), x], 1))


def read_twice(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    whole = b.concat(parts(b, x), 1)
    return b.mul(b.relu(whole), whole)


def part_read_twice(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    one, other = parts(b, x)
    return b.mul(b.relu(b.concat([one, other], 2)), b.concat([other, one], 2))


@pytest.mark.parametrize("record", [given, read_twice, part_read_twice])
def test_others_stay(record: object) -> None:
    assert_keeps(sink_into_concat, recorded(record, SHAPE))  # type: ignore[arg-type]
