"""Intermediate representation of graphs: frozen values, nodes and graphs."""

from __future__ import annotations

from webnn_py.ir.graph import (
    Array,
    Descriptor,
    Graph,
    Node,
    Shape,
    Value,
    format_graph,
    format_node,
    make_graph,
    titled,
    verify,
    without_dead_nodes,
)

__all__ = [
    "Array",
    "Descriptor",
    "Graph",
    "Node",
    "Shape",
    "Value",
    "format_graph",
    "format_node",
    "make_graph",
    "titled",
    "verify",
    "without_dead_nodes",
]
