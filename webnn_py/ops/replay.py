"""A graph recorded once more, from what each of its nodes was given."""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.ir import Descriptor, Graph, Value
from webnn_py.ops.all import Operators
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


def replay(
    graph: Graph, builder: Operators, inputs: Mapping[str, MLOperand]
) -> dict[str, MLOperand]:
    """Apply a graph's operators again, through the methods of a builder.

    Constants are shared: the same arrays, under the same names.

    Args:
        graph: What to replay, as it was recorded.
        builder: What records it, and checks it as it checks what a user calls.
        inputs: An operand of the builder for each of the graph's inputs, by name. Data types and
            shapes may be others than the graph was recorded with: what was not given (axes, the
            window of a global pool) follows from them anew.

    Returns:
        The outputs, by name.

    Raises:
        MLError: An operator does not take such operands; the message names it and its label.
    """
    operands: dict[Value, MLOperand] = {value: inputs[value.name] for value in graph.inputs}
    for value, array in graph.constants.items():
        operands[value] = builder._node_builder.add_constant(array, value.data_type, value.name)
    for node in graph.nodes:
        arguments = REGISTRY[node.op].given_arguments(node, operands)
        made = getattr(builder, node.op)(**arguments, label=node.label)
        outputs = made if isinstance(made, list) else [made]
        operands.update(zip(node.outputs, outputs, strict=True))
    return {name: operands[value] for name, value in graph.outputs}


def replayed(graph: Graph, descriptors: Mapping[str, Descriptor] | None = None) -> Graph:
    """The graph, recorded for inputs of other data types and shapes.

    Args:
        graph: What to replay, as it was recorded.
        descriptors: What inputs are, by name; those that are not in it stay what they are.

    Raises:
        MLError: As `replay`.
    """
    builder = GraphBuilder()
    wanted = {value.name: value for value in graph.inputs} | dict(descriptors or {})
    inputs = {
        value.name: builder.add_input(value.name, wanted[value.name]) for value in graph.inputs
    }
    return builder.recorded(replay(graph, builder, inputs))
