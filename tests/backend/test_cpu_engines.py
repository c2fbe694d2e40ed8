"""Engines of CPU contexts give what the reference gives: operators, indices, random graphs.

WEBNN_EXAMPLES=100 draws so many calls of each operator; WEBNN_RANDOM_CASES=500 so many graphs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.backend.compared import (
    ELEMENTWISE,
    MAY_QUANTIZE,
    NOT_OF_INFINITIES,
    applied,
    assert_indices_are_clamped,
    assert_like_reference,
    built,
    declared,
    drawn,
    units_apart,
)
from tests.graphs import build, expected, normal
from tests.property.drawing import Array
from tests.property.graphs import seeded_case
from tests.public import OPERANDS, OPERATORS, REDUCTIONS, WHOLE_BYTES, limits_of
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand, MLOperandDataType, ml

EXAMPLES = int(os.environ.get("WEBNN_EXAMPLES", "2"))
SEEDS = range(int(os.environ.get("WEBNN_RANDOM_CASES", "25")))
INDICES = {
    "int32": [0, 4, -1, -5, -6, 5, 2**31 - 1, -(2**31)],
    "uint32": [0, 4, 5, 2**31, 2**32 - 1],
    "int64": [0, 4, -1, -5, -6, 5, 2**31, -(2**31), 2**32 + 1, 2**63 - 1, -(2**63)],
}


@pytest.fixture(scope="session", params=["onnxruntime", "openvino"])
def engine(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each engine that is installed."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with ml.create_context_sync(engine=request.param) as context:
        yield context


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in MAY_QUANTIZE])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_operator(
    engine: MLContext, reference: MLContext, name: str, data: st.DataObject
) -> None:
    call = drawn(data, name)
    if name == "gelu":
        # Its far tail cancels: right to 1e-7, not to so many places.
        assume(np.max(call.operands["input"].array) > -2)  # type: ignore[union-attr]
    assert_like_reference(engine, reference, call, units_apart(name))


@pytest.mark.parametrize("kind", INDICES)
def test_indices_outside_are_clamped(engine: MLContext, reference: MLContext, kind: str) -> None:
    indices = np.array(INDICES[kind], kind)
    assert_indices_are_clamped(engine, reference, indices)


ENDS = [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 127.6, 128, -129, 255.6, 256, 2.0**31, -(2.0**31)]
ENDS += [2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("data_type", WHOLE_BYTES)
@pytest.mark.parametrize("source", ["float32", "float16"])
def test_casts_saturate(
    engine: MLContext, reference: MLContext, source: str, data_type: str
) -> None:
    with np.errstate(over="ignore"):
        values = np.array(ENDS, np.float64).astype(source)
    call = applied("cast", {"input": values}, data_type=data_type)
    assert_like_reference(engine, reference, call)


WHOLE = [name for name in WHOLE_BYTES if "int" in name]
APART = ("cast", "where")
POINTWISE = [n for n in ELEMENTWISE if declared(n).family == "elementwise" and n not in APART]


@pytest.mark.parametrize("data_type", WHOLE)
@pytest.mark.parametrize("name", POINTWISE)
def test_ends_of_integers(
    engine: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    if any(data_type not in types for types in OPERANDS[name].values()):
        return  # another kind of operator
    least, most = map(int, limits_of(data_type))
    ends = [0, 1, 2, 3, most, most - 1, least, least + 1]
    ends.append((most >> 32) + 1)  # no int32, if this has 64 bits
    values = np.array(ends + [-1] * (least < 0), data_type)
    one, other = np.meshgrid(values, np.tile(values, 4))
    operands = dict(zip(OPERANDS[name], (one, other), strict=False))
    assert_like_reference(engine, reference, applied(name, operands))
    for value in values if len(operands) == 2 else ():
        pair = dict(zip(operands, (np.tile(values, 4), np.array(value)), strict=True))
        assert_like_reference(engine, reference, applied(name, pair))


@pytest.mark.parametrize("data_type", WHOLE)
@pytest.mark.parametrize("name", [*REDUCTIONS, "arg_max", "arg_min", "cumulative_sum"])
def test_ends_of_integers_along_axes(
    engine: MLContext, reference: MLContext, name: str, data_type: str
) -> None:
    if data_type not in OPERANDS[name]["input"]:
        return  # another kind of operator
    least, most = map(int, limits_of(data_type))
    ends = [0, 1, 2, most, most - 1, least, least + 1, 3]
    values = np.array([ends[i:] + ends[:i] for i in range(8)] * 3, data_type)
    for axis in (0, 1):
        options = {"axes": [axis]} if name in REDUCTIONS else {"axis": axis}
        for array in (values, values[:5], values[:, 1:6]):
            call = applied(name, {"input": array}, **options)
            assert_like_reference(engine, reference, call)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "arg_max", "arg_min"])
def test_extremes_of_numbers_whose_upper_halves_differ(
    engine: MLContext, reference: MLContext, name: str
) -> None:
    numbers = [0, 1, -1, -255, -8192, 2**31, 2**32 - 1, 2**33, -(2**31) - 1, -(2**32), -(2**33)]
    values = np.random.default_rng(0).choice(np.array(numbers), (3, 50, 7))
    for axis in range(3):
        options = {"axis": axis} if name.startswith("arg") else {"axes": [axis]}
        call = applied(name, {"input": values}, **options)
        assert_like_reference(engine, reference, call)


FLOATS = [0, -0.0, 1, -1, 0.5, -2.5, 3, 100, -100, 1e-30, 3e38, -3e38, np.inf, -np.inf, np.nan]
OF_FLOATS = [
    name
    for name in ELEMENTWISE
    if name not in APART and all("float32" in types for types in OPERANDS[name].values())
]


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", OF_FLOATS)
def test_ends_of_floats(engine: MLContext, reference: MLContext, name: str, data_type: str) -> None:
    is_finite = name in NOT_OF_INFINITIES.get(engine.engine, ())
    numbers = [x for x in FLOATS if abs(x) < 1e38 or not is_finite]
    with np.errstate(over="ignore"):
        pairs = np.meshgrid(*[np.array(numbers).astype(data_type)] * 2)
    operands = dict(zip(OPERANDS[name], pairs, strict=False))
    options = {"min_value": -1, "max_value": 2} if name == "clamp" else {}
    assert_like_reference(engine, reference, applied(name, operands, **options))


@pytest.mark.parametrize("wanted", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_infinities_are_quantized_to_the_ends(
    engine: MLContext, reference: MLContext, data_type: str, wanted: str
) -> None:
    values = np.array([np.inf, -np.inf, 60000, -60000, 2], data_type)
    scale, zero = np.array([0.5], data_type), np.array([3], wanted)
    operands = {"input": values, "scale": scale, "zero_point": zero}
    assert_like_reference(engine, reference, applied("quantize_linear", operands))


@pytest.mark.parametrize("data_type", ["int4", "uint4"])
def test_what_was_quantized_to_4_bits_is_read(
    engine: MLContext, reference: MLContext, data_type: MLOperandDataType
) -> None:
    values = np.linspace(-9, 9, 15, dtype=np.float32).reshape(3, 5)

    def computed(context: MLContext) -> Array:
        b = MLGraphBuilder(context)
        scale = b.constant(np.full([3, 1], 0.5, np.float32))
        zero = b.constant(bytes([0x21, 0x03]), data_type, [3, 1])
        x = b.quantize_linear(b.input("x", "float32", values.shape), scale, zero)
        graph = b.build_sync({"y": b.relu(b.dequantize_linear(x, scale, zero))})
        return MLExecution(context).compute(graph, {"x": values})["y"]

    np.testing.assert_array_equal(computed(engine), computed(reference))


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["transpose", "reshape", "slice", "concat", "relu", "max_pool2d"])
def test_what_was_quantized_is_moved(
    engine: MLContext, reference: MLContext, name: str, data_type: MLOperandDataType
) -> None:
    moves: dict[str, Callable[[MLGraphBuilder, MLOperand], MLOperand]] = {
        "reshape": lambda b, x: b.reshape(x, [30]),
        "slice": lambda b, x: b.slice(x, [0, 0, 1, 1], [1, 1, 3, 4], strides=[1, 1, 2, 2]),
        "concat": lambda b, x: b.concat([x, x], 0),
    }
    values = np.linspace(-9, 9, 30, dtype=np.float32).reshape(1, 1, 5, 6)

    def computed(context: MLContext) -> Array:
        b = MLGraphBuilder(context)
        scale = b.constant(np.full([1] * 4, 0.25, np.float32))
        zero = b.constant(np.full([1] * 4, 3, data_type))
        x = b.quantize_linear(b.input("x", "float32", values.shape), scale, zero)
        x = b.dequantize_linear(x, scale, zero)
        graph = b.build_sync({"y": moves[name](b, x) if name in moves else getattr(b, name)(x)})
        return MLExecution(context).compute(graph, {"x": values})["y"]

    np.testing.assert_array_equal(computed(engine), computed(reference))


@pytest.mark.parametrize("name", ["add", "average_pool2d", "sigmoid"])
@pytest.mark.parametrize("data_type", ["int8", "uint8"])
def test_quantized_again_otherwise(
    engine: MLContext, reference: MLContext, name: str, data_type: MLOperandDataType
) -> None:
    """By channel, and then to another data type."""
    values = np.linspace(-9, 9, 60, dtype=np.float32).reshape(1, 2, 5, 6)

    def computed(context: MLContext) -> Array:
        b = MLGraphBuilder(context)

        def rounded(x: MLOperand, shape: list[int], to: MLOperandDataType) -> MLOperand:
            ends = b.constant(np.full(shape, 0.25, np.float32)), b.constant(np.full(shape, 3, to))
            return b.dequantize_linear(b.quantize_linear(x, *ends), *ends)

        x = rounded(b.input("x", "float32", values.shape), [1, 2, 1, 1], data_type)
        y = getattr(b, name)(*[x] * len(OPERANDS[name]))
        graph = b.build_sync({"y": rounded(y, [1] * 4, "uint8")})
        return MLExecution(context).compute(graph, {"x": values})["y"]

    np.testing.assert_allclose(computed(engine), computed(reference), atol=0.26)


def test_quantized_twice(engine: MLContext, reference: MLContext) -> None:
    values = np.linspace(-9, 9, 61, dtype=np.float32)

    def computed(context: MLContext) -> Array:
        b = MLGraphBuilder(context)
        x = b.input("x", "float32", [61])
        scale = b.constant(np.full(1, 0.1, np.float32))
        for zero in (np.full(1, 100, np.uint8), np.full(1, 3, np.int8), np.zeros(1, np.int8)):
            ends = scale, b.constant(zero)
            x = b.dequantize_linear(b.quantize_linear(x, *ends), *ends)
        return MLExecution(context).compute(b.build_sync({"y": x}), {"x": values})["y"]

    np.testing.assert_allclose(computed(engine), computed(reference), rtol=1e-6)


def test_softplus_is_right_far_below_zero(engine: MLContext) -> None:
    values = np.linspace(-30, 30, 1201, dtype=np.float32)
    builder = MLGraphBuilder(engine)
    x = builder.input("x", "float32", values.shape)
    results = MLExecution(engine).compute(
        builder.build_sync({"y": builder.softplus(x)}), {"x": values}
    )
    wanted = np.logaddexp(0, values.astype(np.float64))
    np.testing.assert_allclose(results["y"], wanted, rtol=4e-7, atol=1.2e-7)
    assert (results["y"] >= 0).all()


@pytest.mark.parametrize("name", OF_FLOATS)
def test_what_others_read_of_a_concat(engine: MLContext, reference: MLContext, name: str) -> None:
    """Nobody writes its result there."""
    values = np.linspace(-2, 3, 6, dtype=np.float32)

    def computed(context: MLContext) -> dict[str, Array]:
        builder = MLGraphBuilder(context)
        y = builder.concat([builder.input("x", "float32", [6])] * 2, 0)
        made = getattr(builder, name)(*[y] * len(OPERANDS[name]))
        outputs = {"made": made, "other": builder.neg(y), "last": builder.floor(y)}
        return MLExecution(context).compute(builder.build_sync(outputs), {"x": values})

    results = computed(engine)
    for key, wanted in computed(reference).items():
        np.testing.assert_allclose(results[key], wanted, rtol=1e-4, atol=1e-5)


ROWS = [
    [-np.inf] * 3,
    [np.inf] * 3,
    [np.nan, 1, -np.inf],
    [1, np.nan, np.inf],
    [-3e38, -np.inf, -3],
]


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
def test_extremes_of_special_values(reference: MLContext, name: str) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    operands = {"input": np.array(ROWS, np.float32)}
    with ml.create_context_sync(engine="openvino") as engine:
        for keep in (False, True):
            call = applied(name, operands, axes=[1], keep_dimensions=keep)
            assert_like_reference(engine, reference, call)


def test_slopes_along_the_last_dimension(engine: MLContext, reference: MLContext) -> None:
    """Of as many places as there are channels, and one for all."""
    for slope in (normal(4), normal()):
        call = applied("prelu", {"input": normal(2, 4, 3, 4), "slope": slope})
        assert_like_reference(engine, reference, call)


def test_weights_that_are_read_turned_and_as_they_are(engine: MLContext) -> None:
    """The same square matrix: as the second operand of products, and as the filter of windows."""
    weights, x = normal(32, 32), normal(4, 32, seed=1)

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        rows, matrix = b.input("x", "float32", [4, 32]), b.constant(weights)
        image, filter = b.reshape(rows, [1, 16, 2, 4]), b.reshape(matrix, [16, 16, 2, 2])
        turned = b.gemm(rows, matrix, b_transpose=True)
        return {
            "products": b.matmul(b.add(turned, b.gemm(rows, matrix)), matrix),
            "windows": b.conv2d(image, filter),
            "spread": b.conv_transpose2d(image, filter),
        }

    results = MLExecution(engine).compute(build(engine, what), {"x": x})
    for name, wanted in expected(what, {"x": x}).items():
        np.testing.assert_allclose(results[name], wanted, rtol=0, atol=1e-3, err_msg=name)


MISTAKEN = {
    ("openvino", 77): "a softmax that a transposed convolution and a reshape read is overwritten",
}
"""Graphs that an engine gets wrong as a whole, and why."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(engine: MLContext, seed: int) -> None:
    if (engine.engine, seed) in MISTAKEN:
        pytest.xfail(MISTAKEN[engine.engine, seed])
    case = seeded_case(seed)
    graph = built(engine, case.graph)
    case.assert_close(MLExecution(engine).compute(graph, case.inputs))
