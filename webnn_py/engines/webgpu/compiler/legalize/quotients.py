"""Quotients that are rounded behind, which must be exact.

WGSL's division may be 2.5 units in the last place off, as on NVIDIA. Where a quotient becomes an
integer, that can move it by a whole one.
"""

from __future__ import annotations

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.lower.pointwise import EXACT, EXACTLY
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter

ROUNDINGS = ("ceil", "floor", "quantize_linear", "round_even")
MOVING = ("concat", "gather", "gather_elements", "gather_nd", "pad", "split", "tile")
"""Operators besides those of VIEWS that keep the elements as they are."""


class ExactQuotients:
    """Rule that marks quotients which operators behind them round to integers."""

    def __init__(self, graph: Graph) -> None:
        self._rounded = _rounded(graph)

    def __call__(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Return the node with the attribute EXACT; None where it does not matter."""
        if node.op not in EXACTLY or node.output not in self._rounded or EXACT in node.attrs:
            return None
        inputs = tuple(value_of(rewriter.map[value]) for value in node.operands)
        output = Value(node.output.data_type, node.output.shape)
        return rewriter.emit(Node(node.op, inputs, {EXACT: True}, (output,), node.label))


def _rounded(graph: Graph) -> set[Value]:
    """Find the floats that are rounded to integers, element by element or moved before."""
    if not any(node.op in EXACTLY for node in graph.nodes):
        return set()
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if _rounds(node) or (_carries(node) and not found.isdisjoint(node.outputs)):
            found.update(v for v in node.operands if DTYPES[v.data_type].kind == "f")
    return found


def _rounds(node: Node) -> bool:
    to_integer = node.op == "cast" and DTYPES[node.output.data_type].kind != "f"
    return node.op in ROUNDINGS or to_integer


def _carries(node: Node) -> bool:
    """Whether the node's elements are those of its operands, or computed one by one from them."""
    if node.op in VIEWS or node.op in MOVING:
        return True
    return node.op in REGISTRY and REGISTRY[node.op].wgsl is not None
