"""Composite operators in terms of others, where the engine has no kernel of its own."""

from __future__ import annotations

from webnn_py.core.dtypes import PACKED_4BIT
from webnn_py.core.errors import NotSupportedError
from webnn_py.ir import Graph, Node, titled
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter, as_list
from webnn_py.passes.target import Target


def decompose(graph: Graph, target: Target) -> Graph:
    """Replace every node that the target wants decomposed, until none is left.

    Raises:
        NotSupportedError: One is too large for what takes its place.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        function = DECOMPOSITIONS.get(node.op)
        if function is None or target.has_kernel(node):
            return None
        if any(v.data_type in PACKED_4BIT for v in (*node.operands, *node.outputs)):
            return None  # nothing else takes them
        try:
            return as_list(function(rewriter, **rewriter.arguments(node)))
        except NotSupportedError as error:
            raise NotSupportedError(f"{titled(node.op, node.label)}: {error}") from None

    while (made := Rewriter(graph).run(rule)) is not graph:
        graph = made
    return graph
