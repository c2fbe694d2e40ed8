"""Keys of a model's local functions, and limits on call depth and node count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from webnn_py.core.errors import DataError, NotSupportedError

MAX_NODES = 200_000
"""Largest number of nodes after loops and functions expand; bounds memory for damaged models."""

Key = tuple[str, str, str]
MAX_DEPTH = 100
"""Largest depth of nested function calls, the same as of ONNX's inliner."""


def count_nodes(model: Any) -> int:
    """Count the nodes of a model, with its calls of local functions expanded.

    Raises:
        DataError: Functions call each other recursively, or deeper than `MAX_DEPTH`.
        NotSupportedError: The count exceeds `MAX_NODES`.
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
    """Return the key of a local function: domain, name and overload."""
    return _domain(function), function.name, getattr(function, "overload", "")


def called_by(node: Any) -> Key:
    """Return the key of the operator or function that a node calls."""
    return _domain(node), node.op_type, getattr(node, "overload", "")


def is_standard(node: Any) -> bool:
    """Return whether a node's operator belongs to ONNX's default domain."""
    return not _domain(node)


def _domain(named: Any) -> str:
    return "" if named.domain == "ai.onnx" else str(named.domain)


def _called(nodes: Iterable[Any]) -> Iterator[Key]:
    """Yield the keys that nodes and the nodes of their subgraphs call."""
    return map(called_by, _all_of(nodes))


def _all_of(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes and the nodes of their subgraphs, depth first."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_of(graph.node)
