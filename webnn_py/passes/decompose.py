"""Pass that decomposes composite operators for which the engine has no kernel."""

from __future__ import annotations

from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.core.errors import NotSupportedError
from webnn_py.ir import Graph, Node, titled
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.cached_attention import writes_state
from webnn_py.passes.rewrite import Rewriter, as_list
from webnn_py.passes.target import Target


def _has_4_bits(node: Node) -> bool:
    return any(v.data_type in PACKED_4BIT for v in (*node.operands, *node.outputs))


def decompose(graph: Graph, target: Target) -> Graph:
    """Replace composite nodes without a kernel by their decompositions, until none is left.

    Raises:
        NotSupportedError: A node is too large for its decomposition.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        function = DECOMPOSITIONS.get(node.op)
        if function is None or target.has_kernel(node):
            return None
        if node.op in ("quantize_linear", "dequantize_linear") and _has_4_bits(node):
            return None  # only these two accept 4-bit integers, and their decompositions cast
        if target.leaves_states and writes_state(rewriter.graph, node):
            return None
        try:
            return as_list(function(rewriter, **rewriter.arguments(node)))
        except NotSupportedError as error:
            raise NotSupportedError(f"{titled(node.op, node.label)}: {error}") from None

    while (made := Rewriter(graph).run(rule)) is not graph:
        graph = made
    return graph
