"""Products by packed weights on devices taken for graphics hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.subgroup_emulation import emulated
from tests.graphs import awaited, build
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.core.dtypes import pack_4bit
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernels import packed_kernel
from webnn_py.engines.webgpu.program.storage import MatrixShape

Array = np.ndarray[Any, Any]
TOLERANCE = {"float32": 1e-6, "float16": 2e-3}
"""Relative to the norm of the result."""


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def drawn(codes: str, columns: int, depth: int, block: int, has_zeros: bool) -> dict[str, Any]:
    """Codes, scales and zero points as operands take them, and the weights that they mean."""
    blocks = -(-depth // block)
    bits = int(codes[-1]) if codes[-1] in "48" else 8
    low = -(1 << (bits - 1)) if codes.startswith("i") else 0
    numbers = rng(0).integers(low, low + (1 << bits), (columns, depth))
    zeros = rng(1).integers(low, low + (1 << bits), (columns, blocks))
    if not has_zeros:
        zeros[:] = 0 if low else 1 << (bits - 1)
    scales = rng(2).uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    spread = [np.repeat(one, block, 1)[:, :depth] for one in (zeros, scales)]
    return {
        "numbers": numbers,
        "zeros": zeros if has_zeros else None,
        "scales": scales,
        "weights": (numbers - spread[0]) * spread[1].astype(np.float64),
        "blocks": blocks,
        "bits": bits,
    }


def operand(b: MLGraphBuilder, codes: str, given: Array, shape: tuple[int, ...]) -> MLOperand:
    """A constant of codes or zero points in the layout that `codes` names."""
    if codes in ("int4", "uint4"):
        return b.constant(pack_4bit(given.astype(np.int8)).tobytes(), codes, given.shape)  # type: ignore[arg-type]
    if not codes.startswith("bytes"):
        return b.constant(given.astype(codes))
    if codes == "bytes4":
        given = np.pad(given, [(0, 0), (0, given.shape[1] % 2)])
        given = pack_4bit(given.astype(np.uint8)).reshape(len(given), -1)
    return b.constant(given.astype(np.uint8).reshape(shape))


def check(
    context: MLContext,
    codes: str,
    data_type: str,
    rows: int,
    depth: int,
    *,
    block: int = 32,
    columns: int = 13,
    has_zeros: bool = True,
) -> None:
    """Run a product with a sum behind it, and compare with float64."""
    found = drawn(codes, columns, depth, block, has_zeros)
    scales = found["scales"].astype(data_type)
    whole = found["blocks"] * block
    x = rng(3).standard_normal((1, rows, depth)).astype(data_type)

    def record(b: MLGraphBuilder) -> dict[str, MLOperand]:
        numbers = found["numbers"]
        if codes.startswith("bytes"):
            numbers = np.pad(numbers, [(0, 0), (0, whole - depth)])
        of_codes = operand(b, codes, numbers, (columns, found["blocks"], -1))
        zeros = found["zeros"]
        of_zeros = None if zeros is None else operand(b, codes, zeros, (columns, -1))
        y = b.input("x", data_type, x.shape)  # type: ignore[arg-type]
        y = b.matmul_packed(y, of_codes, b.constant(scales), of_zeros, block_size=block)
        return {"y": b.add(y, b.constant(np.arange(columns, dtype=data_type)))}

    got = awaited(build(context, record), {"x": x})["y"]
    wanted = x.astype(np.float64) @ found["weights"].T + np.arange(columns)
    assert np.linalg.norm(got - wanted) < TOLERANCE[data_type] * np.linalg.norm(wanted)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("codes", ["int4", "uint4", "int8", "uint8", "bytes4", "bytes8"])
@pytest.mark.parametrize(("rows", "depth", "block"), [(1, 256, 32), (3, 72, 16), (40, 72, 24)])
def test_products_of_few_and_many_rows(
    hardware: MLContext, codes: str, data_type: str, rows: int, depth: int, block: int
) -> None:
    check(hardware, codes, data_type, rows, depth, block=block)


@pytest.mark.parametrize("codes", ["bytes4", "bytes8"])
@pytest.mark.parametrize("rows", [1, 40])
def test_default_zero_points(hardware: MLContext, codes: str, rows: int) -> None:
    check(hardware, codes, "float32", rows, 64, has_zeros=False)


def test_rows_that_shared_memory_does_not_hold_at_once(
    hardware: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_kernel, "MAX_X_BYTES", 1 << 12)
    check(hardware, "bytes4", "float32", 2, 1152)


@pytest.mark.parametrize("codes", ["bytes4", "bytes8", "int8"])
def test_codes_that_are_cast_to_halves(
    as_device: Callable[..., MLContext],
    gpu: MLContext,
    codes: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on devices with tensor cores; naga, which has no such cast, gets another function."""
    if "shader-f16" not in gpu.device.features:
        pytest.skip("the adapter has no shader-f16")
    make, found = Kernel.of, []

    def record(*arguments: Any) -> Kernel:
        kernel = make(*arguments)
        found.append(kernel.code)
        return replace(kernel, code=emulated(kernel.code))

    monkeypatch.setattr(Kernel, "of", record)
    context = as_device(kind="gpu", f16_matrix=MatrixShape(16, 16, 16))
    check(context, codes, "float16", 2, 256)
    assert any("bitcast<vec2<f16>>" in code for code in found)
