"""Rounding and ranges on WebGPU, where drivers differ or 32 bits do not suffice."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.compared import applied, assert_like_reference, compute
from webnn_py import MLContext

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("name", "low", "high", "most"),
    [
        ("cos", -1e3, 1e3, 2),
        ("elu", -20, 20, 4),
        ("erf", -4, 4, 3),
        ("exp", -80, 88, 3),
        ("gelu", -5, 5, 16),
        ("log", 1e-6, 1e6, 2),
        ("sigmoid", -80, 80, 5),
        ("sin", -1e3, 1e3, 2),
        ("softplus", -80, 80, 6),
        ("tan", -1e3, 1e3, 6),
        ("tanh", -10, 10, 6),
    ],
)
def test_elementary_functions(
    each_device: MLContext, reference: MLContext, name: str, low: float, high: float, most: int
) -> None:
    """Within so many units in the last place, near 0 and far from it."""
    values = np.linspace(low, high, 5001, dtype=np.float32)
    call = applied(name, {"input": np.concatenate([values, values / 1000])})
    (got,), (wanted,) = compute(each_device, call), compute(reference, call)
    assert np.max(np.abs(got - wanted) / np.spacing(np.abs(wanted))) <= most


def test_angles_of_many_turns(each_device: MLContext, reference: MLContext) -> None:
    values = np.float32(10) ** np.arange(3, 38, 0.25, dtype=np.float32)
    for name in ("sin", "cos"):
        call = applied(name, {"input": np.concatenate([values, -values])})
        (got,), (wanted,) = compute(each_device, call), compute(reference, call)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-7)


def test_powers(each_device: MLContext, reference: MLContext) -> None:
    rng = np.random.default_rng(0)
    a = np.exp(rng.uniform(-20, 20, 4000)).astype(np.float32)
    b = (rng.uniform(-80, 80, 4000) / np.log(a)).astype(np.float32)
    (got,), (wanted,) = (
        compute(c, applied("pow", {"a": a, "b": b})) for c in (each_device, reference)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_special_powers(each_device: MLContext, reference: MLContext) -> None:
    values = np.array([0, 1, -1, 0.5, -0.5, 2, -2, 3, np.inf, -np.inf, np.nan], np.float32)
    operands = {"a": values, "b": values[:, np.newaxis]}
    assert_like_reference(each_device, reference, applied("pow", operands))


@pytest.mark.parametrize("data_type", ["float32", "int32", "uint32", "int64", "uint64"])
def test_casts_to_float16(each_device: MLContext, reference: MLContext, data_type: str) -> None:
    """Halves go to the even one, what is too large to infinity."""
    values = np.array([0, 1, 2047, 2048, 2049, 2050, 2051, 32767, 65503, 65519, 65520, 10**6])
    if data_type == "float32":
        tiny = [2**-24, 2**-25, 1.5 * 2**-24, 2**-26, 6.1e-5, 1e-7, np.inf, -np.inf, np.nan]
        values = np.concatenate([values, -values, tiny])
    source = values.astype(data_type)
    call = applied("cast", {"input": source}, data_type="float16")
    assert_like_reference(each_device, reference, call)


@pytest.mark.parametrize("mode", ["nearest-neighbor", "linear"])
@pytest.mark.parametrize(("old", "new"), [(70_000, 40_000), (40_000, 70_001)])
def test_resampling_of_long_axes(
    each_device: MLContext, reference: MLContext, mode: str, old: int, new: int
) -> None:
    """Places whose computation takes more than 32 bits."""
    values = np.random.default_rng(0).normal(size=(1, 1, old, 1)).astype(np.float32)
    call = applied("resample2d", {"input": values}, mode=mode, sizes=[new, 1])
    assert_like_reference(each_device, reference, call)


def test_quantization_of_large_integers(each_device: MLContext, reference: MLContext) -> None:
    for data_type in ("int32", "uint32"):
        top = np.iinfo(data_type).max
        values = np.array([top, top - 1, top // 2, 3, 0], data_type)
        zero = np.array([top - 7], data_type)
        operands = {"input": values, "scale": np.ones(1, np.float32), "zero_point": zero}
        assert_like_reference(each_device, reference, applied("dequantize_linear", operands))
        floats = np.array([0, 5, -5, 1e9, -1e9, 3e9, -3e9, 1e30, -1e30, 2.5, 3.5], np.float32)
        operands = {"input": floats, "scale": np.ones(1, np.float32), "zero_point": zero}
        assert_like_reference(each_device, reference, applied("quantize_linear", operands))


@pytest.mark.parametrize("shape", [(1 << 24,), (3, 8192), (3, 8188), (5, 1000)])
def test_long_sums(each_device: MLContext, shape: tuple[int, ...]) -> None:
    """One number thousands of times, so that each step rounds alike."""
    values = np.full(shape, 0.1, np.float32)
    call = applied("reduce_sum", {"input": values}, axes=[len(shape) - 1])
    expected = values.astype(np.float64).sum(axis=-1)
    (made,) = compute(each_device, call)
    np.testing.assert_allclose(made, expected, rtol=1.5e-6)
