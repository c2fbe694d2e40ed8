"""A graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, checker

from webnn_py.api.graph import MLGraph, compiled_of
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.engines.onnx_lowering import Names, lower_graph, why_not_lowered
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph, Node, titled
from webnn_py.passes.decompose import decompose
from webnn_py.passes.target import Target

CHECKED_BYTES = 2**31 - 1
"""Protocol buffers, and so ONNX's checker, take no larger model."""


def to_onnx(graph: MLGraph) -> ModelProto:
    """A graph as it was given to the builder, before any pass, as an ONNX model.

    Inputs, outputs and constants keep their names; an output of an input's name, which ONNX does
    not allow, and what has none get others; half a surrogate pair becomes its escape. Nodes are
    called by their labels, or by their operators where they have none; an operator that ONNX
    composes of several has the label as a prefix. Open dimensions keep their names, and what
    follows from them is calculated by the model; their bounds are not said there. The model was
    checked by `onnx.checker`, shapes and data types included.

    Args:
        graph: What to write.

    Raises:
        ValidationError: It is no MLGraph.
        InvalidStateError: It is destroyed.
        NotSupportedError: ONNX has no operators that compute some of the nodes, all of which are
            listed, or none that do so for open dimensions.
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
    """The name as UTF-8 holds it, which is all that models do."""
    return name.encode("utf-8", "backslashreplace").decode()
