"""Windows of poolings and of convolutions that no product computes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.compiled import kernels
from tests.graphs import normal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.program.storage import Features


def _pooled(b: MLGraphBuilder, x: MLOperand, size: int) -> MLOperand:
    return b.max_pool2d(x, window_dimensions=[size, size], padding=[1, 1, 1, 1])


def _depthwise(b: MLGraphBuilder, x: MLOperand, size: int) -> MLOperand:
    return b.conv2d(x, b.constant(normal(3, 1, size, size)), groups=3, padding=[1, 1, 1, 1])


def _shuffled(b: MLGraphBuilder, x: MLOperand, size: int) -> MLOperand:
    parts = b.transpose(b.reshape(x, [1, 1, 3, 12, 12]), permutation=[0, 2, 1, 3, 4])
    return _depthwise(b, b.reshape(parts, [1, 3, 12, 12]), size)


def _viewed(b: MLGraphBuilder, x: MLOperand, size: int) -> MLOperand:
    return _depthwise(b, b.transpose(x, permutation=[0, 1, 3, 2]), size)


def _computed(b: MLGraphBuilder, x: MLOperand, size: int) -> MLOperand:
    """Sums of squares of neighbours, zeros around them, as local response normalization has."""
    squares = b.pad(b.mul(x, x), [0, 0, 0, 1], [0, 0, 0, size - 2])
    return b.average_pool2d(squares, window_dimensions=[1, size])


@pytest.mark.parametrize(
    ("window", "kind", "size", "loops"),
    [
        (_pooled, "gpu", 3, 0),
        (_pooled, "gpu", 9, 2),
        (_pooled, "cpu", 3, 2),
        (_depthwise, "gpu", 3, 0),
        (_depthwise, "gpu", 9, 2),
        (_viewed, "gpu", 3, 0),
        (_shuffled, "gpu", 3, 0),
        (_computed, "gpu", 5, 0),
    ],
)
def test_short_windows_have_no_loop_on_hardware(
    window: Any, kind: str, size: int, loops: int
) -> None:
    def graph(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": window(b, b.input("x", "float32", [1, 3, 12, 12]), size)}

    (kernel,) = kernels(graph, Features(kind=kind))
    assert kernel.code.count("for (") == loops
