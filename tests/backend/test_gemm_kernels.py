"""Products by every tile of the cost tables, which large matrices take, on small ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.adapters import need_halves
from tests.graphs import Build, awaited, build, expected
from tests.internals import executable_of
from webnn_py import MLContext, MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler.kernels import costs

pytestmark = pytest.mark.kernels

Shape = tuple[int, ...]

PRODUCTS = {
    # Table of the tile: data type and shapes of the operands, and whether they are transposed.
    "COSTS": [
        ("float32", (2, 70, 40), (2, 40, 72), False, False),
        ("float32", (33, 65), (69, 33), True, True),
    ],
    "F16_COSTS": [
        ("float16", (72, 100), (100, 68), False, False),
        ("float16", (200, 72), (67, 200), True, True),
    ],
    "F16_VEC8_COSTS": [("float16", (72, 200), (68, 200), False, True)],
}
CASES = [
    (table, cost, product)
    for table, products in PRODUCTS.items()
    for cost in getattr(costs, table)
    for product in products
]
TOLERANCES = {"float32": 1e-6, "float16": 1e-2}


def multiplied(data_type: str, left: Shape, right: Shape, *turned: bool) -> Build:
    """Return a product, and a function of it that takes much code."""

    def what(b: MLGraphBuilder) -> dict[str, MLOperand]:
        operands = (b.input("x", data_type, left), b.input("w", data_type, right))
        x, w = (b.transpose(y) if t else y for y, t in zip(operands, turned, strict=True))
        return {"y": b.gelu(b.matmul(x, w))}

    return what


@pytest.mark.parametrize(
    ("table", "cost", "product"),
    CASES,
    ids=[f"{p[0]}-{c.tile.rows}x{c.tile.cols}x{c.tile.depth}-{p[1]}" for _, c, p in CASES],
)
def test_a_tile(
    hardware: MLContext, monkeypatch: pytest.MonkeyPatch, table: str, cost: costs.Cost, product: Any
) -> None:
    data_type, left, right, *_ = product
    if data_type == "float16":
        need_halves(hardware.device)
    monkeypatch.setattr(costs, table, (cost,))
    what, rng = multiplied(*product), np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=shape).astype(data_type)
        for name, shape in (("x", left), ("w", right))
    }
    graph = build(hardware, what)
    (kernel,) = executable_of(graph).compiled.kernels
    assert "workgroupBarrier" in kernel.code  # by a shared tile
    got = awaited(graph, inputs)["y"].astype(np.float64)
    graph.destroy()
    wanted = expected(what, inputs)["y"].astype(np.float64)
    assert np.linalg.norm(got - wanted) <= TOLERANCES[data_type] * np.linalg.norm(wanted)
