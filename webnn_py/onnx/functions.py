"""Local functions of a model: their names, and the limits of calling them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from webnn_py.core.errors import DataError, NotSupportedError

MAX_NODES = 200_000
"""Nodes after unrolling and expansion: a damaged loop count must not fill the memory."""

Key = tuple[str, str, str]
MAX_DEPTH = 100
"""Functions that call each other in a row; ONNX's inliner takes no more."""


def count_nodes(model: Any) -> int:
    """Count the nodes of a model, those of the local functions that it calls included.

    Raises:
        DataError: They call each other in a circle, or too deep.
        NotSupportedError: There would be too many nodes.
    """
    calls = {key_of(one): list(_called(one.node)) for one in model.functions}
    counts: dict[Key, int] = {}

    def count(called: Iterable[Key], within: tuple[Key, ...]) -> int:
        return sum(1 if key not in calls else of(key, within) for key in called)

    def of(key: Key, within: tuple[Key, ...]) -> int:
        if key in within or len(within) >= MAX_DEPTH:
            chain = " -> ".join(".".join(filter(None, one)) for one in (*within[-3:], key))
            raise DataError(f"onnx: local functions call each other without an end: {chain}")
        if key not in counts:
            counts[key] = count(calls[key], (*within, key))
        return counts[key]

    total = count(_called(model.graph.node), ())
    if total > MAX_NODES:
        raise NotSupportedError(f"onnx: over {MAX_NODES} nodes after its functions are written out")
    return total


def key_of(function: Any) -> Key:
    """What a function is called by."""
    return _domain(function), function.name, getattr(function, "overload", "")


def called_by(node: Any) -> Key:
    """What a node calls."""
    return _domain(node), node.op_type, getattr(node, "overload", "")


def is_standard(node: Any) -> bool:
    """Tell whether a node is of ONNX's own operator set."""
    return not _domain(node)


def _domain(named: Any) -> str:
    return "" if named.domain == "ai.onnx" else str(named.domain)


def _called(nodes: Iterable[Any]) -> Iterator[Key]:
    """What nodes call, and those of their branches and bodies."""
    return map(called_by, _all_of(nodes))


def _all_of(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of their branches and bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_of(graph.node)
