"""Matrix product, element by element; the tiled kernels are in `kernels`."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map, coordinate
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.ir import Node


@lowering("matmul", loops=True)
def matmul(body: Body, node: Node, output: int, index: Index) -> str:
    """One output element: a loop over k."""
    a, b = node.operands
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    shape = node.output.shape
    batch = body.let(index // (m * n))
    row = body.let(coordinate(shape, len(shape) - 2, index), "row")
    column = body.let(coordinate(shape, len(shape) - 1, index), "col")
    left = body.let((broadcast_map(a.shape[:-2], shape[:-2]).at(batch) * m + row) * k)
    right = body.let(broadcast_map(b.shape[:-2], shape[:-2]).at(batch) * (k * n) + column)
    total = body.var("f32", "0.0")
    with body.loop(k, "k") as step:
        x = body.load(a, left + step)
        y = body.load(b, right + step * n)
        body.line(f"{total} = fma({x}, {y}, {total});")
    return total
