"""Rows that a software adapter goes over four elements at a time, and what is read on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.backend.compared import assert_close
from tests.backend.emitted import code_of
from tests.graphs import Build, build, normal
from webnn_py import MLAwaitedExecution, MLContext, MLExecution, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

Outputs = dict[str, MLOperand]


def floats(b: MLGraphBuilder, name: str, *shape: int) -> MLOperand:
    return b.input(name, "float32", shape)


def normalized(b: MLGraphBuilder, x: MLOperand, axes: list[int], *extra: MLOperand) -> Outputs:
    """Two reductions, and what each element of a row is then computed from."""
    mean = b.reduce_mean(x, axes=axes, keep_dimensions=True)
    apart = b.sub(x, mean)
    square = b.reduce_mean(b.mul(apart, apart), axes=axes, keep_dimensions=True)
    y = b.div(apart, b.sqrt(b.add(square, b.constant(0.1, "float32"))))
    for other in extra:
        y = b.add(b.mul(y, other), other)
    return {"y": y}


def by_column(b: MLGraphBuilder) -> Outputs:
    return normalized(b, floats(b, "x", 19, 24), [1], b.constant(normal(24)), floats(b, "z", 24))


def by_row(b: MLGraphBuilder) -> Outputs:
    """A number for each row, and one for each channel of several rows."""
    x = floats(b, "x", 3, 5, 4, 4)
    row, channel = floats(b, "z", 3, 5, 1, 1), b.constant(normal(1, 5, 1, 1))
    return normalized(b, x, [2, 3], row, channel)


def by_part(b: MLGraphBuilder) -> Outputs:
    """What is broadcast along one of two reduced dimensions, and is read as often."""
    x = floats(b, "x", 3, 5, 8)
    return normalized(b, x, [1, 2], floats(b, "z", 5, 1), b.constant(normal(8)))


def one_row(b: MLGraphBuilder) -> Outputs:
    return normalized(b, floats(b, "x", 1, 20), [1], floats(b, "z", 1, 20))


def one_round(b: MLGraphBuilder) -> Outputs:
    return normalized(b, floats(b, "x", 33, 4), [1], floats(b, "z", 4))


def turned(b: MLGraphBuilder) -> Outputs:
    """An operand is read as it lies, and across."""
    x = floats(b, "x", 8, 8)
    return normalized(b, x, [1], b.transpose(x), b.reshape(floats(b, "z", 64), [8, 8]))


def shaped(b: MLGraphBuilder) -> Outputs:
    """The result has another shape; a part of the row's length does not mean its columns."""
    y = normalized(b, floats(b, "x", 6, 8), [1], b.reshape(floats(b, "z", 8, 1), [1, 8]))["y"]
    return {"y": b.reshape(y, [3, 2, 8])}


def computed(b: MLGraphBuilder) -> Outputs:
    """The reductions' operand is computed, from what lies in bytes as well."""
    x = b.cast(b.input("u", "uint8", [7, 12]), "float32")
    return normalized(b, b.add(floats(b, "x", 7, 12), x), [1], floats(b, "z", 7, 12))


def halves(b: MLGraphBuilder) -> Outputs:
    x = b.input("h", "float16", [9, 16])
    return {"y": b.softmax(b.add(x, b.input("g", "float16", [16])), 1)}


def in_place(b: MLGraphBuilder) -> Outputs:
    """Rows are written into a concat's buffer; of one part at places that are no multiples of 4."""
    made = [b.softmax(floats(b, name, 6, 8), 1) for name in "xyz"]
    odd = b.relu(floats(b, "w", 6, 3))
    return {"a": b.concat(made, 1), "b": b.concat([odd, b.softmax(floats(b, "v", 6, 8), 1)], 1)}


def spread(b: MLGraphBuilder) -> Outputs:
    """What each row is reduced to at the end, of what it was before."""
    x = floats(b, "x", 11, 16)
    apart = b.sub(x, b.reduce_max(x, axes=[1], keep_dimensions=True))
    return {"y": b.reduce_log_sum_exp(apart, axes=[1], keep_dimensions=True)}


def sums(b: MLGraphBuilder) -> Outputs:
    """Rows that become one number each, of what is computed as it is read; of halves, too."""
    x = floats(b, "x", 3, 5, 8)
    total = b.reduce_sum(b.mul(x, floats(b, "z", 5, 1)), axes=[1, 2])
    largest = b.reduce_max(b.input("h", "float16", [2, 3, 12]), axes=[2])
    return {"a": b.relu(b.add(total, floats(b, "w", 3))), "b": largest}


def sums_across(b: MLGraphBuilder) -> Outputs:
    """A row's number is written elsewhere than the row is."""
    total = b.reduce_mean(floats(b, "x", 8, 8, 16), axes=[2])
    return {"y": b.relu(b.transpose(total)), "z": b.reduce_l2(floats(b, "z", 2, 8), axes=[1])}


def sums_in_place(b: MLGraphBuilder) -> Outputs:
    """Rows' numbers in parts of a concat, and in bytes."""
    made = [b.reduce_product(floats(b, name, 5, 8), axes=[1]) for name in "xy"]
    small = b.greater(b.reduce_min(floats(b, "z", 9, 4), axes=[1]), b.constant(0.0, "float32"))
    return {"a": b.concat(made, 0), "b": small}


BUILDS = [
    sums,
    sums_across,
    sums_in_place,
    by_column,
    by_row,
    by_part,
    one_row,
    one_round,
    turned,
    shaped,
    computed,
    halves,
    in_place,
    spread,
]


def inputs_of(graph: Any) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 9, d.shape).astype(d.data_type)
        if d.data_type == "uint8"
        else rng.normal(size=d.shape).astype(d.data_type)
        for name, d in graph.inputs.items()
    }


@pytest.mark.parametrize("what", BUILDS)
def test_like_the_reference(software: MLContext, reference: MLContext, what: Build) -> None:
    graph = build(software, what)
    given = inputs_of(graph)
    got = asyncio.run(MLAwaitedExecution(software).compute(graph, given))
    wanted = MLExecution(reference).compute(build(reference, what), given)
    code = code_of(graph)
    graph.destroy()
    assert "r += 4u" in code
    for name in wanted:
        assert_close(got[name], wanted[name])


@pytest.mark.parametrize(
    ("shape", "axis"), [([5, 6], 1), ([4, 8], 0), ([2, 16384], 1)], ids=["odd", "across", "long"]
)
def test_reductions_that_are_not(
    software: MLContext, reference: MLContext, shape: list[int], axis: int
) -> None:
    def what(b: MLGraphBuilder) -> Outputs:
        return {"y": b.reduce_sum(floats(b, "x", *shape), axes=[axis])}

    graph = build(software, what)
    given = inputs_of(graph)
    got = asyncio.run(MLAwaitedExecution(software).compute(graph, given))["y"]
    assert "vec4" not in code_of(graph)
    assert_close(got, MLExecution(reference).compute(build(reference, what), given)["y"])


def test_what_is_read_in_fours(software: MLContext) -> None:
    """A row's elements, and those of its columns; each once."""
    code = code_of(build(software, by_column))
    assert code.count("array<vec4<f32>>") == 4
    assert "array<f32>" not in code
