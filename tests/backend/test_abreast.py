"""Kernels side by side in one dispatch: results in every mode, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters import need_halves, need_quick_compiler
from tests.backend.compared import assert_close
from tests.backend.kernel_cases import Case, numbers
from tests.graphs import awaited, build, expected, kernels_of
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand

pytestmark = pytest.mark.kernels


def _weights(b: MLGraphBuilder, x: MLOperand, name: str, *shape: int) -> MLOperand:
    array = np.asarray(numbers(name, shape, x.data_type)) / np.prod(shape[-3:-1]) ** 0.5
    return b.constant(array.astype(x.data_type))


def _attention(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Three products of one input, and reductions and an elementwise kernel beside each other."""
    q, k, v = (b.matmul(x, _weights(b, x, name, 64, 32), label=name) for name in "qkv")
    mixed = b.matmul(b.softmax(b.matmul(q, b.transpose(k)), 1), v)
    sums = b.concat([b.reduce_sum(mixed, axes=[0]), b.reduce_max(q, axes=[0])], 0)
    return b.concat([sums, b.reshape(b.erf(b.add(mixed, q)), [mixed.size])], 0)


def _branches(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """As Inception has them: products of one and more pixels, divided ones, poolings, concats."""

    def layer(x: MLOperand, name: str, channels: int, window: int = 1) -> MLOperand:
        filters = _weights(b, x, name, channels, x.shape[1], window, window)
        return b.relu(b.conv2d(x, filters, padding=[window // 2] * 4))

    pooled = b.max_pool2d(x, window_dimensions=[3, 3], padding=[1, 1, 1, 1])
    wide = layer(layer(x, "r", 16), "w", 24, 3)
    wider = layer(layer(x, "s", 8), "v", 12, 3)
    return b.concat([layer(x, "o", 20), wide, wider, layer(pooled, "p", 8)], 1)


def _widths(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Products that differ in their sizes alone, and are the same code."""
    for _ in range(2):
        rows = x.shape[1]
        wide = {n: b.matmul(x, _weights(b, x, f"{rows} {n}", rows, n)) for n in (32, 96, 64)}
        x = b.concat([b.tanh(b.add(y, _weights(b, x, f"{n}", 1, n))) for n, y in wide.items()], 1)
    return x


def _levels(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Dispatches that differ in what they divide by, and are the same code."""
    size = x.shape[1]
    for cols in (size + 32, size + 64, size + 96):
        products = [b.matmul(x, _weights(b, x, f"{n}", size, n)) for n in (cols, 2 * cols)]
        y, z = (b.slice(each, [0, 0], x.shape) for each in products)
        x = b.tanh(b.add(b.add(y, z), b.reduce_mean(x, axes=[1], keep_dimensions=True)))
    return x


NETWORKS = {
    "attention": (_attention, (24, 64)),
    "branches": (_branches, (1, 64, 9, 8)),
    "levels": (_levels, (96, 96)),
    "widths": (_widths, (24, 64)),
}


def _case(context: MLContext, name: str, data_type: str) -> Case:
    if name == "branches":
        need_quick_compiler(context.device)
    if data_type == "float16":
        need_halves(context.device)
    what, shape = NETWORKS[name]
    return Case(name, what, {"x": numbers("x", shape, data_type)})


def _joined(graph: MLGraph, case: Case) -> int:
    """The kernels that run in a dispatch with others."""
    counts = [name.count("|") + 1 for name in kernels_of(graph, case.inputs)]
    return sum(count for count in counts if count > 1)


@pytest.mark.parametrize(
    ("name", "data_type"), [*((name, "float32") for name in NETWORKS), ("attention", "float16")]
)
def test_results(hardware: MLContext, name: str, data_type: str, tmp_path: Path) -> None:
    case = _case(hardware, name, data_type)
    graph = build(hardware, case)
    assert _joined(graph, case) >= 4
    got = awaited(graph, case.inputs)["y"]
    assert_close(got, expected(case, case.inputs)["y"])
    path = tmp_path / "program"
    graph.compile_to(path)
    saved: Any = hardware.load_program_sync(path).run_sync(case.inputs)["y"]
    assert_close(saved, got)


def test_profiles_tell_of_all_that_a_dispatch_computes(hardware: MLContext) -> None:
    case = _case(hardware, "attention", "float32")
    graph = build(hardware, case)
    rows = {row.kernel: row for row in graph.profile(case.inputs, runs=1)}
    products = rows["matmul | matmul | matmul"]
    assert all(name in products.operator for name in "qkv")
    assert products.flop == 3 * 2 * 24 * 64 * 32
