"""In-place concat: the kernels of its operands write straight into the concat's buffer.

A placed operand has no buffer of its own. In WebGPU no dispatch may read and write one buffer, so a
kernel that writes into a shared buffer must read no value that lies there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from webnn_py.core import shapes
from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code.affine import Affine, slice_map
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.legalize.sequences import STEPS
from webnn_py.engines.webgpu.compiler.state_in_place import states_in_place
from webnn_py.engines.webgpu.program.storage import Features, storage_of
from webnn_py.ir import Graph, Node, Value


@dataclass(slots=True)
class _Region:
    """A buffer that several values share.

    Attributes:
        members: The values in it.
        sources: Stored values that are read by the kernels that write into it.
    """

    members: set[Value] = field(default_factory=set)
    sources: set[Value] = field(default_factory=set)


class Places:
    """The values that lie in the buffers of joined concats.

    Args:
        graph: The graph.
        features: The device.
        stored: Whether a value lies in a buffer.

    Attributes:
        left: For the result of each joined concat, the numbers of the operands that its own kernel
            still writes.
        states: The outputs of `states_in_place`.
    """

    def __init__(self, graph: Graph, features: Features, stored: Callable[[Value], bool]) -> None:
        self._features = features
        self._stored = stored
        self._producers: Mapping[Value, Node] = graph.producers
        self._outputs = {value for _, value in graph.outputs}
        self._parents: dict[Value, tuple[Value, int, int]] = {}  # concat, axis, place along it
        self._regions: dict[Value, _Region] = {}
        self._known: dict[Value, tuple[Value, Affine]] = {}
        self.left: dict[Value, tuple[int, ...]] = {}
        self.states = states_in_place(graph, features).keys()

    def buffer_of(self, value: Value) -> Value:
        """Return the value whose buffer holds a stored value."""
        return self._place(value)[0] if value in self._parents else value

    def view(self, value: Value) -> Affine:
        """Return the map from a stored value's indices to its buffer's."""
        return self._place(value)[1]

    def at(self, value: Value, index: Index) -> Index:
        """Return the buffer's index of the element at a flat index of a stored value."""
        return self.view(value).at(index) if value in self._parents else index

    def in_runs(self, value: Value, count: int) -> bool:
        """Whether each aligned run of `count` elements of a value is one in its buffer, too."""
        small = self.view(value).collapsed()
        if not small.sizes or small.strides[-1] != 1 or not divides(count, small.sizes[-1]):
            return False
        return all(divides(count, step) for step in (small.offset, *small.strides[:-1]))

    def _place(self, value: Value) -> tuple[Value, Affine]:
        if value not in self._known:
            starts = [0] * value.rank
            buffer = value
            while buffer in self._parents:
                buffer, axis, start = self._parents[buffer]
                starts[axis] += start
            steps = [1] * value.rank
            self._known[value] = buffer, slice_map(buffer.shape, starts, value.shape, steps)
        return self._known[value]

    def join(self, node: Node, whole: bool = False) -> bool:
        """Place the operands of a concat that can be written in place.

        Args:
            node: The concat. Call this for concats in the order of the graph.
            whole: Place them only if all operands can be.

        Returns:
            Whether any operand is placed.
        """
        operands = list(node.operands)
        if not self._holds_parts(node.output):
            return False
        region, placed = self._placed(node, operands)
        if not placed or (whole and len(placed) < len(operands)):
            return False
        axis = node.attrs["axis"]
        starts = itertools.accumulate((v.shape[axis] for v in operands), initial=0)
        for number, (value, start) in enumerate(zip(operands, starts, strict=False)):
            if number in placed:
                self._parents[value] = node.output, axis, start
                self._regions.pop(value, None)
        self._regions[node.output] = region
        self._known.clear()
        self.left[node.output] = tuple(n for n in range(len(operands)) if n not in placed)
        return True

    def _placed(self, node: Node, operands: list[Value]) -> tuple[_Region, set[int]]:
        """Return the shared region of the operands that can be placed, and their numbers."""
        candidates = [n for n, v in enumerate(operands) if self._is_movable(v, operands)]
        while True:
            region = _Region({node.output})
            placed: set[int] = set()
            for number in candidates:
                other = self._region(operands[number])
                members, sources = region.members | other.members, region.sources | other.sources
                if members.isdisjoint(sources):
                    region, placed = _Region(members, sources), {*placed, number}
            left = [v for n, v in enumerate(operands) if n not in placed]
            read = set().union(*map(self._read_for, left))
            if region.members.isdisjoint(read):
                return _Region(region.members, region.sources | read), placed
            candidates = [n for n in placed if self._region(operands[n]).members.isdisjoint(read)]

    def _is_movable(self, value: Value, operands: list[Value]) -> bool:
        """Whether a value has a kernel of its own, which could write it elsewhere."""
        return (
            self._stored(value)
            and value in self._producers
            and value not in self._outputs
            and value not in self._parents
            and operands.count(value) == 1
            and self._producers[value].op != STEPS
        )

    def _holds_parts(self, value: Value) -> bool:
        """Whether a value's elements can be written one by one, through one binding."""
        storage = storage_of(value.data_type, self._features)
        fits = storage.buffer_bytes(value.size) <= self._features.binding_bytes
        return storage.per_word == 1 and fits

    def _region(self, value: Value) -> _Region:
        """Return the region that moves with a stored value."""
        if value in self._regions:
            return self._regions[value]
        return _Region({value}, self._operands_read(self._producers[value]))

    def _read_for(self, value: Value) -> set[Value]:
        """Return the stored values that a kernel reads to compute a value."""
        if self._stored(value) or value not in self._producers:
            return {value}
        return self._operands_read(self._producers[value])

    def _operands_read(self, node: Node) -> set[Value]:
        found: set[Value] = set()
        seen: set[Node] = set()
        todo = [node]
        while todo:
            node = todo.pop()
            seen.add(node)
            for value in node.operands:
                if self._stored(value):
                    found.add(value)
                elif (before := self._producers[value]) not in seen:
                    todo.append(before)
        return found


def is_row_major(view: Affine) -> bool:
    """Whether a view's elements are contiguous and in order."""
    own = shapes.strides(view.sizes)
    return all(
        size == 1 or step == stride
        for size, step, stride in zip(view.sizes, view.strides, own, strict=True)
    )
