"""Bools, which are uint8 tensors of 0 and 1 here, where operators take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx.models import model
from webnn_py import MLContext, MLExecution
from webnn_py.onnx import load

BOOL = TensorProto.BOOL
node = helper.make_node


def computed(context: MLContext, made: Any, **inputs: Any) -> Any:
    return MLExecution(context).compute(load(made, context), inputs)["y"].tolist()


@pytest.mark.parametrize("value", [True, False])
def test_bools_are_padded_with_bools(cpu: MLContext, value: bool) -> None:
    weights = {"pads": np.asarray([1, 0], np.int64), "v": np.asarray(value)}
    made = model([node("Pad", ["x", "pads", "v"], ["y"])], {"x": [2]}, ["y"], weights, elem=BOOL)
    assert computed(cpu, made, x=np.asarray([0, 1], np.uint8)) == [value, 0, 1]


def test_a_bool_input_that_is_an_output_as_a_number(cpu: MLContext) -> None:
    cast = node("Cast", ["x"], ["y"], to=TensorProto.UINT8)
    made = model([cast], {"x": [2]}, ["y"], elem=BOOL)
    assert computed(cpu, made, x=np.asarray([0, 1], np.uint8)) == [0, 1]


@pytest.mark.parametrize(("reduction", "wanted"), [("add", [1, 1, 0]), ("mul", [1, 0, 0])])
@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_bools_are_combined_to_bools(
    cpu: MLContext, operator: str, reduction: str, wanted: list[int]
) -> None:
    places = np.asarray([0, 1], np.int64)
    at = places if operator == "ScatterElements" else places[:, None]
    scatter = node(operator, ["x", "at", "u"], ["y"], reduction=reduction)
    made = model([scatter], {"x": [3], "u": [2]}, ["y"], {"at": at}, opset=18, elem=BOOL)
    x, u = np.asarray([1, 1, 0], np.uint8), np.asarray([1, 0], np.uint8)
    assert computed(cpu, made, x=x, u=u) == wanted
