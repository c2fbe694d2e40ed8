"""Binds the open dimensions of recorded graphs to sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from webnn_py.core.errors import ValidationError, prefix_errors
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.open_dims import check_sizes, evaluated
from webnn_py.core.shapes import check_dimensions
from webnn_py.ir import Graph, Node, Shape, Value, make_graph, titled
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import infer_node


def fix(recipe: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with its open dimensions bound to `sizes`; itself if it has none.

    Shapes are evaluated from the recorded ones, not inferred again.

    Args:
        recipe: The graph as recorded.
        sizes: A number for each open dimension, by name.

    Raises:
        ValidationError: A size is missing, unknown or out of bounds, or makes a tensor too large.
    """
    numbers = check_sizes(recipe.open_sizes, sizes)
    if not recipe.open_sizes:
        return recipe
    check_assumed(recipe.nodes, numbers)
    fixed = at_sizes(recipe, numbers)
    for value in fixed.inputs:
        check_dimensions(value.shape, value.data_type)
    checked = set[tuple[str, Shape]]()
    for node in fixed.nodes:
        for value in node.outputs:
            form = value.data_type, value.shape
            if form not in checked:
                checked.add(form)
                with prefix_errors(titled(node.op, node.label)):
                    check_dimensions(value.shape, value.data_type)
    return fixed


def at_sizes(recipe: Graph, numbers: Mapping[str, Any]) -> Graph:
    """Return the graph with `numbers` in place of its open dimensions, without checks.

    The numbers may be any objects that calculate as integers do.
    """
    shapes: dict[Shape, Shape] = {}  # as many values have the same

    def at(shape: Shape) -> Shape:
        if shape not in shapes:
            shapes[shape] = evaluated(shape, numbers)
        return shapes[shape]

    values: dict[Value, Value] = {v: Value(v.data_type, at(v.shape), v.name) for v in recipe.inputs}
    nodes = []
    for node in checkpoints(recipe.nodes):
        outputs = [Value(v.data_type, at(v.shape)) for v in node.outputs]
        values.update(zip(node.outputs, outputs, strict=True))
        inputs = tuple(None if v is None else values.get(v, v) for v in node.inputs)
        inferred = node.inferred and {
            name: evaluated(option, numbers) for name, option in node.inferred.items()
        }
        given = _given(node, numbers)
        nodes.append(Node(node.op, inputs, given, tuple(outputs), node.label, inferred))
    ends = [(name, values.get(value, value)) for name, value in recipe.outputs]
    return make_graph(map(values.__getitem__, recipe.inputs), recipe.constants, nodes, ends)


def _given(node: Node, numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the user's options with `numbers` in place of open dimensions."""
    sizes = {name: evaluated(node.given[name], numbers) for name in REGISTRY[node.op].sizes}
    return {**node.given, **sizes} if sizes else node.given


def check_assumed(nodes: Iterable[Node], numbers: Mapping[str, int]) -> None:
    """Check those nodes that only sizes decide to be valid.

    Args:
        nodes: Recorded nodes.
        numbers: A number for each open dimension, by name.

    Raises:
        ValidationError: An operator does not accept its operands at these sizes.
    """
    for node in nodes:
        if not node.is_assumed:
            continue
        inputs, outputs = (
            [None if v is None else Value(v.data_type, evaluated(v.shape, numbers)) for v in some]
            for some in (node.inputs, node.outputs)
        )
        fixed = Node(node.op, tuple(inputs), _given(node, numbers), (), node.label)
        with prefix_errors(titled(node.op, node.label)):
            found = [made.shape for made in infer_node(fixed).outputs]
            expected = [made.shape for made in outputs if made is not None]
            if found != expected:
                raise ValidationError(
                    f"its result has shape {found[0]}, recorded as {expected[0]}; give dimensions="
                    " narrower bounds"
                )


def output_shapes(recipe: Graph, sizes: Mapping[str, int]) -> dict[str, Shape]:
    """Return the outputs' shapes for these sizes, by name.

    Args:
        recipe: The graph as recorded.
        sizes: A number for each open dimension, by name.

    Raises:
        ValidationError: A size is missing, unknown or out of bounds.
    """
    numbers = check_sizes(recipe.open_sizes, sizes)
    check_assumed(recipe.nodes, numbers)
    return {name: evaluated(value.shape, numbers) for name, value in recipe.outputs}
