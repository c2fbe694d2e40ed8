"""A graph recorded once more, from what each of its nodes was given."""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.cooperation import checkpoints
from webnn_py.core.sizes import check_sizes, evaluated
from webnn_py.ir import Descriptor, Graph, Shape, Value
from webnn_py.ops.all import Operators
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


def replay(
    graph: Graph,
    builder: Operators,
    inputs: Mapping[str, MLOperand],
    sizes: Mapping[str, int] | None = None,
) -> dict[str, MLOperand]:
    """Apply a graph's operators again, through the methods of a builder.

    Constants are shared: the same arrays, under the same names.

    Args:
        graph: What to replay, as it was recorded.
        builder: What records it, and checks it as it checks what a user calls.
        inputs: An operand of the builder for each of the graph's inputs, by name. Data types and
            shapes may be others than the graph was recorded with: what was not given (axes, the
            window of a global pool) follows from them anew.
        sizes: What open dimensions in options are; if not given, they stay as they are.

    Returns:
        The outputs, by name.

    Raises:
        MLError: An operator does not take such operands; the message names it and its label.
    """
    operands: dict[Value, MLOperand] = {value: inputs[value.name] for value in graph.inputs}
    for value, array in graph.constants.items():
        operands[value] = builder._node_builder.add_constant(array, value.data_type, value.name)
    for node in checkpoints(graph.nodes):
        op = REGISTRY[node.op]
        arguments = op.given_arguments(node, operands)
        if sizes:
            arguments |= {name: evaluated(node.given[name], sizes) for name in op.sizes}
        made = getattr(builder, node.op)(**arguments, label=node.label)
        outputs = made if isinstance(made, list) else [made]
        operands.update(zip(node.outputs, outputs, strict=True))
    return {name: operands[value] for name, value in graph.outputs}


def fix(recipe: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph recorded for these sizes; itself where none of its dimensions is open.

    Args:
        recipe: What to replay, as it was recorded.
        sizes: A number for each of its open sizes, by name.

    Raises:
        ValidationError: A size is missing, unknown or out of bounds, or with it a tensor has more
            elements than there may be.
    """
    numbers = check_sizes(recipe.open_sizes, sizes)
    if not recipe.open_sizes:
        return recipe
    shapes = {value.name: evaluated(value.shape, numbers) for value in recipe.inputs}
    builder = GraphBuilder()
    inputs = {
        v.name: builder.add_input(v.name, Descriptor(v.data_type, shapes[v.name]))
        for v in recipe.inputs
    }
    return builder.recorded(replay(recipe, builder, inputs, numbers))


def output_shapes(recipe: Graph, sizes: Mapping[str, int]) -> dict[str, Shape]:
    """The shapes of the results for these sizes, by name.

    Args:
        recipe: A graph as it was recorded.
        sizes: A number for each of its open sizes, by name.

    Raises:
        ValidationError: A size is missing, unknown or out of bounds.
    """
    numbers = check_sizes(recipe.open_sizes, sizes)
    return {name: evaluated(value.shape, numbers) for name, value in recipe.outputs}
