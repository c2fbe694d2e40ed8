"""Products of float32 as float16: the errors, on the engine that defines operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import engine_of
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand, ValidationError, ml
from webnn_py.passes import halve_float32, multiply_by_halves

Array = np.ndarray[Any, Any]
BITS = 9
"""Bits of a sum of magnitudes that products of float16 keep."""


@pytest.fixture(autouse=True, scope="module")
def small_products() -> Iterator[None]:
    """Halve small products, too, which gain no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halve_float32, "MIN_MULTIPLICATIONS", 1 << 20)
        yield


def halving() -> MLContext:
    """A context of the reference engine with one more pass."""
    context = ml.create_context_sync(engine="reference")
    engine_of(context).passes += (multiply_by_halves,)
    return context


def scaled(rng: np.random.Generator, shape: tuple[int, ...], axis: int, decades: float) -> Array:
    """Normal numbers whose rows have magnitudes that lie decades apart."""
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    numbers = rng.standard_normal(shape) * 10.0 ** rng.uniform(-decades, decades, sizes)
    return numbers.astype(np.float32)


@given(seed=st.integers(0, 1000), decades=st.sampled_from([0, 6, 15]), constant=st.booleans())
def test_products(seed: int, decades: float, constant: bool) -> None:
    rng = np.random.default_rng(seed)
    a = scaled(rng, (160, 170), 0, decades)
    c = scaled(rng, (170, 160), 1, decades)
    a[seed % 160] = 0
    with halving() as context:
        b = MLGraphBuilder(context)
        right = b.constant(c) if constant else b.input("c", "float32", [170, 160])
        graph = b.build_sync({"y": b.matmul(b.input("a", "float32", [160, 170]), right)})
        assert "float16" in str(graph)
        inputs = {"a": a} if constant else {"a": a, "c": c}
        result = MLExecution(context).compute(graph, inputs)["y"].astype(np.float64)
    wide = a.astype(np.float64), c.astype(np.float64)
    bound = np.abs(wide[0]) @ np.abs(wide[1]) * 2.0**-BITS
    assert (np.abs(result - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.parametrize(("layout", "filters"), [("nchw", "oihw"), ("nhwc", "ohwi")])
def test_convolutions(layout: Any, filters: Any) -> None:
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

    with halving() as context, ml.create_context_sync(engine="reference") as exact:
        error = np.abs(computed(context) - computed(exact))
        assert (error <= computed(exact, absolute=True) * 2.0**-BITS).all()


def test_attention_stays_exact() -> None:
    with halving() as context:
        b = MLGraphBuilder(context)
        q, k, v = (b.input(name, "float32", [2, 256, 256]) for name in "qkv")
        scores = b.mul(
            b.matmul(q, b.transpose(k, permutation=[0, 2, 1])), b.constant(0.5, "float32")
        )
        graph = b.build_sync({"y": b.matmul(b.softmax(scores, 2), v)})
        assert "float16" not in str(graph)


def test_the_option() -> None:
    """A CPU computes exactly; another word is refused."""
    with ml.create_context_sync(float32_precision="medium") as context:
        assert context.device_type == "cpu"
    wrong: Any = "low"
    with pytest.raises(ValidationError, match=r"float32_precision.*'low'.*highest"):
        ml.create_context_sync(float32_precision=wrong)
