"""64-bit integers on WebGPU, with shader-int64 and as pairs of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.compared import ELEMENTWISE, applied, assert_like_reference
from tests.graphs import awaited
from tests.property.drawing import Array
from tests.public import OPERANDS, REDUCTIONS, WHOLE_BYTES, limits_of
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder

pytestmark = pytest.mark.kernels

WIDE = ("int64", "uint64")
POWERS = (0, 1, 15, 31, 32, 33, 52, 62, 63)
EXTREMES = sorted({sign * (2**k + d) for k in POWERS for d in (-1, 0, 1) for sign in (-1, 1)})


def wide_operators() -> list[tuple[str, str]]:
    """Elementwise operators with their 64-bit data types."""
    return [
        (name, data_type)
        for name in ELEMENTWISE
        for data_type in WIDE
        if data_type in [*OPERANDS[name].values()][-1]
    ]


def extremes(data_type: str) -> Array:
    least, most = limits_of(data_type)
    return np.array([v for v in EXTREMES if least <= v <= most] + [3, 7], data_type)


def full_range(data_type: str, *shape: int) -> Array:
    rng = np.random.default_rng(0)
    return rng.integers(*map(int, limits_of(data_type)), shape, data_type, endpoint=True)


@pytest.mark.parametrize(("name", "data_type"), wide_operators())
def test_wide_integers(
    each_device: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    values = extremes(data_type)
    columns = [values, values[:, np.newaxis]]
    names = list(OPERANDS[name])
    operands = dict(zip(names[-2:], columns, strict=False))
    options: dict[str, Any] = {}
    if name == "where":
        operands["condition"] = np.arange(values.size, dtype=np.uint8) % 2
    if name == "clamp":
        low = 0 if data_type == "uint64" else -(2**40)
        options = {"min_value": low + 5, "max_value": 2**40 + 1}
    if name == "prelu":
        operands = {"input": np.tile(values, (values.size, 1)), "slope": columns[1]}
    for more in [{"data_type": t} for t in WHOLE_BYTES] if name == "cast" else [{}]:
        assert_like_reference(each_device, reference, applied(name, operands, **options, **more))


@pytest.mark.parametrize("data_type", WIDE)
@pytest.mark.parametrize("target", WHOLE_BYTES)
def test_casts_to_wide_integers(
    each_device: MLContext, reference: MLContext, data_type: str, target: str
) -> None:
    values = np.array([0, 1, -1, 2.5, -7.9, 126, -128, 65504, 2**31, -(2**31), 2**40, 3e19, -3e19])
    low, high = (-np.inf, np.inf)
    if "int" in target:
        low, high = limits_of(target)[0], 2.0 ** (8 * np.dtype(target).itemsize - 2)
    with np.errstate(over="ignore"):
        source = np.clip(values, low, high).astype(target)
    call = applied("cast", {"input": source}, data_type=data_type)
    assert_like_reference(each_device, reference, call)


@pytest.mark.parametrize("data_type", WIDE)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_wide_integers(
    each_device: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    if data_type not in OPERANDS[name]["input"]:
        assert OPERANDS[name]["input"] == ("float32", "float16")
        return
    for shape in ((4, 5), (2, 700)):
        values = full_range(data_type, *shape)
        assert_like_reference(each_device, reference, applied(name, {"input": values}, axes=[1]))


@pytest.mark.parametrize("data_type", WIDE)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("arg_max", {"axis": 0, "output_data_type": "int64"}),
        ("arg_min", {"axis": 1}),
        ("cumulative_sum", {"axis": 1, "reversed": True}),
        ("expand", {"new_shape": [3, 4, 5]}),
        ("pad", {"beginning_padding": [1, 0], "ending_padding": [0, 2], "value": 2**40 + 3}),
        ("reverse", {"axes": [1]}),
        ("slice", {"starts": [1, 0], "sizes": [3, 5], "strides": [2, 2]}),
        ("split", {"splits": 2, "axis": 0}),
        ("tile", {"repetitions": [2, 3]}),
        ("transpose", {}),
        ("triangular", {"diagonal": 1}),
    ],
)
def test_moving_wide_integers(
    each_device: MLContext, reference: MLContext, name: str, options: dict[str, Any], data_type: str
) -> None:
    values = {"input": full_range(data_type, 4, 5)}
    assert_like_reference(each_device, reference, applied(name, values, **options))


@pytest.mark.parametrize("data_type", WIDE)
def test_pooling_wide_integers(
    each_device: MLContext, reference: MLContext, data_type: str
) -> None:
    values = {"input": full_range(data_type, 1, 2, 4, 5)}
    call = applied("max_pool2d", values, window_dimensions=[2, 2], padding=[1, 0, 1, 0])
    assert_like_reference(each_device, reference, call)


def computed(graph: MLGraph, context: MLContext, inputs: dict[str, Array]) -> Array:
    """The output `y`."""
    if context.device_type == "cpu":
        return MLExecution(context).compute(graph, inputs)["y"]
    result: Array = awaited(graph, inputs)["y"]
    return result


@pytest.mark.parametrize("number", [-(2**32), -5, -1, 0, 2, 2**31 - 1, 2**31])
@pytest.mark.parametrize(
    "name", ["lesser", "lesser_or_equal", "greater", "greater_or_equal", "max"]
)
def test_comparing_what_was_widened(
    each_device: MLContext, reference: MLContext, name: str, number: int
) -> None:
    values = np.array([0, 1, 2, 127, -1, -4, -128, 2**31 - 1, -(2**31)], np.int32)
    results = []
    for context in (each_device, reference):
        builder = MLGraphBuilder(context)
        wide = builder.cast(builder.input("x", "int32", values.shape), "int64")
        compared = getattr(builder, name)(wide, builder.constant(number, "int64"))
        results.append(computed(builder.build_sync({"y": compared}), context, {"x": values}))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("kind", ["int8", "int32"])
def test_indices_that_were_widened(each_device: MLContext, reference: MLContext, kind: str) -> None:
    x, indices = np.arange(5, dtype=np.float32), np.array([-1, -5, -6, 0, 4, 5], kind)
    results = []
    for context in (each_device, reference):
        builder = MLGraphBuilder(context)
        places = builder.cast(builder.input("i", kind, indices.shape), "int64")
        taken = builder.gather(builder.input("x", "float32", x.shape), places)
        graph = builder.build_sync({"y": taken})
        results.append(computed(graph, context, {"x": x, "i": indices}))
    np.testing.assert_array_equal(*results)
