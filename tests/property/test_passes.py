"""Random graphs come out the same with every pass and with none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.graphs import grow, seeded_case
from tests.property.growing import Case
from webnn_py.engines.reference import ReferenceEngine, evaluate
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.passes import BLOCKS, PIPELINE, Target, optimize
from webnn_py.passes.decompose import decompose
from webnn_py.passes.fuse_batch_norm import fuse_batch_norm
from webnn_py.passes.pipeline import Pass

EXAMPLES = int(os.environ.get("WEBNN_RANDOM_CASES", "30"))
REASSOCIATING = (fuse_batch_norm, decompose)

many = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class DrawnPicks:
    """Choices that hypothesis makes, and makes simpler where a test fails."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    return grow(DrawnPicks(draw))


def run(graph: Graph, case: Case) -> dict[str, Array]:
    """Outputs of the reference engine."""
    results = {name: np.empty(v.shape, case.expected[name].dtype) for name, v in graph.outputs}
    executable = ReferenceEngine().compile(graph)
    executable.run([case.inputs[v.name] for v in graph.inputs], [*results.values()])
    return results


def target(has_kernel: Callable[[Node], bool]) -> Target:
    return Target(has_kernel, evaluate)


WHOLE = target(lambda node: True)
DECOMPOSED = target(lambda node: node.op not in DECOMPOSITIONS)


@many
@given(cases())
def test_no_pass_but_folding_and_decomposing_changes_a_bit(case: Case) -> None:
    exact = tuple(stage for stage in PIPELINE if stage not in REASSOCIATING)
    case.assert_equal(run(optimize(case.graph, WHOLE, exact), case))


@many
@given(cases())
def test_every_pass_keeps_the_results(case: Case) -> None:
    case.assert_close(run(optimize(case.graph, WHOLE), case))


@many
@given(cases())
def test_every_pass_keeps_the_results_of_what_is_decomposed(case: Case) -> None:
    optimized = optimize(case.graph, DECOMPOSED)
    assert all(node.op not in DECOMPOSITIONS for node in optimized.nodes)
    case.assert_close(run(optimized, case))


@many
@given(cases())
def test_passes_for_fast_convolutions_keep_the_results(case: Case) -> None:
    case.assert_close(run(optimize(case.graph, WHOLE, BLOCKS), case))


@many
@given(cases())
def test_a_second_time_finds_nothing(case: Case) -> None:
    once = optimize(case.graph, DECOMPOSED)
    assert len(optimize(once, DECOMPOSED).nodes) == len(once.nodes)


@pytest.mark.parametrize("stage", dict.fromkeys(PIPELINE[1:-1]), ids=lambda stage: stage.__name__)
def test_random_graphs_have_work_for_every_pass(stage: Pass) -> None:
    """Else the tests above would show nothing of it."""
    before = PIPELINE[: PIPELINE.index(stage, 1)]
    fired = 0
    for seed in range(25):
        graph = optimize(seeded_case(seed).graph, DECOMPOSED, before)
        fired += str(stage(graph, DECOMPOSED)) != str(graph)
    assert fired >= 3


def test_passes_do_the_same_each_time() -> None:
    for seed in range(8):
        listings = {str(optimize(seeded_case(seed).graph, DECOMPOSED)) for _ in range(2)}
        assert len(listings) == 1
