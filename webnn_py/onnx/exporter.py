"""Export of graphs as ONNX models."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, checker

from webnn_py.api.compiled import compiled_of
from webnn_py.api.graph import MLGraph
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.engines.onnx_lowering import Names, lower_graph, why_not_lowered
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph, Node, titled
from webnn_py.passes.decompose import decompose
from webnn_py.passes.target import Target

CHECKED_BYTES = 2**31 - 1
"""Largest model, in bytes, that protocol buffers and so ONNX's checker accept."""


def to_onnx(graph: MLGraph) -> ModelProto:
    """Convert a graph, as its builder recorded it before any pass, to an ONNX model.

    Inputs, outputs and constants keep their names, made unique by a number where they collide.
    Lone surrogates in names become escapes. Node names are the labels, or the operators of nodes
    without a label. If ONNX composes an operator of several nodes, their names begin with its
    label. Open dimensions keep their names but lose their bounds. `onnx.checker` checks models
    below 2 GiB, including shapes and data types.

    Args:
        graph: The graph to export.

    Raises:
        ValidationError: `graph` is no MLGraph.
        InvalidStateError: The graph is destroyed.
        NotSupportedError: ONNX cannot express some nodes, all of which are listed, or cannot
            express them for open dimensions.
    """
    target = Target(lambda node: why_not_lowered(node) is None, evaluate)
    recipe = compiled_of(graph).recipe
    try:
        recipe = decompose(recipe, target)
    except ValidationError as error:
        raise NotSupportedError(f"to_onnx: {error}") from error
    _check(recipe.nodes)
    model = lower_graph(recipe, _names(recipe)).model
    if model.ByteSize() <= CHECKED_BYTES:
        checker.check_model(model, full_check=True)
    return model


def _check(nodes: Iterable[Node]) -> None:
    reasons = [(node, why_not_lowered(node)) for node in nodes]
    lines = [f"{titled(node.op, node.label)}: {reason}" for node, reason in reasons if reason]
    if lines:
        raise NotSupportedError("\n  ".join([f"to_onnx: {len(lines)} nodes have no ONNX:", *lines]))


def _names(graph: Graph) -> Names:
    taken: set[str] = set()

    def unique(wanted: str) -> str:
        name, number = _encodable(wanted), 0
        while name in taken:
            number += 1
            name = f"{_encodable(wanted)}_{number}"
        taken.add(name)
        return name

    inputs = tuple(unique(value.name) for value in graph.inputs)
    outputs = tuple(unique(name) for name, _ in graph.outputs)
    constants = tuple(unique(value.name or "constant") for value in graph.constants)
    return Names(inputs, constants, outputs, lambda node: _encodable(node.label or node.op))


def _encodable(name: str) -> str:
    """Return a name with lone surrogates escaped, since models store names as UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()
