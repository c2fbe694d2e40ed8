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


@pytest.mark.parametrize(
    ("window", "kind", "size", "loops"),
    [
        (_pooled, "gpu", 3, 0),
        (_pooled, "gpu", 9, 2),
        (_pooled, "cpu", 3, 2),
        (_depthwise, "gpu", 3, 0),
        (_depthwise, "gpu", 9, 2),
    ],
)
def test_short_windows_have_no_loop_on_hardware(
    window: Any, kind: str, size: int, loops: int
) -> None:
    def graph(b: MLGraphBuilder) -> dict[str, MLOperand]:
        return {"y": window(b, b.input("x", "float32", [1, 3, 12, 12]), size)}

    (kernel,) = kernels(graph, Features(kind=kind))
    assert kernel.code.count("for (") == loops
