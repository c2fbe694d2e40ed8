"""What a device's limits ask of a graph before it is partitioned."""

from __future__ import annotations

from webnn_py.backends.webgpu.storage import Features
from webnn_py.ir import Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter


def legalize(graph: Graph, features: Features) -> Graph:
    """Split a concat of more inputs than one kernel can bind into concats of concats."""
    most = max(2, features.max_bindings - 1)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "concat" or len(node.inputs) <= most:
            return None
        parts = [rewriter.map[value] for value in node.operands]
        axis = node.attrs["axis"]
        while len(parts) > most:
            groups = [parts[i : i + most] for i in range(0, len(parts), most)]
            parts = [
                group[0] if len(group) == 1 else rewriter.concat(group, axis, label=node.label)
                for group in groups
            ]
        return [rewriter.concat(parts, axis, label=node.label)]

    return Rewriter(graph).run(rule)
