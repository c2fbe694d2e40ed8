"""Nodes and constants that no output needs, removed."""

from __future__ import annotations

from webnn_py.ir import Graph, Node
from webnn_py.passes.target import Target


def remove_dead_nodes(graph: Graph, target: Target) -> Graph:
    """Keep what the outputs reach. Inputs stay: they are the graph's interface."""
    wanted = {value for _, value in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(output in wanted for output in node.outputs):
            wanted.update(node.operands)
            kept.append(node)
    constants = {v: a for v, a in graph.constants.items() if v in wanted}
    return graph.replace(nodes=kept[::-1], constants=constants)
