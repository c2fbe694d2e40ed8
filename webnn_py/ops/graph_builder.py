"""Builders of graphs for decompositions, passes and users' builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.shapes import check_dimensions
from webnn_py.ir import Array, Descriptor, Graph, Node, Value, make_graph
from webnn_py.ops.all import Operators
from webnn_py.ops.operand import MLOperand, NodeBuilder, value_of


class NodeList(NodeBuilder):
    """A list of inputs, constants and nodes that becomes a graph; it has no context."""

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._constants: dict[Value, Array] = {}
        self._nodes: list[Node] = []

    def emit(self, node: Node) -> list[MLOperand]:
        """Add a node and return its outputs as operands."""
        self._nodes.append(node)
        return [MLOperand(self, value) for value in node.outputs]

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes added so far."""
        return self._nodes

    @property
    def input_count(self) -> int:
        """Number of the inputs added so far."""
        return len(self._inputs)

    def is_constant(self, value: Value) -> bool:
        """Whether a value is a constant of the list."""
        return value in self._constants

    def add_copies(self, nodes: Sequence[Node], values: dict[Value, Value], label: str) -> None:
        """Add copies of nodes of the list.

        Args:
            nodes: The nodes.
            values: Replacements of values that they read; those of their outputs are added.
            label: Label of the copies.
        """
        for node in nodes:
            inputs = [value if value is None else values.get(value, value) for value in node.inputs]
            outputs = [Value(value.data_type, value.shape) for value in node.outputs]
            values.update(zip(node.outputs, outputs, strict=True))
            copy = replace(node, inputs=tuple(inputs), outputs=tuple(outputs), label=label)
            self._nodes.append(copy)

    def recorded(self, outputs: Mapping[str, MLOperand] | None = None) -> Graph:
        """Return the nodes added so far as a graph with these named outputs."""
        pairs = [(name, value_of(operand)) for name, operand in (outputs or {}).items()]
        return make_graph(self._inputs, self._constants, self._nodes, pairs)

    def add_input(self, name: str, descriptor: Descriptor) -> MLOperand:
        """Add an input, whose name must be unique, and return its operand."""
        check_dimensions(descriptor.shape, descriptor.data_type)
        value = Value(descriptor.data_type, descriptor.shape, name)
        self._inputs.append(value)
        return MLOperand(self, value)

    def inputs(self) -> dict[str, MLOperand]:
        """Return the operands of the inputs by name."""
        return {value.name: MLOperand(self, value) for value in self._inputs}

    def add_constant(self, array: Array, data_type: MLOperandDataType, name: str = "") -> MLOperand:
        """Add a constant that shares `array`, make the array read-only, and return its operand."""
        array.flags.writeable = False
        value = Value(data_type, array.shape, name)
        self._constants[value] = array
        return MLOperand(self, value)

    def array_of(self, operand: MLOperand | None) -> Any:
        """Return the array of a constant operand, else None."""
        return None if operand is None else self._constants.get(value_of(operand))

    def constant_of(self, value: object, like: MLOperand) -> MLOperand:
        """Add a scalar constant with the data type of `like`."""
        info = dtypes.DTYPES[like.data_type]
        return self.add_constant(np.array(value, dtype=info.numpy), like.data_type)


class GraphBuilder(Operators, NodeList):
    """A node list with all builder methods, for decompositions and passes."""

    @property
    def _node_builder(self) -> NodeBuilder:
        return self
