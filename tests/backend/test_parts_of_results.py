"""Parts of results: what a kernel writes is then less than what its operators make."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.compared import assert_close, compute
from tests.graphs import awaited, build
from tests.property.drawing import Array
from webnn_py import MLContext, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels

RNG = np.random.default_rng(0)
INPUTS = {
    "x": RNG.standard_normal((40, 33)).astype(np.float32),
    "w": RNG.standard_normal((33, 70)).astype(np.float32),
}


class _Beginnings:
    """A call, as `compute` takes it."""

    inputs = INPUTS

    def __call__(self, b: MLGraphBuilder) -> list[MLOperand]:
        x, w = (b.input(name, "float32", array.shape) for name, array in self.inputs.items())
        return [
            b.slice(b.matmul(x, w), [0, 0], [7, 70]),
            b.slice(b.reduce_sum(x, axes=[1]), [0], [9]),
            b.slice(b.cumulative_sum(w, 0), [0, 0], [5, 70]),
            b.slice(b.arg_max(x, 1), [0], [3]),
            b.split(b.max_pool2d(b.reshape(x, [40, 1, 3, 11])), [7, 33])[0],
        ]


def test_the_beginning_of_a_result(gpu: MLContext, reference: MLContext) -> None:
    call = _Beginnings()
    results: list[list[Array]] = [
        compute(context, call)  # type: ignore[arg-type]
        for context in (gpu, reference)
    ]
    for got, wanted in zip(*results, strict=True):
        assert_close(got, wanted)


def test_one_element_of_what_is_joined_or_padded(each_device: MLContext) -> None:
    """Its index is a number, which lies before the beginning of what it is not an element of."""

    def network(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, z = (b.input(name, "float32", [1]) for name in "xz")
        ones = b.constant(np.ones(3, np.float32))
        joined, padded = b.concat([x, z], 0), b.pad(x, [1], [1], value=5)
        return {
            "joined": b.add(b.slice(joined, [0], [1]), ones),
            "padded": b.add(b.slice(padded, [0], [1]), ones),
        }

    given = {"x": np.float32([7]), "z": np.float32([8])}
    got = awaited(build(each_device, network), given)
    assert {name: array.tolist() for name, array in got.items()} == {
        "joined": [8, 8, 8],
        "padded": [6, 6, 6],
    }
