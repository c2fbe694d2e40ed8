"""The version of ONNX's operators that models for ONNX Runtime name: averages want an older one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, MLOperand, ml

pytest.importorskip("onnxruntime")

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


def not_a_number(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.is_infinite(b.cast(average(b, x), "float16"))


def graph_on(context: MLContext, written: Written) -> MLGraph:
    builder = MLGraphBuilder(context)
    return builder.build_sync({"y": written(builder, builder.input("x", "float32", SHAPE))})


def test_an_older_version_is_named_where_it_says_the_same(models: list[Any]) -> None:
    versions = []
    with ml.create_context_sync(engine="onnxruntime") as context:
        for written in (average, moved, spread, not_a_number):
            graph_on(context, written)
            versions += [one.version for one in models[-1].opset_import if not one.domain]
    older, newer = versions[0], versions[-1]
    assert older < newer
    assert versions == [older, older, newer, newer]


@pytest.mark.parametrize("written", [average, spread, moved])
def test_results_are_those_of_the_reference(written: Written) -> None:
    given = {"x": np.random.default_rng(0).standard_normal(SHAPE, "float32")}
    results = []
    for engine in ("reference", "onnxruntime"):
        with ml.create_context_sync(engine=engine) as context:
            results.append(MLExecution(context).compute(graph_on(context, written), given)["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
