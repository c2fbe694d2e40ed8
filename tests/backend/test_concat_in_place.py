"""Concats that the kernels of their operands write: results are as if there were none."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.compared import assert_close
from tests.graphs import Build, build, normal
from webnn_py import MLAwaitedExecution, MLContext, MLExecution, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

Array = np.ndarray[Any, Any]
Outputs = dict[str, MLOperand]
TYPES = ("float32", "float32", "float16", "int64", "int32", "uint8", "int8")
CASES = int(os.environ.get("WEBNN_RANDOM_CASES", 20))


def inputs_of(graph: Any, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-4 if "u" not in d.data_type else 0, 5, d.shape).astype(d.data_type)
        for name, d in graph.inputs.items()
    }


def check(context: MLContext, reference: MLContext, what: Build, seed: int) -> None:
    graph = build(context, what)
    given = inputs_of(graph, seed)
    got = asyncio.run(MLAwaitedExecution(context).compute(graph, given))
    wanted = MLExecution(reference).compute(build(reference, what), given)
    graph.destroy()
    for name in wanted:
        # Sums of whole numbers: a float16 that is rounded on its way is off by a unit or so.
        assert_close(got[name], wanted[name])


@st.composite
def networks(draw: st.DrawFn) -> Build:
    """Values of one type, of which concats are made and read, along axes of all kinds."""
    data_type = draw(st.sampled_from(TYPES))
    shape = draw(st.sampled_from([(1, 4, 2, 4), (2, 3, 4, 2), (1, 5, 3, 3), (4, 6), (3, 8, 4)]))
    is_float, narrow = data_type.startswith("float"), data_type.endswith("int8")
    steps = draw(
        st.lists(
            st.tuples(st.integers(0, 7), st.integers(0, 99), st.integers(0, 99), st.integers(0, 3)),
            min_size=4,
            max_size=14,
        )
    )

    def network(b: MLGraphBuilder) -> Outputs:
        values = [b.input("x", data_type, shape), b.input("y", data_type, shape)]
        for kind, one, two, axis in steps:
            x = values[one % len(values)]
            axis %= len(shape)
            like = [v for v in values if _joins(v, x, axis)]
            if kind in (0, 1, 2):
                chosen = [like[(one + two * n) % len(like)] for n in range(2 + kind)]
                if sum(v.shape[axis] for v in chosen) > 40:
                    continue
                values.append(b.concat(chosen, axis))
            elif kind == 3:
                values.append(b.reduce_max(x, axes=[axis], keep_dimensions=True))
            elif kind == 4 and data_type != "uint8":
                values.append(b.neg(x))
            elif kind == 5:
                values.append(b.max(x, x) if narrow else b.cumulative_sum(x, axis))
            elif kind == 6 and is_float and len(x.shape) == 4:
                weights = normal(4, x.shape[1], 1 + two % 2, 1, seed=two).astype(data_type)
                if x.shape[2] > 1:
                    values.append(b.relu(b.conv2d(x, b.constant(weights / 4))))
            elif kind == 7 and is_float:
                side = x.shape[-1]
                weights = normal(side, 4 + two % 4, seed=two).astype(data_type) / 4
                values.append(b.matmul(x, b.constant(weights)))
        kept = [v for n, v in enumerate(values) if n % 3 == 0] or values[-1:]
        return {f"r{n}": b.identity(v) for n, v in enumerate([*kept, values[-1]])}

    return network


def _joins(value: MLOperand, other: MLOperand, axis: int) -> bool:
    pairs = enumerate(zip(value.shape, other.shape, strict=False))
    return (
        len(value.shape) == len(other.shape)
        and value.data_type == other.data_type
        and all(a == b for d, (a, b) in pairs if d != axis)
    )


@settings(max_examples=CASES)
@given(networks(), st.integers(0, 99))
def test_random_concats(form: MLContext, reference: MLContext, what: Build, seed: int) -> None:
    check(form, reference, what, seed)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_windows_of_a_part(form: MLContext, reference: MLContext, data_type: str) -> None:
    """A convolution reads its input, element by element, from where a wider concat has it."""

    def network(b: MLGraphBuilder) -> Outputs:
        x, y = (b.input(name, data_type, [2, 4, 3, 2]) for name in "xy")
        part = b.concat([b.neg(x), b.neg(y), x], 2)
        weights = (normal(4, 4, 2, 1) / 4).astype(data_type)
        return {
            "windows": b.relu(b.conv2d(part, b.constant(weights))),
            "whole": b.concat([part, b.abs(x)], 2),
        }

    check(form, reference, network, 1)
