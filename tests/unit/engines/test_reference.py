"""The reference engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.engines.reference.engine import function_of
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder


def test_sums_do_not_depend_on_the_layout_of_memory() -> None:
    """A transpose leaves another layout in a run than a folded constant has."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    shapes = {"a": (2, 4, 10, 10), "b": (2, 4, 10, 10), "c": (6, 4, 3, 3)}
    a, b, c = (builder.add_input(n, Descriptor("float32", s)) for n, s in shapes.items())
    made = [
        *(builder.matmul(a, b), builder.reduce_sum(a, axes=[1, 2]), builder.reduce_mean(a)),
        *(builder.softmax(a, 1), builder.layer_normalization(a), builder.conv2d(a, c)),
        *(builder.instance_normalization(a), builder.average_pool2d(a)),
    ]
    nodes = builder.recorded({str(i): one for i, one in enumerate(made)}).nodes
    given = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    for node in nodes:
        arrays: list[Any] = [None if value is None else given[value.name] for value in node.inputs]
        function = function_of(REGISTRY[node.op])
        turned = [None if array is None else np.asfortranarray(array) for array in arrays]
        one, other = (np.asarray(function(node, each)) for each in (arrays, turned))
        np.testing.assert_array_equal(one, other, node.op)
