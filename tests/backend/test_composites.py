"""Composite extensions give what ONNX's own definitions and NumPy give, on every engine."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.graphs import awaited, build
from tests.property.drawing import Array
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, MLOperand, ml
from webnn_py.core.dtypes import pack_4bit
from webnn_py.onnx import to_onnx

Applied = Callable[..., MLOperand]
TOLERANCES = {"float32": 2e-5, "float16": 1e-2}


@pytest.fixture(
    scope="module", params=["reference", "onnxruntime", "openvino", "gpu", "plain", "hardware"]
)
def context(request: pytest.FixtureRequest) -> MLContext:
    """A context of each engine, and one on a device with WebGPU's least."""
    if request.param in ("reference", "gpu", "plain", "hardware"):
        found: MLContext = request.getfixturevalue(request.param)
        return found
    pytest.importorskip(request.param)
    return ml.create_context_sync(engine=request.param)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(seed: int, *shape: int, data_type: str = "float32") -> Array:
    return rng(seed).normal(size=shape).astype(data_type)


def graph_of(context: MLContext, apply: Applied, inputs: Mapping[str, Array]) -> MLGraph:
    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        made = {n: b.input(n, str(a.dtype), a.shape) for n, a in inputs.items()}
        return {"y": apply(b, **made)}

    return build(context, body)


def computed(context: MLContext, apply: Applied, inputs: Mapping[str, Array]) -> Array:
    result: Array = awaited(graph_of(context, apply, inputs), dict(inputs))["y"]
    return result


def by_onnx(operator: str, version: int, inputs: Mapping[str, Any], **attributes: Any) -> Array:
    """Compute one operator with ONNX's reference; None for an absent input."""
    given = {name: array for name, array in inputs.items() if array is not None}
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(operator, names, ["y"], **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "one", ends, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    return np.asarray(ReferenceEvaluator(model).run(["y"], given)[0])


def assert_near(got: Array, wanted: Array) -> None:
    tolerance = TOLERANCES[str(got.dtype)]
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance
    )


# Attention


def attention_inputs(
    heads: int = 4, shared: int = 2, rows: int = 5, keys: int = 9, data_type: str = "float32"
) -> dict[str, Array]:
    return {
        "query": normal(0, 2, heads, rows, 8, data_type=data_type),
        "key": normal(1, 2, shared, keys, 8, data_type=data_type),
        "value": normal(2, 2, shared, keys, 6, data_type=data_type),
    }


LENGTHS = np.array([6, 9])
BOOLS = rng(3).random((2, 4, 5, 9)) < 0.6
ADDED = np.where(BOOLS, normal(4, 2, 4, 5, 9), -np.inf).astype(np.float32)
ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Array], dict[str, Any]]] = {
    # Our options, our further operands; ONNX's attributes.
    "plain": ({}, {}, {}),
    "scale": ({"scale": 0.3}, {}, {"scale": 0.3}),
    "softcap": ({"softcap": 1.5}, {}, {"softcap": 1.5}),
    "bools": ({}, {"mask": BOOLS}, {}),
    "bools of a head": ({}, {"mask": BOOLS[:1, 1:2]}, {}),
    "bools of keys": ({}, {"mask": BOOLS[0, 0, :1]}, {}),
    "added": ({}, {"mask": ADDED}, {}),
    "added and softcap": ({"softcap": 2.0}, {"mask": ADDED[:, :1]}, {"softcap": 2.0}),
    "causal with lengths": ({"causal": True}, {"lengths": LENGTHS}, {"is_causal": 1}),
    "lengths and bools": ({}, {"mask": BOOLS, "lengths": LENGTHS}, {}),
    "all": (
        {"causal": True, "softcap": 3.0},
        {"mask": ADDED, "lengths": LENGTHS},
        {"is_causal": 1, "softcap": 3.0},
    ),
}


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("case", ATTENTION)
def test_attention_is_that_of_onnx(context: MLContext, case: str, data_type: str) -> None:
    options, more, attributes = ATTENTION[case]
    inputs = attention_inputs(data_type=data_type)
    mask, lengths = more.get("mask"), more.get("lengths")
    if mask is not None and mask.dtype != bool:
        mask = mask.astype(data_type)
    wanted = by_onnx(
        "Attention",
        24,
        {**inputs, "mask": mask, "past": None, "past_value": None, "lengths": lengths},
        **attributes,
    )
    if mask is not None:
        inputs["mask"] = mask.astype(np.uint8) if mask.dtype == bool else mask
    if lengths is not None:
        inputs["lengths"] = lengths.astype(np.int32)

    def apply(b: MLGraphBuilder, query: Any, key: Any, value: Any, **given: Any) -> MLOperand:
        return b.scaled_dot_product_attention(query, key, value, **given, **options)

    assert_near(computed(context, apply, inputs), wanted)


