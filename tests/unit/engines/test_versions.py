"""The version of ONNX's operators that models for ONNX Runtime name: averages want an older one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.internals import recipe_of
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, MLOperand, ml

pytest.importorskip("onnxruntime")
import onnxruntime

from webnn_py.engines.onnx_lowering import OPSET, lower_graph, numbered
from webnn_py.engines.onnx_lowering.versions import OLDER_OPSET

SHAPE = [1, 3, 9, 7]
Written = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def average(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.average_pool2d(x, window_dimensions=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])


def spread(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.average_pool2d(x, window_dimensions=[2, 2], dilations=[2, 2])


def moved(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Operators that newer versions take for more data types alone."""
    made = b.pad(b.reshape(b.cast(average(b, x), "float16"), [4, 15]), [0, 1], [0, 1])
    return b.transpose(b.cast(made, "float32"))


def of_four_bits(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    packed = b.constant(bytes([0x21]), "int4", [1, 1, 1, 2])
    scale, zero = (
        b.constant(np.ones((1, 1, 1, 1), "float32")),
        b.constant(bytes(1), "int4", [1] * 4),
    )
    return b.add(b.slice(b.dequantize_linear(packed, scale, zero), [0] * 4, [1] * 4), average(b, x))


def not_a_number(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.is_infinite(b.cast(average(b, x), "float16"))


def graph_on(context: MLContext, written: Written) -> MLGraph:
    builder = MLGraphBuilder(context)
    return builder.build_sync({"y": written(builder, builder.input("x", "float32", SHAPE))})


@pytest.mark.parametrize(
    ("written", "version"),
    [
        (average, OLDER_OPSET),
        (moved, OLDER_OPSET),
        (spread, OPSET),
        (of_four_bits, OPSET),
        (not_a_number, OPSET),
    ],
)
def test_an_older_version_is_named_where_it_says_the_same(written: Written, version: int) -> None:
    with ml.create_context_sync(engine="reference") as context:
        recipe = recipe_of(graph_on(context, written))
    for older, wanted in ((True, version), (False, OPSET)):
        model = lower_graph(recipe, numbered(recipe), older=older).model
        assert [one.version for one in model.opset_import if not one.domain] == [wanted]
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("written", [average, spread, moved])
def test_results_are_those_of_the_reference(written: Written) -> None:
    given = {"x": np.random.default_rng(0).standard_normal(SHAPE, "float32")}
    results = []
    for engine in ("reference", "onnxruntime"):
        with ml.create_context_sync(engine=engine) as context:
            results.append(MLExecution(context).compute(graph_on(context, written), given)["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
