"""Products that workgroups divide along k, and the kernel that adds up their sums."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters import need_halves, need_quick_compiler
from tests.backend import product_cases
from tests.backend.compared import assert_close
from tests.backend.kernel_cases import Case, numbers
from tests.graphs import awaited, build, expected
from tests.internals import executable_of
from webnn_py import MLContext
from webnn_py.engines.webgpu.compiler.kernels import matmul
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import SharedTile
from webnn_py.engines.webgpu.compiler.kernels.matmul import Split

pytestmark = pytest.mark.kernels

TILES = (SharedTile(16, 16, 16, 4, 4, 4), SharedTile(32, 32, 8, 8, 8))


def _product(name: str, a: Any, b: Any, data_type: str = "float32", **epilogue: Any) -> Case:
    inputs = {"a": numbers("a", a, data_type), "b": numbers("b", b, data_type)}
    inputs |= {key: numbers(key, shape, data_type) for key, shape in epilogue.items()}

    def apply(g: Any, a: Any, b: Any, **more: Any) -> Any:
        made = g.matmul(a, b)
        for operand in more.values():
            made = g.add(made, operand)
        return g.relu(made)

    return Case(name, apply, inputs)


CASES = [
    _product("vectors", (20, 96), (96, 36), bias=(36,), rest=(20, 36)),
    _product("single", (3, 21, 48), (3, 48, 35), bias=(35,)),
    _product("one matrix for all", (2, 3, 9, 48), (48, 20)),
    _product("halves", (20, 96), (96, 36), "float16", bias=(36,)),
    product_cases._convolution("divided", (2, 16, 6, 6), (12, 16, 3, 3), padding=[1, 1, 1, 1]),
    product_cases._convolution("odd", (1, 16, 5, 5), (9, 16, 3, 3), padding=[1, 0, 1, 1]),
    product_cases._convolution(
        "runs", (1, 32, 5, 6), (12, 32, 3, 2), filter_layout="hwio", padding=[1, 1, 1, 1]
    ),
    product_cases._convolution("groups", (2, 32, 4, 6), (16, 16, 3, 3), groups=2),
    product_cases._convolution("nhwc", (1, 16, 6, 6), (12, 16, 3, 3), input_layout="nhwc"),
    product_cases._convolution("of halves", (1, 16, 6, 6), (12, 16, 3, 3), data_type="float16"),
]


@pytest.mark.parametrize(
    ("case", "parts", "tile"),
    [
        (case, parts, TILES[place % 2])
        for place, case in enumerate(CASES)
        for parts in ((2, 3) if case.name in ("vectors", "conv2d runs") else (2,))
    ],
    ids=lambda value: value.name if isinstance(value, Case) else None,
)
def test_results(
    hardware: MLContext, monkeypatch: pytest.MonkeyPatch, case: Case, parts: int, tile: SharedTile
) -> None:
    if case.name.startswith("conv2d"):
        need_quick_compiler(hardware.device)
    if "halves" in case.name:
        need_halves(hardware.device)
    monkeypatch.setattr(matmul, "split_of", lambda *_: Split(parts, tile))
    graph = build(hardware, case)
    assert_close(awaited(graph, case.inputs)["y"], expected(case, case.inputs)["y"])
    names = [kernel.name for kernel in executable_of(graph).compiled.kernels]
    assert len(names) == 2
