"""Graphs as lists, strings and numbers: for what this package writes for itself, and trusts.

Files for others are `graph_file`'s, which records them anew by the rules of their operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webnn_py.ir import Array, Graph, Node, Value, make_graph


class PlainGraphError(ValueError):
    """A graph has what lists, strings and numbers do not tell exactly."""


def to_plain(graphs: Sequence[Graph], number_of: Callable[[Array], int]) -> dict[str, Any]:
    """Graphs that share values and nodes.

    Args:
        graphs: Without open dimensions.
        number_of: The number under which `from_plain` is given the contents of a constant.

    Raises:
        PlainGraphError: A node has an option that would not be read as it is.
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
    """Tuples are read as tuples, and finite numbers, texts and flags as they are."""
    if isinstance(option, dict):
        option = tuple(option.values())
    if type(option) is tuple:
        for member in option:
            _check_exact(member)
    elif option is not None and type(option) not in (int, float, str, bool):
        raise PlainGraphError(f"an option of {type(option).__name__}")


def from_plain(found: Mapping[str, Any], array_of: Callable[[int], Array]) -> list[Graph]:
    """What `to_plain` wrote, by way of JSON.

    Raises:
        LookupError, TypeError, ValueError: It was written by somebody else.
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
