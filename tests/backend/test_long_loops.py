"""Sizes at which a loop over all elements would go round 65,535 times: some drivers stop there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.backend.compared import applied, assert_close, assert_like_reference
from tests.property.drawing import Array
from tests.public import REDUCTIONS
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperand,
    NotSupportedError,
)

pytestmark = pytest.mark.kernels

LENGTH = 70_001
_RNG = np.random.default_rng(0)


def _normal(*shape: int, dtype: str = "float32") -> Array:
    return _RNG.normal(0, 1, shape).astype(dtype)


def _integers(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    low, high = (max(info.min, -(2**40)), min(info.max, 2**40))
    return _RNG.integers(low, high, shape, dtype, endpoint=True)


def _late(shape: tuple[int, ...]) -> Array:
    """Ones, and at the very end one 5."""
    ones = np.ones(shape, np.float32)
    ones.reshape(-1)[-1] = 5
    return ones


_NORMALIZED = {"input": _normal(2, LENGTH) + 1}
_WIDE = {"input": _late((1, 2, 257, 256))}
_MATRICES = {"a": _normal(2, 3, LENGTH), "b": _normal(LENGTH, 2)}
_POINTS = {"input": _normal(1, LENGTH, 1, 2) / 100}
_HALVES = {"a": _normal(3, LENGTH, dtype="float16"), "b": _normal(LENGTH, 2, dtype="float16")}

CASES: list[tuple[str, Mapping[str, Array], dict[str, Any]]] = [
    *((name, _NORMALIZED, {"axes": [1]}) for name in REDUCTIONS),
    ("reduce_sum", {"input": np.ones(1 << 22, np.float32)}, {}),
    ("reduce_sum", {"input": _integers("int64", LENGTH, 2)}, {"axes": [0]}),
    ("reduce_mean", {"input": np.full((2, LENGTH), 2, np.float16)}, {"keep_dimensions": True}),
    ("reduce_max", {"input": _integers("int8", 3, 200, 400)}, {"axes": [2, 1]}),
    ("reduce_min", {"input": _integers("uint8", LENGTH, 3)}, {"axes": [0]}),
    ("arg_max", {"input": _late((3, LENGTH))}, {"axis": 1}),
    ("arg_max", {"input": np.full((LENGTH, 2), -np.inf, np.float32)}, {"axis": 0}),
    ("arg_min", {"input": _integers("uint8", 2, LENGTH)}, {"axis": 1, "keep_dimensions": True}),
    ("arg_min", {"input": -_late((LENGTH, 1))}, {"axis": 0, "output_data_type": "int64"}),
    *(
        (
            "cumulative_sum",
            {"input": _integers("int32", 2, LENGTH, 2) % 100},
            {"axis": 1, "exclusive": exclusive, "reversed": backward},
        )
        for exclusive in (False, True)
        for backward in (False, True)
    ),
    ("cumulative_sum", {"input": _normal(2, LENGTH, dtype="float16") / 64}, {"axis": 1}),
    *(
        (name, operands, options)
        for name in ("average_pool2d", "l2_pool2d", "max_pool2d")
        for operands, options in (
            (_WIDE, {}),
            (_WIDE, {"window_dimensions": [256, 256], "padding": [3, 0, 1, 2]}),
            (
                {"input": _normal(1, 300, 270, 2, dtype="float16")},
                {
                    "window_dimensions": [181, 182],
                    "padding": [3, 2, 1, 9],
                    "strides": [50, 40],
                    "layout": "nhwc",
                    "output_shape_rounding": "ceil",
                },
            ),
            (
                {"input": _late((1, 1, 1, 2 * LENGTH))},
                {"window_dimensions": [1, LENGTH], "dilations": [1, 2], "padding": [0, 0, 0, 9]},
            ),
        )
    ),
    ("max_pool2d", {"input": _integers("int8", 1, 2, 300, 300)}, {}),
    ("layer_normalization", _NORMALIZED, {}),
    ("instance_normalization", {"input": _normal(1, 2, 512, 512)}, {}),
    ("softmax", _NORMALIZED, {"axis": 1}),
    ("matmul", _MATRICES, {}),
    ("matmul", {"a": np.ones((40, 70_000), np.float32), "b": np.ones((70_000, 40), "f")}, {}),
    ("matmul", _HALVES, {}),
    ("gemm", {"a": _normal(3, LENGTH), "b": _normal(2, LENGTH)}, {"b_transpose": True}),
    ("conv2d", _POINTS | {"filter": _normal(3, LENGTH, 1, 1)}, {}),
    (
        "conv2d",
        {
            "input": _normal(1, 2, 2, 80_000) / 100,
            "filter": _normal(4, 1, 1, 40_000),
            "bias": _normal(4),
        },
        {"groups": 2, "input_layout": "nhwc", "filter_layout": "ohwi"},
    ),
    (
        "conv2d",
        {"input": _normal(1, 9000, 3, 3) / 100, "filter": _normal(2, 9000, 3, 3)},
        {"padding": [1, 1, 1, 1]},
    ),
    ("conv2d", {"input": _normal(1, 1, 2, LENGTH), "filter": _normal(2, 1, 2, 70_000)}, {}),
    ("conv2d", {"input": _normal(1, 1, LENGTH, 1), "filter": _normal(2, 1, 70_000, 1)}, {}),
    ("conv2d", {"input": _normal(1, 1, 301, 300), "filter": _normal(2, 1, 300, 300)}, {}),
    ("conv_transpose2d", _POINTS | {"filter": _normal(LENGTH, 3, 1, 1)}, {}),
    (
        "conv_transpose2d",
        {
            "input": _normal(1, 18_000, 2, 2) / 100,
            "filter": _normal(18_000, 2, 3, 3),
            "bias": _normal(4),
        },
        {"groups": 2, "strides": [2, 2], "padding": [1, 1, 1, 1]},
    ),
    (
        "conv_transpose2d",
        {"input": _normal(1, 1, 1, 40), "filter": _normal(1, 1, 1, 33_000)},
        {"padding": [0, 0, 16_000, 17_020]},
    ),
]


@pytest.mark.parametrize(
    ("name", "operands", "options"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_more_elements_than_rounds(
    each_device: MLContext,
    reference: MLContext,
    name: str,
    operands: Mapping[str, Array],
    options: dict[str, Any],
) -> None:
    assert_like_reference(each_device, reference, applied(name, operands, **options))


PACKED = [("uint8", 16_384), ("uint8", 70_001), ("int8", 200_003), ("float16", 32_768)]
PACKED += [("float16", 65_536)]
"""Types of which one invocation writes several elements, each by a loop: rounds near 65,536."""


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize(("data_type", "length"), PACKED)
def test_loops_of_packed_elements(
    as_device: Callable[..., MLContext],
    reference: MLContext,
    data_type: str,
    length: int,
    kind: str,
) -> None:
    """Results of reductions, poolings and sums, and those that a cast packs behind a loop."""
    x = _normal(5, length, dtype=data_type) if data_type == "float16" else None
    x = _integers(data_type, 5, length) if x is None else x
    context = as_device(kind=kind, f16=False, int64=False)
    for name, make in PACKED_RESULTS.items():
        part = x[:1] if name == "cumulative_sum" else x  # quadratic work
        got, wanted = (_packed_result(on, make, part) for on in (context, reference))
        assert_close(got, wanted)


PACKED_RESULTS: dict[str, Callable[[MLGraphBuilder, MLOperand], MLOperand]] = {
    "reduce_min": lambda b, x: b.reduce_min(x, axes=[1]),
    "reduce_max of all": lambda b, x: b.reduce_max(x),
    "max_pool2d": lambda b, x: b.max_pool2d(
        b.reshape(x, [1, 1, *x.shape]), window_dimensions=[1, int(x.shape[1])]
    ),
    "arg_min": lambda b, x: b.cast(b.arg_min(x, 1), "uint8"),
    "arg_max": lambda b, x: b.cast(b.arg_max(x, 1), "int8"),
    "reduce_sum": lambda b, x: b.cast(b.reduce_sum(b.cast(x, "int32"), axes=[1]), x.data_type),
    "cumulative_sum": lambda b, x: b.cast(
        b.cumulative_sum(b.cast(x, "int32"), 1, exclusive=True, reversed=True), "uint8"
    ),
}


def _packed_result(
    context: MLContext, make: Callable[[MLGraphBuilder, MLOperand], MLOperand], x: Array
) -> Array:
    builder = MLGraphBuilder(context)
    made = make(builder, builder.input("x", x.dtype.name, x.shape))
    graph = builder.build_sync({"y": made})
    if context.device_type == "cpu":
        return MLExecution(context).compute(graph, {"x": x})["y"]
    return asyncio.run(MLAwaitedExecution(context).compute(graph, {"x": x}))["y"]


@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_of_one_element(
    each_device: MLContext, reference: MLContext, exclusive: bool
) -> None:
    operands = {"input": _integers("int32", 5, 1, 2)}
    call = applied("cumulative_sum", operands, axis=1, exclusive=exclusive)
    assert_like_reference(each_device, reference, call)


def test_functions_with_loops_inside_of_loops(each_device: MLContext) -> None:
    """A power makes up to 32 rounds, so 8,192 of them too many for one loop."""
    x = _RNG.integers(-2, 3, 8192).astype(np.int32)
    builder = MLGraphBuilder(each_device)
    powers = builder.pow(builder.input("x", "int32", [8192]), builder.constant(7, "int32"))
    graph = builder.build_sync({"y": builder.reduce_sum(powers)})
    result = asyncio.run(MLAwaitedExecution(each_device).compute(graph, {"x": x}))
    assert result["y"] == (x**7).sum()


def test_what_no_driver_is_sure_to_do_is_refused(gpu: MLContext) -> None:
    """Rather than computed wrongly: far more than a thousand windows of two million elements."""
    builder = MLGraphBuilder(gpu)
    x = builder.input("x", "float32", [1, 1, 1, 3_000_000])
    y = builder.max_pool2d(x, window_dimensions=[1, 2_000_000], label="widest")
    with pytest.raises(NotSupportedError, match=r"max_pool2d.*rounds.*smaller window"):
        builder.build_sync({"y": y})
