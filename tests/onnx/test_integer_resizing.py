"""Linear interpolation of integers, beside ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.accuracy import ENGINES, computed
from tests.conftest import context_of
from tests.onnx.models import model
from tests.onnx.own_operators import by_onnx_runtime
from webnn_py import MLContext
from webnn_py.onnx import load

SIZES: list[tuple[tuple[int, ...], tuple[float, ...]]] = [
    ((1, 2, 7, 5), (1, 1, 2, 3)),
    ((1, 2, 7, 6), (1, 1, 0.5, 0.7)),
    ((7, 5), (2, 3)),
    ((2, 4, 6, 5), (1, 1, 1.5, 1.7)),
    ((3, 4, 5), (2, 2, 2)),
    ((1, 7, 5, 4), (1, 2, 1.5, 1)),
]


def resized(x: Any, scales: tuple[float, ...], **attributes: Any) -> Any:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear", **attributes)
    elem = int(helper.np_dtype_to_tensor_dtype(x.dtype))
    weights = {"scales": np.asarray(scales, np.float32)}
    made = model([node], {"x": x.shape}, ["y"], weights, opset=18, elem=elem)
    made.ir_version = 8
    return made


@pytest.mark.parametrize("data_type", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize(
    "kind", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
)
@pytest.mark.parametrize(("shape", "scales"), SIZES)
def test_linear(
    cpu: MLContext, data_type: Any, kind: str, shape: tuple[int, ...], scales: tuple[float, ...]
) -> None:
    """Towards zero, as there; by one off where the sum is within 1e-3 of an integer, or there."""
    info = np.iinfo(data_type)
    low, high = max(info.min, -1000), min(info.max, 1000)
    x = np.random.default_rng(0).integers(low, high, shape, endpoint=True).astype(data_type)
    if kind == "align_corners":  # ONNX Runtime takes the rounded length for the scaled one
        scales = tuple(float(max(1, round(scale))) for scale in scales)
    made = resized(x, scales, coordinate_transformation_mode=kind)
    expected = by_onnx_runtime(made, {"x": x})["y"]
    got = computed(cpu, load(made, cpu), x)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    off = got.astype(int) - expected.astype(int)
    assert np.abs(off).max() <= 1
    whole = resized(x.astype(np.float32), scales, coordinate_transformation_mode=kind)
    exact = computed(cpu, load(whole, cpu), x.astype(np.float32))
    nudged = np.trunc(exact + np.sign(exact) * 2.0**-10)
    np.testing.assert_array_equal(got, nudged.astype(data_type))
    assert np.mean(off != 0) < 0.2  # where ONNX Runtime counts in fixed point


def test_smoothed(cpu: MLContext) -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 2, 14, 12), endpoint=True).astype(np.uint8)
    made = resized(x, (1, 1, 0.5, 0.6), antialias=1)
    expected = by_onnx_runtime(made, {"x": x})["y"].astype(int)
    assert np.abs(computed(cpu, load(made, cpu), x) - expected).max() <= 1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", ["half_pixel", "asymmetric", "align_corners"])
def test_a_flat_image_stays_so(request: pytest.FixtureRequest, name: str, kind: str) -> None:
    with context_of(request, ENGINES[name]) as context:
        for value in (1, 7, 99, 255):
            x = np.full((1, 3, 7, 5), value, np.uint8)
            made = resized(x, (1, 1, 2.3, 1.7), coordinate_transformation_mode=kind)
            assert set(computed(context, load(made, context), x).reshape(-1)) == {value}
