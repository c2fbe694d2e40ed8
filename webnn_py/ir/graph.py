"""Intermediate representation of graphs: frozen, ordered, printable, verified.

It knows no particular operator. A node has a name, operands and attributes; `webnn_py.ops` defines
their meaning.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.dimensions import symbols_of
from webnn_py.core.messages import printable
from webnn_py.core.polynomials import Symbol

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Data type and shape of a tensor; a scalar has an empty shape."""

    data_type: dtypes.MLOperandDataType
    shape: Shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def byte_length(self) -> int:
        """Size in bytes."""
        return dtypes.byte_length(self.data_type, self.shape)

    def __str__(self) -> str:
        return f"{self.data_type}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Value(Descriptor):
    """One tensor of a graph, compared by identity.

    Attributes:
        name: An input's name in executions; for a constant the user's name, for display only.
    """

    name: str = ""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def titled(op: str, label: str) -> str:
    """Return an operator and its label for messages, with escapes for unprintable characters."""
    return f"{op} [{printable(label)}]" if label else op


NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def _frozen(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options as a read-only mapping; one shared object for none, to spare the GC."""
    if not options:
        return NO_OPTIONS
    return options if type(options) is MappingProxyType else MappingProxyType(dict(options))


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One application of an operator: `outputs = op(*inputs, **attrs)`.

    Applying the operator again starts from `given`; computing or decomposing the node reads
    `attrs`.

    Attributes:
        op: The operator's Python name.
        inputs: Operands in the order of the declaration; None for an omitted optional operand.
        given: The options as the user passed them: numbers converted, lists as tuples, defaults
            from the signature, often None, for the rest.
        outputs: One value, or several.
        label: The user's label, for messages and traces.
        inferred: Options that the operator's declaration infers from `given` and the operands, such
            as omitted axes, or a number rounded to the data type.
        is_assumed: Whether only open sizes decide that the operator accepts its operands.
        attrs: All effective options: `given`, overridden by `inferred`.
    """

    op: str
    inputs: tuple[Value | None, ...]
    given: Mapping[str, Any]
    outputs: tuple[Value, ...]
    label: str = ""
    inferred: Mapping[str, Any] = field(default_factory=lambda: NO_OPTIONS)
    is_assumed: bool = False
    attrs: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        given, inferred = _frozen(self.given), _frozen(self.inferred)
        attrs = MappingProxyType({**given, **inferred}) if inferred else given
        object.__setattr__(self, "given", given)
        object.__setattr__(self, "inferred", inferred)
        object.__setattr__(self, "attrs", attrs)

    @property
    def operands(self) -> Iterator[Value]:
        """The operands without omitted ones."""
        return (value for value in self.inputs if value is not None)

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole graph in execution order; derived properties are computed once.

    Attributes:
        inputs: Named values that executions supply.
        constants: Values known at build time with their read-only arrays. An array's identity
            stands for its contents: graphs that share a weight share the array object.
        nodes: Nodes in topological order.
        outputs: Names and values of the results.
    """

    inputs: tuple[Value, ...]
    constants: Mapping[Value, Array]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, Value], ...]

    @functools.cached_property
    def names(self) -> Mapping[Value, str]:
        """A short unique name of each value."""
        return MappingProxyType(_assign_names(self))

    @functools.cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The node that produces each value; inputs and constants have none."""
        return MappingProxyType({output: node for node in self.nodes for output in node.outputs})

    @functools.cached_property
    def readers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value, in order, each node once."""
        readers: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                readers.setdefault(value, []).append(node)
        return MappingProxyType({value: tuple(nodes) for value, nodes in readers.items()})

    @functools.cached_property
    def uses(self) -> Mapping[Value, int]:
        """The number of reads of each value, including graph outputs; unread values are missing."""
        read = itertools.chain.from_iterable(node.operands for node in self.nodes)
        return MappingProxyType(Counter(itertools.chain(read, (v for _, v in self.outputs))))

    @functools.cached_property
    def open_sizes(self) -> Mapping[str, Symbol]:
        """The open sizes by name, which are bound when the graph runs."""
        return MappingProxyType(symbols_of([value.shape for value in self.inputs]))

    @functools.cached_property
    def results(self) -> frozenset[Value]:
        """The values that are graph outputs."""
        return frozenset(value for _, value in self.outputs)

    def replace(self, **changes: Any) -> Graph:
        """Return a copy with some parts replaced."""
        parts = {
            "inputs": self.inputs,
            "constants": self.constants,
            "nodes": self.nodes,
            "outputs": self.outputs,
        }
        return make_graph(**(parts | changes))

    def __str__(self) -> str:
        return format_graph(self)


def make_graph(
    inputs: Iterable[Value],
    constants: Mapping[Value, Array],
    nodes: Iterable[Node],
    outputs: Iterable[tuple[str, Value]],
) -> Graph:
    """Assemble a graph from copies of the containers, so that later changes do not affect it."""
    return Graph(tuple(inputs), MappingProxyType(dict(constants)), tuple(nodes), tuple(outputs))


def _assign_names(graph: Graph) -> dict[Value, str]:
    """Prefer the values' own names, first come first served; append a number to duplicates."""
    preferred = [(value, value.name or f"in{i}") for i, value in enumerate(graph.inputs)]
    preferred += [(value, value.name or f"c{i}") for i, value in enumerate(graph.constants)]
    results = (output for node in graph.nodes for output in node.outputs)
    preferred += [(value, str(i)) for i, value in enumerate(results)]
    names: dict[Value, str] = {}
    taken: dict[str, int] = {}
    for value, name in preferred:
        unique = name
        while unique in taken:
            taken[name] += 1
            unique = f"{name}_{taken[name]}"
        taken[unique] = 0
        names[value] = f"%{printable(unique)}"
    return names


def _format_attr(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_attr, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def format_node(node: Node, names: Mapping[Value, str]) -> str:
    """Format a node as one line: outputs, operator, operands, attributes, label."""
    left = ", ".join(f"{names[v]}: {Descriptor.__str__(v)}" for v in node.outputs)
    arguments = [names[v] if v is not None else "_" for v in node.inputs]
    while arguments and arguments[-1] == "_":
        arguments.pop()
    arguments += [f"{k}={_format_attr(v)}" for k, v in node.attrs.items() if v is not None]
    label = f'  "{printable(node.label)}"' if node.label else ""
    return f"{left} = {node.op}({', '.join(arguments)}){label}"


def format_graph(graph: Graph, headings: Mapping[Node, str] = MappingProxyType({})) -> str:
    """Format a graph as the listing of `print(graph)`.

    Golden tests compare it.

    Args:
        graph: The graph.
        headings: Comments to print before nodes.
    """
    names = graph.names
    heads = ", ".join(f"{names[v]}: {Descriptor.__str__(v)}" for v in graph.inputs)
    lines = [f"graph({heads}) {{"]
    for value, array in graph.constants.items():
        shown = f" = {array.reshape(-1)[0]}" if array.size == 1 else ""
        lines.append(f"  {names[value]}: {Descriptor.__str__(value)} constant{shown}")
    for node in graph.nodes:
        if node in headings:
            lines.append(f"  # {headings[node]}")
        lines.append(f"  {format_node(node, names)}")
    results = ", ".join(f"{printable(name)}={names[value]}" for name, value in graph.outputs)
    return "\n".join([*lines, f"  return {results}", "}"])


def without_dead_nodes(graph: Graph) -> Graph:
    """Remove nodes and constants that no output needs; return the graph itself if none.

    Inputs stay: they are the graph's interface.
    """
    wanted = {value for _, value in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.operands)
            kept.append(node)
    constants = {value: array for value, array in graph.constants.items() if value in wanted}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return graph.replace(nodes=kept[::-1], constants=constants)


def verify(graph: Graph) -> None:
    """Check the structure: unique values, operands before use, no dead nodes, fitting constants.

    Raises:
        AssertionError: A pass produced an invalid graph; this is never the user's fault.
    """
    known: set[Value] = set()
    for value in (*graph.inputs, *graph.constants):
        assert value not in known, f"{value} stands twice"
        known.add(value)
    for value, array in graph.constants.items():
        assert array.shape == value.shape, f"constant {array.shape} for {value}"
        assert array.dtype == dtypes.DTYPES[value.data_type].numpy, f"{array.dtype} for {value}"
    for node in graph.nodes:
        for operand in node.operands:
            assert operand in known, f"{node.op} reads {operand} before it is made"
        for output in node.outputs:
            assert output not in known, f"{node.op} makes {output} twice"
            known.add(output)
    assert graph.outputs, "a graph needs an output"
    for name, value in graph.outputs:
        assert value in known, f"output {name} is not made"
    needed = set(without_dead_nodes(graph).nodes)
    for node in graph.nodes:
        assert node in needed, f"nothing needs what {node.op} makes"
