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


def with_defaults(model: Any) -> Any:
    """A model whose calls of local functions say what the defaults of these are.

    As ONNX's inliner leaves out what a call leaves out.
    """
    defaults = {key_of(one): one.attribute_proto for one in model.functions if one.attribute_proto}
    if not defaults:
        return model
    made = type(model)()
    made.CopyFrom(model)
    for nodes in (made.graph.node, *(function.node for function in made.functions)):
        for node in list(_all_of(nodes)):
            given = {attribute.name for attribute in node.attribute}
            missing = [one for one in defaults.get(_called_by(node), ()) if one.name not in given]
            node.attribute.extend(missing)
    return made


def key_of(function: Any) -> Key:
    """What a function is called by."""
    return function.domain, function.name, getattr(function, "overload", "")


def _called_by(node: Any) -> Key:
    """What a node calls."""
    return node.domain, node.op_type, getattr(node, "overload", "")


def _called(nodes: Iterable[Any]) -> Iterator[Key]:
    """What nodes call, and those of their branches and bodies."""
    return map(_called_by, _all_of(nodes))


def _all_of(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of their branches and bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_of(graph.node)
