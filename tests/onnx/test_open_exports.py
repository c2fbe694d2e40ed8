"""Graphs with open dimensions as ONNX models: valid, and right at every size.

WEBNN_EXAMPLES=100 draws so many calls of each operator.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from tests.backend.compared import MAY_QUANTIZE, assert_close, stays_in_range
from tests.internals import built_from
from tests.onnx.exports import MODELS, Script
from tests.onnx.test_exporter import run
from tests.onnx.test_open_models import SIZES, inputs_of
from tests.property.test_open_shapes import opened, tried
from webnn_py import MLContext, MLExecution, NotSupportedError
from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.onnx import load, to_onnx
from webnn_py.ops.declare import REGISTRY

EXAMPLES = int(os.environ.get("WEBNN_EXAMPLES", "2"))


@pytest.mark.parametrize("name", MODELS)
def test_the_round_trip_of_a_model(cpu: MLContext, name: str) -> None:
    first = load(MODELS[name](Script()), cpu)
    model = to_onnx(first)
    inferred = shape_inference.infer_shapes(
        model, check_type=True, strict_mode=True, data_prop=True
    )
    assert len(inferred.graph.value_info) > len(model.graph.node) // 2
    second = load(model, cpu)
    assert {n: str(d.shape) for n, d in first.outputs.items()} == {
        n: str(d.shape) for n, d in second.outputs.items()
    }
    for sizes in SIZES[name]:
        inputs = inputs_of(MODELS[name](Script()), sizes)
        given = {key: inputs[key] for key in first.inputs}
        wanted = MLExecution(cpu).compute(first, given)
        exported = run(model, given)
        again = MLExecution(cpu).compute(second, given)
        for key, array in wanted.items():
            np.testing.assert_allclose(exported[key], array, rtol=2e-4, atol=2e-5)
            np.testing.assert_allclose(again[key], array, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", sorted({*REGISTRY} - {*MAY_QUANTIZE}))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_operator(cpu: MLContext, name: str, data: st.DataObject) -> None:
    case = data.draw(opened(name))
    assume(stays_in_range(case.call))
    recipe = tried(case.record)
    assume(not isinstance(recipe, Exception) and recipe.open_sizes)
    values = [*recipe.inputs, *(value for _, value in recipe.outputs)]
    assume(all(value.data_type not in PACKED_4BIT for value in values))
    try:
        model = to_onnx(built_from(cpu, recipe))
    except NotSupportedError:
        return
    arrays = {value.name: case.tensors[value.name].array for value in recipe.inputs}
    wanted = MLExecution(cpu).compute(built_from(cpu, recipe), arrays)
    integers = 1 if name in ("resample2d", "quantize_linear") else 0
    for key, result in run(model, arrays).items():
        assert_close(result, wanted[key], integers)
    onnx.checker.check_model(model, full_check=True)
