"""Local functions of a model, before they are written out where they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from webnn_py.core.errors import DataError, NotSupportedError

MAX_NODES = 200_000
"""Nodes after unrolling and expansion: a damaged loop count must not fill the memory."""

Key = tuple[str, str, str]
MAX_DEPTH = 100
"""Functions that call each other in a row; ONNX's inliner takes no more."""


def check_functions(model: Any) -> None:
    """Local functions end, and a model that has them written out is not without bounds.

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

    if count(_called(model.graph.node), ()) > MAX_NODES:
        raise NotSupportedError(f"onnx: over {MAX_NODES} nodes after its functions are written out")


def key_of(function: Any) -> Key:
    """What a function is called by; so is a node that calls it."""
    return function.domain, function.name, getattr(function, "overload", "")


def _called(nodes: Iterable[Any]) -> Iterator[Key]:
    """What nodes call, and those of their branches and bodies."""
    for node in nodes:
        yield node.domain, node.op_type, getattr(node, "overload", "")
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _called(graph.node)
