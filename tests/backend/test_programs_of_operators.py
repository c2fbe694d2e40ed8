"""Operators and random graphs as programs, written without a device: the reference's results.

WEBNN_EXAMPLES=100 draws so many calls of each operator, WEBNN_RANDOM_CASES=500 so many graphs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.backend.compared import assert_close, built, compute, stays_in_range
from tests.property.drawing import Call
from tests.property.graphs import seeded_case
from tests.property.strategies import calls
from tests.property.test_valid_calls import frozen
from tests.public import OPERATORS, WHOLE_BYTES
from webnn_py import MLContext, MLGraph, MLGraphBuilder

EXAMPLES = int(os.environ.get("WEBNN_EXAMPLES", "1"))
CASES = int(os.environ.get("WEBNN_RANDOM_CASES", "12"))


def graph_of(context: MLContext, call: Call) -> MLGraph:
    """A call, behind identities, so that constants can be folded before them."""
    builder = MLGraphBuilder(context)
    made = [builder.identity(o) if o.data_type in WHOLE_BYTES else o for o in call(builder)]
    return builder.build_sync({f"output {i}": operand for i, operand in enumerate(made)})


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_operator(
    gpu: MLContext,
    plain: MLContext,
    reference: MLContext,
    tmp_path: Path,
    name: str,
    data: st.DataObject,
) -> None:
    call = data.draw(calls(name))
    if data.draw(st.booleans()):
        call = frozen(call, constant=False)
    assume(stays_in_range(call))
    integers = 1 if name in ("resample2d", "quantize_linear") else 0
    graph = graph_of(reference, call)
    path = tmp_path / "operator.mlprogram"
    graph.compile_to(path)
    inputs = {name: call.inputs[name] for name in graph.inputs}
    wanted = compute(reference, call)
    for context in (gpu, plain):
        results = context.load_program_sync(path).run_sync(inputs)
        for got, expected in zip(results.values(), wanted, strict=True):
            assert_close(got, expected, integers, nan=False)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_random_graph(gpu: MLContext, reference: MLContext, tmp_path: Path, seed: int) -> None:
    case = seeded_case(seed)
    path = tmp_path / "graph.mlprogram"
    # An output may be called as an input is, which arguments of a program cannot.
    outputs = [(f"output {name}", value) for name, value in case.graph.outputs]
    built(reference, case.graph.replace(outputs=outputs)).compile_to(path)
    results = gpu.load_program_sync(path).run_sync(case.inputs)
    case.assert_close({name.removeprefix("output "): array for name, array in results.items()})
