"""The beginning of a loop's result: what a kernel writes is then less than what its loop makes."""

from __future__ import annotations

import numpy as np

from tests.backend.compared import assert_close, compute
from tests.property.drawing import Array
from webnn_py import MLContext, MLGraphBuilder, MLOperand

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
