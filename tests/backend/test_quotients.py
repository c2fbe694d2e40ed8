"""Quotients that become integers: right on drivers whose division is not correctly rounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import webnn_py.onnx
from tests.graphs import awaited, build
from tests.property.drawing import Array
from webnn_py import MLContext, MLGraphBuilder, MLOperand, ml

pytestmark = pytest.mark.kernels

ROUGH = """
fn rough(a: f32, b: f32) -> f32 {
  let q = a / b;
  let bits = bitcast<u32>(q);
  let power = (bits >> 23u) & 0xffu;
  if (power == 0u || power == 255u) { return q; }
  return bitcast<f32>(bits + (bitcast<u32>(a) * 7u + bitcast<u32>(b) * 3u + 1u) % 5u - 2u);
}
"""
"""A division that is up to two units in the last place off, as WGSL allows."""
_PART = r"(?:\b[vc]\d+\b|\b[ab]\b|\b\d+\.\d+f?|\bf32\(\w+\)|\(\w \* scale\))"
_DIVISION = re.compile(rf"({_PART}) / ({_PART})")


def roughly(code: str) -> str:
    """The code of a kernel that divides floats alone, with a rough division in its place."""
    found, divisions = _DIVISION.subn(r"rough(\1, \2)", code)
    return found + ROUGH if divisions else code


@pytest.fixture(params=["driver's division", "rough division"])
def dividing(
    gpu: MLContext,
    request: pytest.FixtureRequest,
    rewritten: Callable[[Callable[[str], str]], None],
) -> Iterator[MLContext]:
    """A context on the driver as it is, and on one whose division is as rough as may be."""
    if request.param == "rough division":
        rewritten(roughly)
    with ml.create_context_sync(gpu.device) as context:
        yield context


def _floats(seed: int, count: int, low: int = 64, high: int = 190) -> Array:
    """Positive and negative numbers of all mantissas, of powers that keep quotients normal."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(low, high, count, np.uint32) << 23 | rng.integers(0, 1 << 23, count)
    return (bits | rng.integers(0, 2, count) << 31).astype(np.uint32).view(np.float32)


def _near_halves(count: int) -> tuple[Array, Array]:
    """Dividends and divisors whose quotients are as near the middle of two floats as can be."""
    rng = np.random.default_rng(2)
    divisors = rng.integers(1 << 22, 1 << 23, count).astype(object) * 2 + 1
    pairs = []
    for divisor in divisors:
        # a * 2^24 = (2 q + 1) / 2 * divisor + 1/2, solved for the odd number modulo 2^25.
        odd = pow(int(divisor), -1, 1 << 25) * ((1 << 25) - 1) % (1 << 25)
        dividend = (odd * int(divisor) + 1) >> 25
        if 1 << 23 <= dividend < 1 << 24:
            pairs.append((dividend, divisor))
    a, b = np.array(pairs, np.float64).T
    return a.astype(np.float32), b.astype(np.float32)


def _whole_boundaries() -> tuple[Array, Array]:
    """Whole numbers and halves times all sorts of divisors, and their neighbours."""
    divisors = np.concatenate([np.float32([3, 7, 10, 0.1, 0.3, 255]), np.abs(_floats(3, 58))])
    halves = np.arange(-40, 40, dtype=np.float32) / 2
    exact = np.outer(halves, divisors).astype(np.float32)
    dividends = [exact, *(np.nextafter(exact, np.float32(end)) for end in (np.inf, -np.inf))]
    a = np.concatenate(dividends)
    a[np.abs(a) < np.finfo(np.float32).tiny] = 0  # a driver may take these for 0
    return a, np.tile(divisors, (3 * len(halves), 1))


def _edges() -> tuple[Array, Array]:
    """Powers of two and their neighbours, the greatest and the least."""
    ones = np.float32([1, 2, 3, 2**23, 2**24, 2**-60, 2**60, 2**100, 2**-100, 16777215])
    ends = np.concatenate([ones, np.nextafter(ones, np.float32(0)), np.nextafter(ones, np.inf)])
    a, b = (part.ravel() for part in np.meshgrid(ends, ends))
    with np.errstate(over="ignore", under="ignore"):
        normal = (a / b < 2.0**127) & (a / b > 2.0**-126)
    return a[normal].astype(np.float32), b[normal].astype(np.float32)


PAIRS: dict[str, Callable[[], tuple[Array, Array]]] = {
    "any": lambda: (_floats(0, 20_000), _floats(1, 20_000)),
    "near halves": lambda: _near_halves(20_000),
    "whole": _whole_boundaries,
    "edges": _edges,
}


