"""What an executable runs, as it prints it."""

from __future__ import annotations

import re

from tests.golden import Golden
from tests.graphs import build, normal
from tests.internals import executable_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand


def network(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Enough for several kernels and shared intermediate buffers."""
    x = builder.input("x", "float32", [2, 3, 8, 8])
    pooled = builder.max_pool2d(x, window_dimensions=[2, 2], strides=[2, 2])
    flat = builder.reshape(builder.relu(pooled), [2, 48])
    scores = builder.matmul(flat, builder.constant(normal(48, 5)))
    return {"p": builder.softmax(scores, 1), "mean": builder.reduce_mean(pooled, axes=[2, 3])}


def test_steps(golden: Golden, software: MLContext) -> None:
    executable = executable_of(build(software, network))
    # How many workgroups a product takes is the device's affair.
    golden("steps.txt", re.sub(r"<[\d,]+>", "", executable.describe()))
