"""Converts graphs to JSON values and back without validation, for the package's own caches.

It keeps inferred attributes and shared nodes, so reading skips inference. `graph_file` handles
users' files: it records the graph again and validates every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webnn_py.ir import Array, Graph, Node, Value, make_graph


class PlainGraphError(ValueError):
    """A graph contains an option that JSON cannot represent exactly."""


def to_plain(graphs: Sequence[Graph], number_of: Callable[[Array], int]) -> dict[str, Any]:
    """Convert graphs, which may share values and nodes, to JSON values.

    Args:
        graphs: Graphs without open dimensions.
        number_of: Function that returns a number for each constant array.

    Raises:
        PlainGraphError: JSON cannot represent an option exactly.
    """
    values: dict[Value, int] = {}
    nodes: dict[Node, int] = {}
    for graph in graphs:
        for value in (*graph.inputs, *graph.constants):
            values.setdefault(value, len(values))
        for node in graph.nodes:
            nodes.setdefault(node, len(nodes))
            for value in node.outputs:
                values.setdefault(value, len(values))
    return {
        "values": [[value.data_type, value.shape, value.name] for value in values],
        "nodes": [_node_to_plain(node, values) for node in nodes],
        "graphs": [
            {
                "inputs": [values[value] for value in graph.inputs],
                "constants": [[values[v], number_of(a)] for v, a in graph.constants.items()],
                "nodes": [nodes[node] for node in graph.nodes],
                "outputs": [[name, values[value]] for name, value in graph.outputs],
            }
            for graph in graphs
        ],
    }


def _node_to_plain(node: Node, values: Mapping[Value, int]) -> list[Any]:
    for options in (node.given, node.inferred):
        _check_exact(dict(options))
    return [
        node.op,
        [None if value is None else values[value] for value in node.inputs],
        dict(node.given),
        [values[value] for value in node.outputs],
        node.label,
        dict(node.inferred),
    ]


def _check_exact(option: Any) -> None:
    """Raise unless an option consists of tuples, numbers, strings, bools and None."""
    if isinstance(option, dict):
        option = tuple(option.values())
    if type(option) is tuple:
        for member in option:
            _check_exact(member)
    elif option is not None and type(option) not in (int, float, str, bool):
        raise PlainGraphError(f"an option of {type(option).__name__}")


def from_plain(found: Mapping[str, Any], array_of: Callable[[int], Array]) -> list[Graph]:
    """Rebuild the graphs from the JSON values of `to_plain`.

    Args:
        found: The JSON values.
        array_of: Function that returns the constant array for each number.

    Raises:
        LookupError, TypeError, ValueError: The values have another structure.
    """
    values = [Value(data_type, tuple(shape), name) for data_type, shape, name in found["values"]]
    nodes = [
        Node(
            op,
            tuple(None if number is None else values[number] for number in inputs),
            _exact(given),
            tuple(values[number] for number in outputs),
            label,
            _exact(inferred),
        )
        for op, inputs, given, outputs, label, inferred in found["nodes"]
    ]
    return [
        make_graph(
            [values[number] for number in graph["inputs"]],
            {values[number]: array_of(array) for number, array in graph["constants"]},
            [nodes[number] for number in graph["nodes"]],
            [(name, values[number]) for name, number in graph["outputs"]],
        )
        for graph in found["graphs"]
    ]


def _exact(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(option) for name, option in options.items()}


def _tuple(option: Any) -> Any:
    return tuple(map(_tuple, option)) if type(option) is list else option
