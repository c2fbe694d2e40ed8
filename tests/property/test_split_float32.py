"""Products of float32 in halves of float16: the errors, on the engine that defines operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import engine_of, recipe_of
from tests.unit.passes.internal_listings import TARGET
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand, ValidationError, ml
from webnn_py.passes import (
    Pass,
    multiply_by_halves,
    multiply_by_split_halves,
    split_float32,
)

Array = np.ndarray[Any, Any]
PASSES = [(multiply_by_split_halves, 20), (multiply_by_halves, 9)]
"""Passes, and the bits of a sum of magnitudes that they keep."""


@pytest.fixture(autouse=True, scope="module")
def small_products() -> Iterator[None]:
    """Halve small products, too, which gain no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_float32, "MIN_MULTIPLICATIONS", {1: 1 << 20, 3: 1 << 20})
        yield


def halving(split: Pass) -> MLContext:
    """A context of the reference engine with one more pass."""
    context = ml.create_context_sync(engine="reference")
    engine_of(context).passes += (split,)
    return context


def scaled(rng: np.random.Generator, shape: tuple[int, ...], axis: int, decades: float) -> Array:
    """Normal numbers whose rows have magnitudes that lie decades apart."""
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    numbers = rng.standard_normal(shape) * 10.0 ** rng.uniform(-decades, decades, sizes)
    return numbers.astype(np.float32)


@pytest.mark.parametrize(("split", "bits"), PASSES)
@given(seed=st.integers(0, 1000), decades=st.sampled_from([0, 6, 15]), constant=st.booleans())
def test_products(split: Pass, bits: int, seed: int, decades: float, constant: bool) -> None:
    rng = np.random.default_rng(seed)
    a = scaled(rng, (160, 170), 0, decades)
    c = scaled(rng, (170, 160), 1, decades)
    a[seed % 160] = 0
    with halving(split) as context:
        b = MLGraphBuilder(context)
        right = b.constant(c) if constant else b.input("c", "float32", [170, 160])
        graph = b.build_sync({"y": b.matmul(b.input("a", "float32", [160, 170]), right)})
        assert "float16" in str(graph)
        inputs = {"a": a} if constant else {"a": a, "c": c}
        result = MLExecution(context).compute(graph, inputs)["y"].astype(np.float64)
    wide = a.astype(np.float64), c.astype(np.float64)
    bound = np.abs(wide[0]) @ np.abs(wide[1]) * 2.0**-bits
    assert (np.abs(result - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.parametrize(("split", "bits"), PASSES)
@pytest.mark.parametrize(("layout", "filters"), [("nchw", "oihw"), ("nhwc", "ohwi")])
def test_convolutions(split: Pass, bits: int, layout: Any, filters: Any) -> None:
    """Images and output channels of different magnitudes, and a bias."""
    rng = np.random.default_rng(1)
    x, w = scaled(rng, (2, 32, 14, 14), 0, 9), scaled(rng, (64, 32, 3, 3), 0, 9)
    d = w[:, 0, 0, 0].copy()
    if layout == "nhwc":
        x, w = (np.ascontiguousarray(np.moveaxis(each, 1, -1)) for each in (x, w))

    def record(b: MLGraphBuilder, absolute: bool) -> MLOperand:
        operands = b.input("x", "float32", x.shape), b.constant(np.abs(w) if absolute else w)
        layouts: dict[str, Any] = {"input_layout": layout, "filter_layout": filters}
        return b.conv2d(*operands, bias=b.constant(np.abs(d) if absolute else d), **layouts)

    def computed(context: MLContext, absolute: bool = False) -> Array:
        b = MLGraphBuilder(context)
        graph = b.build_sync({"y": record(b, absolute)})
        y = MLExecution(context).compute(graph, {"x": np.abs(x) if absolute else x})["y"]
        return np.asarray(y, np.float64)

    with halving(split) as context, ml.create_context_sync(engine="reference") as exact:
        error = np.abs(computed(context) - computed(exact))
        assert (error <= computed(exact, absolute=True) * 2.0**-bits).all()


@pytest.mark.parametrize("split", [split for split, _ in PASSES])
def test_attention_stays_exact(split: Pass) -> None:
    with halving(split) as context:
        b = MLGraphBuilder(context)
        q, k, v = (b.input(name, "float32", [2, 256, 256]) for name in "qkv")
        scores = b.mul(
            b.matmul(q, b.transpose(k, permutation=[0, 2, 1])), b.constant(0.5, "float32")
        )
        graph = b.build_sync({"y": b.matmul(b.softmax(scores, 2), v)})
        assert "float16" not in str(graph)


def test_small_products_are_added_up_first() -> None:
    """Tensor cores truncate a sum by what they add to it."""
    rng = np.random.default_rng(1)
    a, c = (rng.standard_normal((128, 128)).astype(np.float32) for _ in range(2))
    with ml.create_context_sync(engine="reference") as context:
        b = MLGraphBuilder(context)
        operands = b.constant(a), b.input("c", "float32", [128, 128])
        right = b.input("a", "float32", [128, 128]), b.constant(c)
        graph = b.build_sync({"y": b.matmul(*operands), "z": b.matmul(*right)})
        constants = multiply_by_split_halves(recipe_of(graph), TARGET).constants.values()
    magnitudes = []
    for array in constants:
        if array.dtype == np.float16:
            axis = array.shape.index(3 * 128)
            thirds = np.split(np.abs(array.astype(np.float32)), 3, axis)
            magnitudes.append([third.mean() for third in thirds])
    assert len(magnitudes) == 2
    first, second, third = np.prod(magnitudes, 0)
    assert max(first, second) < third * 2.0**-9


def test_the_option() -> None:
    """A CPU computes exactly; another word is refused."""
    with ml.create_context_sync(float32_precision="medium") as context:
        assert context.device_type == "cpu"
    wrong: Any = "low"
    with pytest.raises(ValidationError, match=r"float32_precision.*'low'.*highest"):
        ml.create_context_sync(float32_precision=wrong)
