"""Keys of the code of a value's kernels: values with equal keys share the code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webnn_py.core.shape_tracing import with_sampled_marks
from webnn_py.engines.webgpu.compiler.inplace_concat import Places
from webnn_py.ir import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Structure:
    """The expression of a stored value over other stored values.

    Attributes:
        key: All that its kernels are written from; hashable, without the identity of any value.
        values: The values in the order of their numbers in the key.
    """

    key: tuple[Any, ...]
    values: tuple[Value, ...]


def key_of(structure: Structure) -> str:
    """Return a hash of a structure that is the same in each process, for caches on disk."""
    key = with_sampled_marks(repr(structure.key))
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class Structures:
    """The structures of the values of one graph.

    Args:
        graph: The graph.
        producers: The node that computes each value.
        stored: Whether a value lies in a buffer.
        places: Values that lie in the buffers of others.
    """

    def __init__(
        self,
        graph: Graph,
        producers: Mapping[Value, Node],
        stored: Callable[[Value], bool],
        places: Places,
    ) -> None:
        self._constants = graph.constants
        self._producers = producers
        self._stored = stored
        self._places = places
        self._attributes: dict[Node, str] = {}

    def of(self, root: Value) -> Structure:
        """Return the structure of a stored value."""
        values = [root]
        numbers = {root: 0}

        def number_of(value: Value) -> int:
            if value not in numbers:
                numbers[value] = len(values)
                values.append(value)
            return numbers[value]

        key: list[Any] = [self._places.left.get(root), root in self._places.states]
        for value in values:  # grows during the loop
            key += (value.data_type, value.shape)
            buffer = self._places.buffer_of(value)
            if buffer is not value:
                key += (number_of(buffer), self._places.view(value))
            node = self._producers.get(value)
            if node is None or (value is not root and self._stored(value)):
                array = self._constants.get(value)
                # repr distinguishes 0 from -0 and 1 from 1.0.
                key.append(None if array is None or array.size > 1 else repr(array.item()))
                continue
            operands = []
            for operand in node.inputs:
                operands.append(-1 if operand is None else number_of(operand))
            output = node.outputs.index(value)
            key.append((node.op, self._attributes_of(node), output, tuple(operands)))
        return Structure(tuple(key), tuple(values))

    def _attributes_of(self, node: Node) -> str:
        if node not in self._attributes:
            self._attributes[node] = repr(dict(node.attrs))
        return self._attributes[node]
