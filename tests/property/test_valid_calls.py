"""Any valid call of any operator builds and runs, with the declared data types and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.drawing import Array
from tests.property.strategies import Call, Tensor, calls
from tests.public import OPERANDS, OPERATORS
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, MLOperand, ml

few = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
each_operator = pytest.mark.parametrize("name", OPERATORS)
PACKED_4BIT = ("int4", "uint4")


@pytest.fixture(scope="module")
def context() -> MLContext:
    return ml.create_context_sync(engine="reference")


def built(builder: MLGraphBuilder, outputs: list[MLOperand]) -> MLGraph:
    return builder.build_sync({f"out{i}": output for i, output in enumerate(outputs)})


def outputs_of(context: MLContext, name: str) -> list[Any]:
    """What `op_support_limits` says of an operator's outputs."""
    limits = context.op_support_limits()[name]
    return [limit for key, limit in limits.items() if key not in OPERANDS[name]]


def frozen(call: Call, constant: bool) -> Call:
    """The call with all operands constant, or none but those that cannot be inputs."""

    def one(tensor: Tensor) -> Tensor:
        packed = tensor.data_type in PACKED_4BIT
        return Tensor(tensor.data_type, tensor.array, constant or packed)

    members = {
        name: [one(member) for member in given] if isinstance(given, list) else one(given)
        for name, given in call.operands.items()
    }
    return Call(call.op, members, call.options)


def computed(context: MLContext, call: Call) -> dict[str, Array]:
    """The results behind an identity, so that the operator itself can be folded."""
    builder = MLGraphBuilder(context)
    graph = built(
        builder,
        [
            output if output.data_type in PACKED_4BIT else builder.identity(output)
            for output in call(builder)
        ],
    )
    arrays = call.inputs
    return MLExecution(context).compute(graph, {name: arrays[name] for name in graph.inputs})


@each_operator
@few
@given(data=st.data())
def test_results_have_the_declared_data_types_and_shapes(
    context: MLContext, name: str, data: st.DataObject
) -> None:
    call = data.draw(calls(name))
    builder = MLGraphBuilder(context)
    outputs = call(builder)
    graph = built(builder, outputs)
    before = {key: array.copy() for key, array in call.inputs.items()}
    inputs = {key: call.inputs[key] for key in graph.inputs}
    results = MLExecution(context).compute(graph, inputs)
    for output, result in zip(outputs, results.values(), strict=True):
        assert result.shape == output.shape
        assert result.dtype == output.data_type.replace("int4", "int8")
        limits = outputs_of(context, name)
        assert any(output.data_type in limit["data_types"] for limit in limits)
    for key, array in before.items():
        np.testing.assert_array_equal(call.inputs[key], array)


@each_operator
@few
@given(data=st.data())
def test_folding_constants_changes_no_result(
    context: MLContext, name: str, data: st.DataObject
) -> None:
    call = data.draw(calls(name))
    folded = computed(context, frozen(call, constant=True))
    for key, result in computed(context, frozen(call, constant=False)).items():
        np.testing.assert_array_equal(folded[key], result)


@each_operator
@few
@given(data=st.data())
def test_the_outputs_have_ranks_that_the_limits_list(
    context: MLContext, name: str, data: st.DataObject
) -> None:
    outputs = data.draw(calls(name))(MLGraphBuilder(context))
    ranges = [limits["rank_range"] for limits in outputs_of(context, name)]
    for number, output in enumerate(outputs):
        span = ranges[min(number, len(ranges) - 1)]
        assert span["min"] <= output.rank <= span["max"]