@pytest.mark.parametrize("pairs", PAIRS)
def test_quotients_that_are_rounded_are_exact(dividing: MLContext, pairs: str) -> None:
    a, b = PAIRS[pairs]()

    def model(g: MLGraphBuilder) -> dict[str, MLOperand]:
        x, y = g.input("a", "float32", a.shape), g.input("b", "float32", b.shape)
        quotient = g.div(x, y)
        return {"quotient": quotient, "floor": g.floor(quotient)}

    results = awaited(build(dividing, model), {"a": a, "b": b})
    np.testing.assert_array_equal(results["quotient"], a / b)
    np.testing.assert_array_equal(results["floor"], np.floor(a / b))


ROUNDED: Mapping[str, Callable[[MLGraphBuilder, MLOperand], MLOperand]] = {
    "floor": lambda g, q: g.floor(q),
    "ceil": lambda g, q: g.ceil(q),
    "round_even": lambda g, q: g.round_even(q),
    "int32": lambda g, q: g.cast(q, "int32"),
    "int8": lambda g, q: g.cast(g.clamp(q, min_value=-100, max_value=100), "int8"),
    "uint8": lambda g, q: g.cast(g.abs(g.reshape(q, [q.shape[1], q.shape[0]])), "uint8"),
    "truncated": lambda g, q: g.where(
        g.lesser(q, g.constant(0.0, "float32")), g.ceil(q), g.floor(q)
    ),
    "joined": lambda g, q: g.floor(g.concat([q, q], 0)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_whole_numbers_of_quotients(dividing: MLContext, reference: MLContext, name: str) -> None:
    a, b = _whole_boundaries()

    def model(g: MLGraphBuilder) -> dict[str, MLOperand]:
        x, y = g.input("a", "float32", a.shape), g.input("b", "float32", b.shape)
        return {"y": ROUNDED[name](g, g.div(x, y))}

    _assert_equal(dividing, reference, model, {"a": a, "b": b})


def test_floors_of_quotients_and_reciprocals(dividing: MLContext, reference: MLContext) -> None:
    a, b = _whole_boundaries()

    def model(g: MLGraphBuilder) -> dict[str, MLOperand]:
        x, y = g.input("a", "float32", a.shape), g.input("b", "float32", b.shape)
        return {"whole": g.floor(g.div(x, y)), "by one": g.floor(g.reciprocal(y))}

    _assert_equal(dividing, reference, model, {"a": a, "b": b})


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint32"])
def test_quantized_at_halves(
    dividing: MLContext, reference: MLContext, kind: str, data_type: str
) -> None:
    scales = np.array([0.1, 0.3, 1 / 255, 0.7, 3, 10, 0.05, 1.1], data_type)
    halves = (np.arange(-20, 300, dtype=data_type) / 2)[:, np.newaxis] * scales
    values = [halves, np.nextafter(halves, halves * 2), np.nextafter(halves, halves * 0)]
    x = np.concatenate(values).astype(data_type)
    zero = np.full((1, scales.size), 3, kind)

    def model(g: MLGraphBuilder) -> dict[str, MLOperand]:
        given = g.input("x", x.dtype.name, x.shape)
        quantized = g.quantize_linear(given, g.constant(scales[np.newaxis]), g.constant(zero))
        return {"y": quantized}

    _assert_equal(dividing, reference, model, {"x": x})


@pytest.mark.parametrize("seed", range(6))
def test_dynamically_quantized(dividing: MLContext, reference: MLContext, seed: int) -> None:
    """Values that lie between two steps, by the scale that follows from their range."""
    rng = np.random.default_rng(seed)
    low, high = np.float32(-rng.uniform(0.1, 5)), np.float32(rng.uniform(0.1, 5))
    scale = np.float32((high - low) / np.float32(255))
    halves = (np.arange(-40, 40, dtype=np.float32) + np.float32(0.5)) * scale
    inside = halves[(halves > low) & (halves < high)]
    ends = [np.nextafter(inside, np.float32(end)) for end in (np.inf, -np.inf)]
    x = np.concatenate([[low, high], inside, *ends]).astype(np.float32)
    model = _dynamic(x.shape)
    got, wanted = (
        awaited(webnn_py.onnx.load(model, context), {"x": x}) for context in (dividing, reference)
    )
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def _dynamic(shape: tuple[int, ...]) -> onnx.ModelProto:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.UINT8, shape),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("zero", TensorProto.UINT8, []),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    return helper.make_model(
        helper.make_graph([node], "quantized", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
    )


def _assert_equal(
    context: MLContext,
    reference: MLContext,
    model: Callable[[MLGraphBuilder], dict[str, MLOperand]],
    inputs: dict[str, Array],
) -> None:
    """Both contexts agree, to the last bit."""
    got = awaited(build(context, model), inputs)
    wanted = awaited(build(reference, model), inputs)
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