@pytest.mark.parametrize("rows", [1, 4])
def test_causal_queries_are_the_last_positions_as_behind_a_cache(
    context: MLContext, rows: int
) -> None:
    inputs = attention_inputs(rows=rows)
    past = {name: inputs[name][:, :, : 9 - rows] for name in ("key", "value")}
    wanted = by_onnx(
        "Attention",
        23,
        {
            "query": inputs["query"],
            "key": inputs["key"][:, :, 9 - rows :],
            "value": inputs["value"][:, :, 9 - rows :],
            "mask": None,
            "past_key": past["key"],
            "past_value": past["value"],
        },
        is_causal=1,
    )

    def apply(b: MLGraphBuilder, query: Any, key: Any, value: Any) -> MLOperand:
        return b.scaled_dot_product_attention(query, key, value, causal=True)

    assert_near(computed(context, apply, inputs), wanted)


@pytest.mark.parametrize("window", [1, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_counts_keys_up_to_the_own_one(
    context: MLContext, window: int, causal: bool
) -> None:
    inputs = attention_inputs()

    def masked(b: MLGraphBuilder, query: Any, key: Any, value: Any) -> MLOperand:
        own = np.arange(5)[:, None] + 4
        seen = np.arange(9) > own - window
        seen = seen & (np.arange(9) <= own) if causal else seen
        mask = b.constant(seen.astype(np.uint8))
        return b.scaled_dot_product_attention(query, key, value, mask=mask)

    def windowed(b: MLGraphBuilder, query: Any, key: Any, value: Any) -> MLOperand:
        return b.scaled_dot_product_attention(query, key, value, causal=causal, window=window)

    expected = computed(context, masked, inputs)
    assert_near(computed(context, windowed, inputs), expected)


@pytest.mark.parametrize("how", ["rows", "bools", "added", "lengths", "causal lengths"])
def test_a_query_that_sees_no_key_gives_zeros(context: MLContext, how: str) -> None:
    inputs = attention_inputs(rows=5, keys=3 if how == "rows" else 9)
    mask = BOOLS.copy()
    mask[1, :, 2] = False
    empty: Any = (1, slice(None), 2)
    options: dict[str, Any] = {}
    if how == "rows":
        options, empty = {"causal": True}, (slice(None), slice(None), slice(0, 2))
    elif how == "bools":
        inputs["mask"] = mask.astype(np.uint8)
    elif how == "added":
        inputs["mask"] = np.where(mask, 1, -np.inf).astype(np.float32)
    else:
        inputs["lengths"] = np.array([5, 0 if how == "lengths" else 3], np.int64)
        options = {"causal": how != "lengths"}
        empty = 1 if how == "lengths" else (1, slice(None), slice(0, 2))

    def apply(b: MLGraphBuilder, query: Any, key: Any, value: Any, **given: Any) -> MLOperand:
        return b.scaled_dot_product_attention(query, key, value, **given, **options)

    got = computed(context, apply, inputs)
    np.testing.assert_array_equal(got[empty], 0)
    rest = np.ones(got.shape, bool)
    rest[empty] = False
    assert np.all(got[rest] != 0)


@pytest.mark.parametrize("how", ["causal", "lengths", "mask", "window"])
def test_large_scores_are_computed_part_by_part(
    context: MLContext, reference: MLContext, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = attention_inputs(rows=9)
    options: dict[str, Any] = {"causal": how != "mask"}
    if how == "lengths":
        inputs["lengths"] = np.array([4, 9], np.int32)
    if how == "mask":
        inputs["mask"] = np.repeat(BOOLS[:, :, :1], 9, axis=2).astype(np.uint8)
    if how == "window":
        options["window"] = 2

    def apply(b: MLGraphBuilder, query: Any, key: Any, value: Any, **given: Any) -> MLOperand:
        return b.scaled_dot_product_attention(query, key, value, **given, **options)

    expected = computed(reference, apply, inputs)
    limit = 4 * 2 * 4 * 9 * 4  # four rows of scores
    monkeypatch.setattr("webnn_py.ops.decompositions.attention.MAX_SCORE_BYTES", limit)
    assert_near(computed(context, apply, inputs), expected)


def test_the_reference_never_stores_all_scores(reference: MLContext) -> None:
    q, k = normal(0, 1, 1, 4096, 4), normal(1, 1, 1, 4096, 4)
    inputs = {"query": q, "key": k, "value": k}

    def apply(b: MLGraphBuilder, query: Any, key: Any, value: Any) -> MLOperand:
        return b.scaled_dot_product_attention(query, key, value)

    graph = graph_of(reference, apply, inputs)
    tracemalloc.start()
    got = MLExecution(reference).compute(graph, inputs)["y"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096 * 4096 * 8 / 8
    scores = q[0, 0, :3].astype(np.float64) @ k[0, 0].T / 2
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert_near(got[0, 0, :3], weights @ k[0, 0])


# Rotary embedding, normalization, caches


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("of", ["positions", "rows", "batches"])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_rotary_embedding_is_that_of_onnx(
    context: MLContext, interleaved: bool, of: str, data_type: str
) -> None:
    x = normal(0, 2, 3, 4, 10, data_type=data_type)
    angle = rng(1).uniform(0, 6, {"positions": (20, 4)}.get(of, (2, 4, 4)))
    inputs = {
        "x": x,
        "cos": np.cos(angle).astype(data_type),
        "sin": np.sin(angle).astype(data_type),
    }
    if of == "positions":
        inputs["positions"] = rng(2).integers(0, 20, (2, 4))
    if of == "rows":
        inputs |= {name: np.repeat(inputs[name][:1], 2, 0) for name in ("cos", "sin")}
    wanted = by_onnx(
        "RotaryEmbedding",
        23,
        inputs,
        interleaved=int(interleaved),
        rotary_embedding_dim=8,
    )
    if of == "rows":
        inputs |= {name: inputs[name][0] for name in ("cos", "sin")}

    def apply(b: MLGraphBuilder, x: Any, cos: Any, sin: Any, **given: Any) -> MLOperand:
        return b.rotary_embedding(x, cos, sin, interleaved=interleaved, **given)

    assert_near(computed(context, apply, inputs), wanted)


def test_a_table_may_have_fewer_rows_than_there_are_to_rotate(context: MLContext) -> None:
    angle = rng(1).uniform(0, 6, (3, 2))
    positions = np.array([[0, 1, 2, 3, 90], [-1, -3, -90, 1, 2]])
    inputs = {
        "x": normal(0, 2, 3, 5, 4),
        "cos": np.cos(angle).astype(np.float32),
        "sin": np.sin(angle).astype(np.float32),
        "positions": positions,
    }
    rows = np.where(positions < 0, positions + 3, positions).clip(0, 2)
    cos, sin = (inputs[name][rows][:, None] for name in ("cos", "sin"))
    a, b = inputs["x"][..., :2], inputs["x"][..., 2:]
    wanted = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def apply(b: MLGraphBuilder, x: Any, cos: Any, sin: Any, positions: Any) -> MLOperand:
        return b.rotary_embedding(x, cos, sin, positions=positions)

    assert_near(computed(context, apply, inputs), wanted)


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_rms_normalization_is_that_of_onnx(context: MLContext, first: int, data_type: str) -> None:
    x = (normal(0, 2, 3, 4, 5) * 300).astype(data_type)  # whose squares overflow float16
    inputs = {"x": x, "scale": normal(1, *x.shape[first:], data_type=data_type)}
    wide = {name: array.astype(np.float32) for name, array in inputs.items()}
    wanted = by_onnx("RMSNormalization", 23, wide, axis=first, epsilon=1e-3)

    def apply(b: MLGraphBuilder, x: Any, scale: Any) -> MLOperand:
        axes = None if first == 3 else list(range(first, 4))
        return b.rms_normalization(x, scale, epsilon=1e-3, axes=axes)

    assert_near(computed(context, apply, inputs), wanted)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("data_type", ["float32", "float16", "int8", "int64"])
def test_scatter_rows_is_tensor_scatter(
    context: MLContext, count: int, axis: int, data_type: str
) -> None:
    cache = rng(0).integers(-9, 9, (3, 6, 7, 2)).astype(data_type)
    shape = [count if i == axis else n for i, n in enumerate(cache.shape)]
    inputs = {
        "cache": cache,
        "rows": rng(1).integers(10, 90, shape).astype(data_type),
        "starts": np.array([0, 2, 3]),
    }
    wanted = by_onnx("TensorScatter", 24, inputs, axis=axis)

    def apply(b: MLGraphBuilder, cache: Any, rows: Any, starts: Any) -> MLOperand:
        return b.scatter_rows(cache, rows, starts, axis=axis)

    np.testing.assert_array_equal(computed(context, apply, inputs), wanted)


@pytest.mark.parametrize("start", [-9, -2, 4, 5, 2**31 - 1])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_rows_outside_of_the_cache_are_dropped(context: MLContext, start: int, count: int) -> None:
    inputs = {
        "cache": normal(0, 2, 3, 6, 2),
        "rows": normal(1, 2, 3, count, 2),
        "starts": np.array([start], np.int32),
    }
    wanted = inputs["cache"].copy()
    for i in range(count):
        if 0 <= start + i < 6:
            wanted[:, :, start + i] = inputs["rows"][:, :, i]

    def apply(b: MLGraphBuilder, cache: Any, rows: Any, starts: Any) -> MLOperand:
        return b.scatter_rows(cache, rows, starts)

    np.testing.assert_array_equal(computed(context, apply, inputs), wanted)


# Quantized products


@pytest.mark.parametrize("signs", ["uint8 int8", "int8 int8", "uint8 uint8", "int8 uint8"])
@pytest.mark.parametrize("zeros", ["none", "one", "each"])
@pytest.mark.parametrize("depth", [7, 1024, 1100])
def test_integer_products_are_exact_at_their_extremes(
    context: MLContext, signs: str, zeros: str, depth: int
) -> None:
    left, right = signs.split()
    a = rng(0).choice([np.iinfo(left).min, np.iinfo(left).max], (2, 3, depth)).astype(left)
    b = rng(1).choice([np.iinfo(right).min, np.iinfo(right).max], (2, depth, 4)).astype(right)
    a[:, 0], b[:, :, 0] = np.iinfo(left).max, np.iinfo(right).max
    inputs = {"a": a, "b": b}
    if zeros != "none":
        rows, columns = ((), ()) if zeros == "one" else ((2, 3, 1), (2, 1, 4))
        inputs["a_zero_point"] = np.full(rows, np.iinfo(left).min, left)
        inputs["b_zero_point"] = np.full(columns, np.iinfo(right).min, right)
    wanted = np.matmul(
        a.astype(np.int64) - inputs.get("a_zero_point", np.int64(0)).astype(np.int64),
        b.astype(np.int64) - inputs.get("b_zero_point", np.int64(0)).astype(np.int64),
    )

    def apply(builder: MLGraphBuilder, /, a: Any, b: Any, **given: Any) -> MLOperand:
        return builder.matmul_integer(a, b, **given)

    got = computed(context, apply, inputs)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("signs", ["uint8 int8", "int8 uint8"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [3, 80])
def test_integer_convolutions_are_exact_at_their_extremes(
    context: MLContext, signs: str, groups: int, channels: int
) -> None:
    left, right = signs.split()
    x = rng(0).choice([np.iinfo(left).min, np.iinfo(left).max], (2, channels * groups, 5, 4))
    w = rng(1).choice([np.iinfo(right).min, np.iinfo(right).max], (4, channels, 3, 2))
    inputs = {
        "input": x.astype(left),
        "filter": w.astype(right),
        "input_zero_point": np.full((), np.iinfo(left).min + 1, left),
        "filter_zero_point": np.arange(4).astype(right),
    }
    shifted = x - inputs["input_zero_point"].astype(np.int64)
    padded = np.pad(shifted, [(0, 0), (0, 0), (1, 1), (0, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2]
    by_group = windows.reshape(2, groups, channels, *windows.shape[2:])
    taps = (w - np.arange(4).reshape(-1, 1, 1, 1)).reshape(groups, 4 // groups, channels, 3, 2)
    wanted = np.einsum("ngchwij,gocij->ngohw", by_group, taps).reshape(2, 4, *windows.shape[2:4])

    def apply(builder: MLGraphBuilder, /, **given: Any) -> MLOperand:
        padding, strides = [1, 1, 0, 1], [2, 1]
        return builder.conv2d_integer(**given, groups=groups, padding=padding, strides=strides)

    np.testing.assert_array_equal(computed(context, apply, inputs), wanted)


def test_zero_points_of_rank_1_are_of_rows_and_columns(context: MLContext) -> None:
    inputs = {
        "a": rng(0).integers(0, 256, (3, 3)).astype(np.uint8),
        "b": rng(1).integers(0, 256, (3, 3)).astype(np.uint8),
        "a_zero_point": np.array([1, 100, 255], np.uint8),
        "b_zero_point": np.array([0, 7, 200], np.uint8),
    }
    wide = {name: array.astype(np.int64) for name, array in inputs.items()}
    wanted = (wide["a"] - wide["a_zero_point"][:, None]) @ (wide["b"] - wide["b_zero_point"])

    def apply(builder: MLGraphBuilder, /, a: Any, b: Any, **given: Any) -> MLOperand:
        return builder.matmul_integer(a, b, **given)

    np.testing.assert_array_equal(computed(context, apply, inputs), wanted)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("codes", ["int4", "uint4", "int8", "uint8", "bytes4", "bytes8"])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("depth", [64, 50])
def test_packed_products_multiply_by_the_dequantized_weights(
    context: MLContext, data_type: str, codes: str, has_zeros: bool, depth: int
) -> None:
    columns, block = 6, 32
    blocks = math.ceil(depth / block)
    bits = int(codes[-1])
    low = -(1 << (bits - 1)) if codes.startswith("i") else 0
    numbers = rng(0).integers(low, low + (1 << bits), (columns, depth))
    zeros = rng(1).integers(low, low + (1 << bits), (columns, blocks))
    default = 0 if codes.startswith("i") else 1 << (bits - 1)
    scales = rng(2).uniform(0.01, 0.1, (columns, blocks)).astype(data_type)
    x = normal(3, 2, depth, data_type=data_type)
    offset = np.repeat(zeros if has_zeros else np.full_like(zeros, default), block, 1)[:, :depth]
    weights = (numbers - offset) * np.repeat(scales.astype(np.float64), block, 1)[:, :depth]

    def constant(b: MLGraphBuilder, given: Array, is_codes: bool) -> MLOperand:
        if codes in ("int4", "uint4"):
            raw = pack_4bit(given.astype(np.int8)).tobytes()
            return b.constant(raw, codes, given.shape)  # type: ignore[arg-type]
        if not codes.startswith("bytes"):
            return b.constant(given.astype(codes))
        if is_codes:
            given = np.pad(given, [(0, 0), (0, blocks * block - depth)])
        if bits == 4:
            given = np.pad(given, [(0, 0), (0, given.shape[1] % 2)])
            given = pack_4bit(given.astype(np.uint8)).reshape(columns, -1)
        shape = (columns, blocks, block * bits // 8) if is_codes else (columns, -1)
        return b.constant(given.astype(np.uint8).reshape(shape))

    def apply(b: MLGraphBuilder, x: Any) -> MLOperand:
        zero = constant(b, zeros, False) if has_zeros else None
        return b.matmul_packed(x, constant(b, numbers, True), b.constant(scales), zero)

    assert_near(computed(context, apply, {"x": x}), x.astype(np.float64) @ weights.T)


@pytest.mark.parametrize("constant", ["neither", "codes", "zeros"])
def test_bytes_of_two_codes_need_not_be_constants(context: MLContext, constant: str) -> None:
    arrays = {
        "codes": rng(0).integers(0, 256, (3, 3, 2)).astype(np.uint8),
        "zeros": rng(1).integers(0, 256, (3, 2)).astype(np.uint8),
        "x": normal(2, 2, 10),
    }
    halves = [
        np.stack([arrays[n] & 15, arrays[n] >> 4], -1).astype(int) for n in ("codes", "zeros")
    ]
    codes = halves[0].reshape(3, 12)[:, :10]
    zeros = halves[1].reshape(3, 4)[:, :3].repeat(4, 1)[:, :10]

    def apply(b: MLGraphBuilder, x: Any, **given: Any) -> MLOperand:
        made = {n: given.get(n) or b.constant(arrays[n]) for n in ("codes", "zeros")}
        scales = b.constant(np.full((3, 3), 0.5, "f4"))
        return b.matmul_packed(x, made["codes"], scales, made["zeros"], block_size=4)

    inputs = {name: array for name, array in arrays.items() if name != constant}
    assert_near(computed(context, apply, inputs), arrays["x"] @ ((codes - zeros) * 0.5).T)


@pytest.mark.parametrize("constant", ["codes", "codes scales", "codes zeros", ""])
@pytest.mark.parametrize("bits", [4, 8])
def test_scales_and_zero_points_of_8_bit_products_need_not_be_constants(
    context: MLContext, bits: int, constant: str
) -> None:
    columns, blocks, block = 5, 2, 16
    codes = rng(0).integers(0, 1 << bits, (columns, blocks * block))
    zeros = rng(1).integers(0, 1 << bits, (columns, blocks))
    bytes_of = [part.astype(np.uint8) for part in (codes, zeros)]
    halves = bytes_of if bits == 8 else map(pack_4bit, bytes_of)
    arrays = dict(
        zip(("codes", "zeros"), halves, strict=True),
        scales=(rng(2).uniform(0.2, 1, (columns, blocks)) / 2**bits).astype(np.float32),
    )
    arrays["codes"] = arrays["codes"].reshape(columns, blocks, -1)
    arrays["zeros"] = arrays["zeros"].reshape(columns, -1)
    weights = (codes - zeros.repeat(block, 1)) * arrays["scales"].repeat(block, 1)
    x = normal(3, 4, blocks * block)

    def apply(b: MLGraphBuilder, x: Any, **given: Any) -> MLOperand:
        made = {name: given.get(name) or b.constant(array) for name, array in arrays.items()}
        return b.matmul_packed(
            x, made["codes"], made["scales"], made["zeros"], block_size=block, accuracy="int8"
        )

    given = {name: array for name, array in arrays.items() if name not in constant.split()}
    got = computed(context, apply, {"x": x, **given})
    np.testing.assert_allclose(got, x @ weights.T, rtol=0.02, atol=0.02 * 8)


def test_blocks_of_bytes_may_be_odd(context: MLContext) -> None:
    codes = rng(0).integers(0, 256, (4, 3, 5)).astype(np.uint8)
    scales = rng(1).uniform(0.01, 0.1, (4, 3)).astype(np.float32)
    x = normal(2, 3, 13)
    weights = ((codes.astype(np.int64) - 128) * scales[..., None]).reshape(4, 15)[:, :13]

    def apply(b: MLGraphBuilder, x: Any) -> MLOperand:
        return b.matmul_packed(x, b.constant(codes), b.constant(scales), block_size=5)

    assert_near(computed(context, apply, {"x": x}), x @ weights.T)


# What graphs of them can do


def every_composite(b: MLGraphBuilder) -> dict[str, MLOperand]:
    x = b.input("x", "float32", ["batch", 2, "rows", 8])
    tables = [b.constant(f(np.arange(80.0).reshape(20, 4)).astype("f4")) for f in (np.cos, np.sin)]
    positions = b.input("positions", "int64", ["batch", "rows"])
    starts = b.input("starts", "int32", ["batch"])
    cache = b.input("cache", "float32", ["batch", 2, 16, 8])
    normal_x = b.rms_normalization(x, b.constant(np.linspace(1, 2, 8).astype("f4")))
    turned = b.rotary_embedding(normal_x, *tables, positions=positions)
    kept = b.scatter_rows(cache, turned, starts)
    lengths = b.add(starts, b.constant(np.full(1, 3, "i4")))
    y = b.scaled_dot_product_attention(turned, kept, kept, causal=True, lengths=lengths)
    codes = b.constant(rng(1).integers(0, 256, (5, 1, 4)).astype(np.uint8))
    y = b.matmul_packed(y, codes, b.constant(np.full((5, 1), 0.1, "f4")), block_size=8)
    bytes_of = b.cast(b.clamp(y, min_value=-9, max_value=9), "int8")
    whole = b.matmul_integer(bytes_of, b.constant(rng(2).integers(-9, 9, (5, 3)).astype(np.int8)))
    return {"cache": kept, "whole": whole}


def test_graphs_of_composites_are_saved_exported_and_open(
    context: MLContext, reference: MLContext, tmp_path: Any
) -> None:
    graph = build(context, every_composite)
    graph.save(tmp_path / "all.mlgraph")
    loaded = reference.load_graph_sync(tmp_path / "all.mlgraph")
    for batch in (1, 3):
        inputs = {
            "x": normal(0, batch, 2, 3, 8),
            "positions": rng(1).integers(0, 20, (batch, 3)),
            "starts": rng(2).integers(0, 13, batch).astype(np.int32),
            "cache": normal(3, batch, 2, 16, 8),
        }
        wanted = awaited(loaded, inputs)
        got = awaited(graph, inputs)
        assert_near(got["cache"], wanted["cache"])
        assert np.abs(got["whole"] - wanted["whole"]).max() <= 9  # one step of one element
    model = to_onnx(loaded)
    made = ReferenceEvaluator(model).run(None, inputs)
    assert_near(np.asarray(made[0]), wanted["cache"])


@pytest.mark.parametrize("ends", [(-3.0, 5.0), (0.5, 7.0), (-4.0, -1.0), (0.0, 0.0)])
def test_dynamic_quantization_takes_the_range_with_zero(
    context: MLContext, ends: tuple[float, float]
) -> None:
    x = np.linspace(*ends, 3 * 37, dtype=np.float32).reshape(3, 37)
    builder = MLGraphBuilder(context)
    names = ("codes", "scale", "zero_point")
    made = builder.dynamic_quantize_linear(builder.input("x", "float32", x.shape))
    graph = builder.build_sync(dict(zip(names, made, strict=True)))
    got = awaited(graph, {"x": x})
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero_point = np.rint(-low / scale)
    assert got["codes"].dtype == got["zero_point"].dtype == np.uint8
    np.testing.assert_allclose(got["scale"], scale, rtol=1e-6)
    assert got["zero_point"] == zero_point
    codes = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    assert np.abs(got["codes"].astype(np.float64) - codes).max() <= 1  # a half may fall either way
    assert np.mean(got["codes"] == codes) > 0.95


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("columns", ["one", "each"])
@pytest.mark.parametrize("direction", ["backward", "both"])
def test_lstms_of_8_bits_are_near_those_of_floats(
    context: MLContext, data_type: str, columns: str, direction: str
) -> None:
    steps, batch, features, hidden = 4, 2, 5, 3
    front = 2 if direction == "both" else 1
    gates, random = 4 * hidden, rng(3)
    limits = np.iinfo(data_type)
    zero = 0 if data_type == "int8" else 128
    given = {}
    for name, rows in (("weight", features), ("recurrent_weight", hidden)):
        codes = random.integers(limits.min, limits.max, (front, rows, gates))
        given[name] = codes.astype(data_type)
    shape = (front, 1 if columns == "one" else gates)
    scales = [random.uniform(0.004, 0.008, shape).astype(np.float32) for _ in range(2)]
    zeros = np.full(shape, zero, data_type)
    bias = normal(1, front, gates)
    x = normal(2, steps, batch, features)

    def outputs(b: MLGraphBuilder, packed: bool) -> dict[str, MLOperand]:
        source = b.input("x", "float32", x.shape)
        options: Any = {"direction": direction, "bias": b.constant(bias), "layout": "ifgo"}
        weights = [b.constant(one) for one in given.values()]
        if packed:
            if zero:
                options |= {
                    "weight_zero_point": b.constant(zeros),
                    "recurrent_zero_point": b.constant(zeros),
                }
            made = b.lstm_packed(source, *weights, *map(b.constant, scales), **options)
        else:
            wide = [
                b.constant(((one.astype(np.float32) - zero) * scale[:, None]).swapaxes(1, 2).copy())
                for one, scale in zip(given.values(), scales, strict=True)
            ]
            made = b.lstm(source, *wide, steps, hidden, return_sequence=True, **options)
        return {str(i): one for i, one in enumerate(made)}

    got, wanted = (
        awaited(build(context, lambda b, p=packed: outputs(b, p)), {"x": x})
        for packed in (True, False)
    )
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, atol=0.03)
