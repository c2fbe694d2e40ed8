"""Fourier transforms of every kind of length, against NumPy's; they cost n log n."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from tests.onnx.models import model
from webnn_py import DataError, MLAwaitedExecution, MLContext, NotSupportedError
from webnn_py.onnx import load

CASES: dict[str, tuple[list[int], int, int | None, dict[str, int]]] = {
    "one number": ([2, 1, 2], 1, None, {}),
    "a small prime": ([2, 7, 2], 1, None, {}),
    "the largest radix": ([1, 128, 1], 1, None, {}),
    "two radices": ([2, 130, 2], 1, None, {}),
    "a prime by a matrix": ([1, 499, 2], 1, None, {}),
    "a large prime": ([2, 1021, 2], 1, None, {}),
    "twice a large prime": ([1, 2062, 1], 1, None, {}),
    "a power of two": ([1, 8192, 1], 1, None, {}),
    "of complex numbers": ([2, 4096, 2], 1, None, {}),
    "other factors": ([1, 16000, 1], 1, None, {}),
    "one half": ([2, 4410, 1], 1, None, {"onesided": 1}),
    "one half of an odd length": ([1, 2187, 1], 1, None, {"onesided": 1}),
    "inverse": ([2, 1536, 2], 1, None, {"inverse": 1}),
    "inverse of a large prime": ([1, 1009, 2], 1, None, {"inverse": 1}),
    "inverse of real numbers": ([1, 600, 1], 1, None, {"inverse": 1}),
    "back to real numbers": ([2, 2049, 2], 1, None, {"inverse": 1, "onesided": 1}),
    "back to an odd length": ([1, 400, 2], 1, 799, {"inverse": 1, "onesided": 1}),
    "back to few numbers": ([1, 3, 2], 1, 1, {"inverse": 1, "onesided": 1}),
    "from one number back": ([1, 1, 2], 1, 2, {"inverse": 1, "onesided": 1}),
    "longer": ([3, 200, 2, 2], 1, 300, {}),
    "shorter": ([3, 300, 2, 1], 1, 150, {"onesided": 1}),
    "the first axis": ([140, 2, 3, 2], 0, None, {}),
    "an axis from the end": ([2, 3, 256, 1], -2, None, {}),
}


def expected(x: Any, axis: int, count: int | None, options: dict[str, int]) -> Any:
    numbers = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(complex)
    at = axis % x.ndim
    if options.get("inverse") and options.get("onesided"):
        return np.fft.irfft(numbers, count, axis=at)[..., None]
    made = (np.fft.ifft if options.get("inverse") else np.fft.fft)(numbers, count, axis=at)
    if options.get("onesided"):
        made = np.take(made, range(made.shape[at] // 2 + 1), at)
    return np.stack([made.real, made.imag], -1)


def of(
    shape: Any, axis: int, count: int | None, options: Any, elem: int = TensorProto.FLOAT
) -> Any:
    weights = {"a": np.int64(axis)} | ({} if count is None else {"n": np.int64(count)})
    what = make_node("DFT", ["x", "" if count is None else "n", "a"], ["y"], **options)
    return model([what], {"x": shape}, ["y"], weights, elem=elem)


@pytest.mark.parametrize("name", CASES)
def test_transforms(own: MLContext, name: str) -> None:
    shape, axis, count, options = CASES[name]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    graph = load(of(*CASES[name]), own)
    found = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))["y"]
    wanted = expected(x.astype(float), axis, count, options)
    assert found.shape == wanted.shape
    scale = np.sqrt(np.mean(wanted**2))
    np.testing.assert_allclose(found / scale, wanted / scale, atol=4e-6, rtol=0)


def test_a_tone_is_one_number(cpu: MLContext) -> None:
    """Where all cancels, what is left is rounding of what was summed."""
    count = 8192
    x = np.cos(2 * np.pi * 600 * np.arange(count) / count).astype(np.float32)
    graph = load(of([1, count, 1], 1, None, {}), cpu)
    found = asyncio.run(MLAwaitedExecution(cpu).compute(graph, {"x": x[None, :, None]}))["y"][0]
    wanted = np.zeros((count, 2))
    wanted[[600, count - 600], 0] = count / 2
    np.testing.assert_allclose(found, wanted, atol=count * 1e-6)


def test_transforms_of_halves(own: MLContext) -> None:
    x = np.random.default_rng(0).normal(size=[1, 1000, 2]).astype(np.float16)
    graph = load(of([1, 1000, 2], 1, None, {}, TensorProto.FLOAT16), own)
    found = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))["y"]
    wanted = expected(x.astype(float), 1, None, {})
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-2)


def test_transforms_of_open_batches(cpu: MLContext) -> None:
    graph = load(of(["n", 1000, 1], 1, None, {"onesided": 1}), cpu)
    for batch in (1, 3):
        x = np.random.default_rng(0).normal(size=[batch, 1000, 1]).astype(np.float32)
        found = asyncio.run(MLAwaitedExecution(cpu).compute(graph, {"x": x}))["y"]
        wanted = expected(x.astype(float), 1, None, {"onesided": 1})
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("length", "has_window"), [(400, True), (1021, False), (128, True)])
def test_frames(own: MLContext, length: int, has_window: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=[2, 3000, 1]).astype(np.float32)
    weights: dict[str, Any] = {"s": np.int64(160), "n": np.int64(length)}
    if has_window:
        weights["w"] = np.hanning(length).astype(np.float32)
    what = make_node("STFT", ["x", "s", "w" if has_window else "", "n"], ["y"], onesided=1)
    graph = load(model([what], {"x": [2, 3000, 1]}, ["y"], weights), own)
    found = asyncio.run(MLAwaitedExecution(own).compute(graph, {"x": x}))["y"]
    starts = range(0, 3000 - length + 1, 160)
    frames = np.stack([x[:, i : i + length, 0] for i in starts], 1) * weights.get("w", 1)
    made = np.fft.rfft(frames.astype(float))
    wanted = np.stack([made.real, made.imag], -1)
    np.testing.assert_allclose(found, wanted, atol=4e-6 * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize(
    ("made", "kind", "why"),
    [
        (of([1, 8, 3], 1, None, {}), DataError, r"its input is \[1, 8, 3\]"),
        (of([1, 8, 2], 2, None, {}), DataError, "its axis 2"),
        (of([1, 8, 2], 1, 0, {}), DataError, "its dft_length is 0, expected at least 1"),
        (of([1, 8, 2], 1, -5, {}), DataError, "its dft_length is -5"),
        (of([1, 8, 2], 1, 2**28, {}), NotSupportedError, "of 268435456 numbers"),
        (of([1, 8, 2], 1, 2**31 - 1, {}), NotSupportedError, "DFT"),
        (of([1, 8, 2], 1, 2**50, {}), NotSupportedError, "DFT"),
        (
            model(
                [make_node("STFT", ["x", "s", "", "n"], ["y"])],
                {"x": [1, 8, 1]},
                ["y"],
                {"s": np.int64(1), "n": np.int64(2**40)},
            ),
            DataError,
            "its frame_length 1099511627776, of 8 samples",
        ),
        (
            model([make_node("STFT", ["x", "s"], ["y"])], {"x": [1, 8, 1]}, ["y"], {"s": 0}),
            DataError,
            "its frame_step is 0",
        ),
    ],
)
def test_lengths_that_cannot_be(cpu: MLContext, made: Any, kind: Any, why: str) -> None:
    with pytest.raises(kind, match=why):
        load(made, cpu)
