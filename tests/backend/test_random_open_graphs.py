"""Random graphs with open dimensions give for five sets of sizes what graphs of these sizes do.

WEBNN_RANDOM_CASES=2000 runs so many of them on each engine; WEBNN_SEED=123 runs one.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.backend.compared import built
from tests.graphs import awaited
from tests.property.drawing import Array
from tests.property.open_graphs import is_open_anywhere, open_case
from webnn_py import MLContext

CASES = {"reference": 15, "cpu": 15, "gpu": 4}
ONE = os.environ.get("WEBNN_SEED")
COUNT = os.environ.get("WEBNN_RANDOM_CASES")
RUNS = [
    (engine, seed)
    for engine, few in CASES.items()
    for seed in ([int(ONE)] if ONE else range(int(COUNT) if COUNT else few))
]


def with_nan(inputs: dict[str, Array]) -> dict[str, Array]:
    """NaN in the place of floats: memory that is used again holds the worst that it may."""
    return {
        name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }


@pytest.mark.parametrize(("engine", "seed"), RUNS)
def test_random_open_graph(request: pytest.FixtureRequest, engine: str, seed: int) -> None:
    context: MLContext = request.getfixturevalue(engine)
    case = open_case(seed)
    graph = built(context, case.graph)
    awaited(graph, with_nan(case.inputs(max(case.sizes, key=lambda sizes: sum(sizes.values())))))
    for sizes in case.sizes:
        fixed = built(context, case.fixed(sizes))
        inputs = case.inputs(sizes)
        got, wanted = awaited(graph, inputs), awaited(fixed, inputs)
        assert got.keys() == wanted.keys()
        for name, array in wanted.items():
            assert got[name].dtype == array.dtype
            np.testing.assert_allclose(
                got[name], array, rtol=1e-4, atol=1e-4, err_msg=f"{sizes}: {name}\n{case.graph}"
            )


def test_random_open_graphs_have_open_dimensions() -> None:
    """In most of their nodes, and of most operators; else the test above would show little."""
    nodes = [node for seed in range(60) for node in open_case(seed).graph.nodes]
    opened = [node for node in nodes if is_open_anywhere(node)]
    assert len(opened) > 0.67 * len(nodes)
    assert len({node.op for node in opened}) > 70
