"""GraphBuilder: every operator's method, writing nodes into lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.ir import Array, Graph, Node, Value, make_graph
from webnn_py.ops.all import Operators
from webnn_py.ops.operand import Inferred, MLOperand, NodeBuilder


class GraphBuilder(Operators, NodeBuilder):
    """Records nodes and constants; knows nothing of contexts."""

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._constants: dict[Value, Array] = {}
        self._nodes: list[Node] = []

    def emit(
        self,
        op: str,
        operands: Sequence[MLOperand | None],
        given: Mapping[str, Any],
        inferred: Inferred,
        label: str,
    ) -> list[MLOperand]:
        """Add a node and return its outputs."""
        values = tuple(Value(d.data_type, d.shape) for d in inferred.outputs)
        inputs = tuple(None if o is None else o.value for o in operands)
        self._nodes.append(Node(op, inputs, given, values, label, inferred.attrs))
        return [MLOperand(self, value) for value in values]

    def recorded(self) -> Graph:
        """What was recorded so far, with no outputs chosen."""
        return make_graph(self._inputs, self._constants, self._nodes, ())

    def add_constant(self, array: Array, data_type: str) -> MLOperand:
        """A constant that holds `array`, which nobody else may change."""
        array.flags.writeable = False
        value = Value(data_type, array.shape)
        self._constants[value] = array
        return MLOperand(self, value)

    def constant_of(self, value: object, like: MLOperand) -> MLOperand:
        """A scalar constant of the data type of `like`."""
        info = dtypes.DTYPES[like.data_type]
        return self.add_constant(np.array(value, dtype=info.numpy), like.data_type)
