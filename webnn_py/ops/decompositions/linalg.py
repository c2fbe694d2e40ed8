"""Decomposition of `gemm`."""

from __future__ import annotations

from webnn_py.ops.decompositions.registry import decomposition
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


@decomposition
def gemm(
    g: GraphBuilder,
    a: MLOperand,
    b: MLOperand,
    c: MLOperand | None,
    alpha: float,
    beta: float,
    a_transpose: bool,
    b_transpose: bool,
) -> MLOperand:
    """Multiply, then scale and add where the options require it."""
    left = g.transpose(a) if a_transpose else a
    right = g.transpose(b) if b_transpose else b
    product = g.matmul(left, right)
    if alpha != 1.0:
        product = g.mul(product, g.constant_of(alpha, a))
    if c is None:
        return product
    term = c if beta == 1.0 else g.mul(c, g.constant_of(beta, c))
    return g.add(product, term)
