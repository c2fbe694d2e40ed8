"""Normalizations that products of one row compute before their loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.subgroup_emulation import emulated
from tests.graphs import awaited, build, kernels_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import MAX_PROLOGUE_COLUMNS
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.program.storage import MatrixShape

pytestmark = pytest.mark.kernels

DEPTH = 512
RTOL = {"float32": 2e-5, "float16": 4e-3}

Normalize = Callable[[MLGraphBuilder, MLOperand], MLOperand]
Multiply = Callable[[MLGraphBuilder, MLOperand, int], MLOperand]


def drawn(b: MLGraphBuilder, seed: int, *shape: int, kind: str = "float32") -> MLOperand:
    return b.constant(np.random.default_rng(seed).uniform(-1, 1, shape).astype(kind))


def rms(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.rms_normalization(x, drawn(b, 1, DEPTH, kind=x.data_type))


def layer(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    scale, bias = (drawn(b, seed, DEPTH, kind=x.data_type) for seed in (1, 2))
    return b.layer_normalization(x, axes=[-1 + x.rank], scale=scale, bias=bias)


def plain(b: MLGraphBuilder, x: MLOperand, columns: int) -> MLOperand:
    return b.matmul(x, drawn(b, columns, DEPTH, columns, kind=x.data_type))


def along_depth(b: MLGraphBuilder, x: MLOperand, columns: int) -> MLOperand:
    return b.matmul(x, b.transpose(b.input("w", x.data_type, [columns, DEPTH])))


def packed(b: MLGraphBuilder, x: MLOperand, columns: int) -> MLOperand:
    rng = np.random.default_rng(columns)
    codes = rng.integers(0, 256, (columns, DEPTH // 32, 16), dtype=np.uint8)
    scales = rng.uniform(0, 0.1, (columns, DEPTH // 32)).astype(x.data_type)
    return b.matmul_packed(x, b.constant(codes), b.constant(scales), block_size=32)


def case(
    rows: tuple[int, ...], kind: str, normalize: Normalize, multiply: Multiply, readers: int = 1
) -> Callable[[MLGraphBuilder], dict[str, MLOperand]]:
    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x = b.input("x", DTYPES[kind].name, [*rows, DEPTH])
        normal = normalize(b, x)
        made = (multiply(b, normal, 36 + 5 * number) for number in range(readers))
        return {f"y{number}": b.tanh(y) for number, y in enumerate(made)}

    return what


def compare(
    context: MLContext, reference: MLContext, what: Callable[..., dict[str, MLOperand]], kind: str
) -> list[str]:
    """Compare a graph's results with the reference engine's; return the names of its kernels."""
    if kind == "float16" and "shader-f16" not in context.device.features:
        pytest.skip("the adapter has no shader-f16")
    graph = build(context, what)
    rng = np.random.default_rng(0)
    inputs = {n: rng.normal(size=d.shape).astype(kind) for n, d in graph.inputs.items()}
    expected = awaited(build(reference, what), inputs)
    for name, value in awaited(graph, inputs).items():
        np.testing.assert_allclose(value, expected[name], rtol=RTOL[kind], atol=RTOL[kind])
    return kernels_of(graph, inputs)


@pytest.mark.parametrize("kind", RTOL)
@pytest.mark.parametrize("multiply", [plain, along_depth, packed])
@pytest.mark.parametrize("normalize", [rms, layer])
@pytest.mark.parametrize("rows", [(1, 1), (1,)])
def test_results(
    hardware: MLContext,
    reference: MLContext,
    rows: tuple[int, ...],
    normalize: Normalize,
    multiply: Multiply,
    kind: str,
) -> None:
    names = compare(hardware, reference, case(rows, kind, normalize, multiply), kind)
    assert len(names) == 1


def test_weights_unpacked_as_pairs_of_float16(
    as_device: Callable[..., MLContext], reference: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Kernel.of

    def record(*arguments: Any) -> Kernel:
        kernel = make(*arguments)
        return replace(kernel, code=emulated(kernel.code))

    monkeypatch.setattr(Kernel, "of", record)
    context = as_device(kind="gpu", f16_matrix=MatrixShape(16, 16, 16))
    names = compare(context, reference, case((1,), "float16", rms, packed), "float16")
    assert len(names) == 1


def test_every_reader_computes_them(hardware: MLContext, reference: MLContext) -> None:
    (name,) = compare(hardware, reference, case((1,), "float32", rms, plain, 3), "float32")
    assert name.count("matmul") == 3


def test_another_reader_has_them_stored(hardware: MLContext, reference: MLContext) -> None:
    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        normal = rms(b, b.input("x", "float32", [1, DEPTH]))
        return {"y": plain(b, normal, 40), "z": b.sigmoid(normal), "normal": normal}

    assert len(compare(hardware, reference, what, "float32")) > 1


def test_products_of_many_columns_read_them(hardware: MLContext, reference: MLContext) -> None:
    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        normal = rms(b, b.input("x", "float32", [1, DEPTH]))
        return {"y": b.reduce_max(plain(b, normal, MAX_PROLOGUE_COLUMNS + 4), axes=[1])}

    names = compare(hardware, reference, what, "float32")
    assert len(names) == 3


@pytest.mark.parametrize("rows", [2, 40])
def test_several_rows_are_computed_once(
    hardware: MLContext, reference: MLContext, rows: int
) -> None:
    names = compare(hardware, reference, case((rows,), "float32", rms, plain), "float32")
    assert len(names) > 1
