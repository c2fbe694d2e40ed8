"""Graphs deeper than Python's stack, and such as would be computed again at every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.backend.compared import compute
from tests.internals import executable_of
from tests.property.drawing import Array
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.kernel import Kernel

Step = Callable[[MLGraphBuilder, MLOperand, int], MLOperand]

LONG = 600
"""Nodes; Python's own limit is a depth of 1,000 calls."""


def _elementwise(b: MLGraphBuilder, y: MLOperand, i: int) -> MLOperand:
    return b.abs(b.sub(b.constant(1.0, "float32"), y)) if i % 2 else b.sqrt(y)


def _views(b: MLGraphBuilder, y: MLOperand, i: int) -> MLOperand:
    moved = b.slice(b.tile(y, [2, 1]), [i % 3 + 1, 0], [4, 4]) if i % 2 else b.reverse(y, axes=[0])
    return b.transpose(moved)


def _parts(b: MLGraphBuilder, y: MLOperand, i: int) -> MLOperand:
    return b.concat(b.split(y, 2, axis=i % 2)[::-1], i % 2)


STEPS: dict[str, Step] = {"elementwise": _elementwise, "views": _views, "parts": _parts}


class _Chain:
    """A call of many operators, as `compute` takes it."""

    def __init__(self, step: Step, length: int) -> None:
        self._step = step
        self._length = length
        self.inputs = {"x": np.linspace(0.1, 1.0, 16, dtype=np.float32).reshape(4, 4)}

    def __call__(self, builder: MLGraphBuilder) -> list[MLOperand]:
        y = builder.input("x", "float32", [4, 4])
        for i in range(self._length):
            y = self._step(builder, y, i)
        return [y]


def results(context: MLContext, step: Step, length: int) -> Array:
    (result,) = compute(context, _Chain(step, length))  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize("kind", STEPS)
def test_a_long_chain(
    gpu: MLContext, reference: MLContext, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBNN_VERIFY", "0")  # takes longer than all the rest
    got, wanted = (results(context, STEPS[kind], LONG) for context in (gpu, reference))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def _interpolation(b: MLGraphBuilder, y: MLOperand, i: int) -> MLOperand:
    """Four elements for one."""
    image = b.reshape(y, [1, 1, 4, 4])
    for size in (5, 4):
        image = b.resample2d(image, sizes=[size, size], mode="linear")
    return b.reshape(image, [4, 4])


def _coordinates(b: MLGraphBuilder, y: MLOperand, i: int) -> MLOperand:
    """Two elements for one."""
    table = b.constant(np.arange(64, dtype=np.float32).reshape(4, 4, 4) % 4)
    return b.gather_nd(table, b.cast(b.slice(y, [0, 0], [4, 2]), "int32"))


@pytest.mark.parametrize("step", [_interpolation, _coordinates])
def test_code_does_not_grow_with_the_paths(
    gpu: MLContext, reference: MLContext, step: Step
) -> None:
    builder = MLGraphBuilder(gpu)
    (y,) = _Chain(step, 12)(builder)
    executable = executable_of(builder.build_sync({"y": y}))
    kernels: list[Kernel] = executable.compiled.kernels  # type: ignore[attr-defined]
    assert max(len(kernel.code) for kernel in kernels) < 20_000
    got, wanted = (results(context, step, 12) for context in (gpu, reference))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
