"""Which values are stored, and which are computed where they are read.

Every stored value becomes one kernel. A value is stored if it is a graph output, if computing it
again would cost more than reading it, or if its reader would read it at other places than its own:
a loop's result can only be taken up by readers that go element by element with it (an epilogue).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.lower.pointwise import rounds
from webnn_py.engines.webgpu.compiler.lower.reduction import count_of
from webnn_py.engines.webgpu.compiler.lower.registry import FUSES, LOOPING, READS, VIEWS
from webnn_py.engines.webgpu.compiler.rounds import LONG
from webnn_py.engines.webgpu.compiler.sequences import STEPS
from webnn_py.engines.webgpu.compiler.storage import Features, parts_of, storage_of
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.declare import REGISTRY

RECOMPUTE_LIMIT = 4
"""Elementwise operators that may be computed once more rather than stored and read."""

SIZE_LIMIT = 32
"""Elements that a kernel computes or reads on the way to one of its root, written out one by one.

Compilers take more than twice the time for twice the code.
"""


@dataclass(frozen=True, slots=True)
class Inline:
    """A value that is computed where it is read.

    Attributes:
        anchor: The value of a loop whose result flows, element by element, into this one.
        cost: Elementwise operators on the way from buffers.
        size: Elements computed or read on the way, each as often as its readers ask for it.
        leaves: The stored values it reads.
        rounds: Rounds of the loops in those operators' functions.
    """

    anchor: Value | None
    cost: int
    size: int
    leaves: frozenset[Value]
    rounds: int


class Fusion:
    """The stored values of a graph, in the order of their kernels.

    Attributes:
        roots: The values that kernels write.
    """

    def __init__(self, graph: Graph, features: Features) -> None:
        self._graph = graph
        self._features = features
        self._limit = features.max_bindings - 1
        self._uses = graph.uses
        self._producers = graph.producers
        self._stored: set[Value] = set(graph.inputs) | set(graph.constants)
        self._inline: dict[Value, Inline] = {}
        self._outputs = {value for _, value in graph.outputs}
        for node in graph.nodes:
            self._place(node)
        made = [value for node in graph.nodes for value in node.outputs]
        self.roots: tuple[Value, ...] = tuple(v for v in made if v in self._stored)

    def is_stored(self, value: Value) -> bool:
        """Whether the value lies in a buffer."""
        return value in self._stored

    def anchor_of(self, root: Value) -> Node | None:
        """The node whose loop a root's kernel runs, if there is one."""
        anchor = self._inline[root].anchor
        return None if anchor is None else self._producers[anchor]

    def _place(self, node: Node) -> None:
        for value in node.operands:
            if value not in self._stored and self._must_store(value, node):
                self._stored.add(value)
        for output in node.outputs:
            inline = self._combine(node, output)
            while self._bindings(inline) > self._limit and self._store_most(node, self._bindings):
                inline = self._combine(node, output)
            while inline.size > SIZE_LIMIT and self._store_most(node, lambda part: part.size):
                inline = self._combine(node, output)
            self._inline[output] = inline
            if output in self._outputs:
                self._stored.add(output)

    def _combine(self, node: Node, output: Value) -> Inline:
        parts = [self._inline[v] for v in node.operands if v not in self._stored]
        heavies = [part.anchor for part in parts if part.anchor is not None]
        leaves = frozenset(
            leaf
            for v in node.operands
            for leaf in ([v] if v in self._stored else self._inline[v].leaves)
            if self._graph.constants.get(v) is None or v.size > 1
        )
        anchor = output if _is_looping(node) else heavies[0] if heavies else None
        own = 0 if node.op in VIEWS or node.op in ("cast", "identity") else 1
        reads = READS[node.op](node) if node.op in READS else 1
        return Inline(
            anchor,
            cost=sum(part.cost for part in parts) + own,
            size=1 + reads * sum(part.size for part in parts),
            leaves=leaves,
            rounds=reads * sum(part.rounds for part in parts) + rounds(node, self._features),
        )

    def _must_store(self, value: Value, reader: Node) -> bool:
        inline = self._inline[value]
        if inline.anchor is not None:
            return not self._takes_over(value, reader)
        if _is_looping(reader):
            # Read often: by each window or row. A view costs only index arithmetic.
            if not _reduces(reader):
                return inline.cost > 0
            return inline.cost > RECOMPUTE_LIMIT or inline.rounds * count_of(reader) > LONG
        if _spreads(value, reader):
            return inline.cost > 0
        return self._uses[value] > 1 and inline.cost > RECOMPUTE_LIMIT

    def _takes_over(self, value: Value, reader: Node) -> bool:
        """Whether a loop's result can flow into its reader: one reader, element by element."""
        if self._uses[value] > 1 or _is_looping(reader) or len(reader.outputs) > 1:
            return False
        others = [v for v in reader.operands if v is not value and v not in self._stored]
        if any(self._inline[v].anchor is not None for v in others):
            return False
        if reader.op in VIEWS:
            return VIEWS[reader.op](reader, 0).identity and reader.output.size == value.size
        if REGISTRY[reader.op].wgsl is None and reader.op not in FUSES:
            return False
        return broadcast_map(value.shape, reader.output.shape).identity

    def _bindings(self, inline: Inline) -> int:
        return sum(binding_count(leaf, self._features) for leaf in inline.leaves)

    def _store_most(self, node: Node, measure: Callable[[Inline], int]) -> bool:
        """Store the operand that has most of something; False if there is none to store."""
        loose = [v for v in node.operands if v not in self._stored and measure(self._inline[v])]
        if not loose:
            return False
        self._stored.add(max(loose, key=lambda v: measure(self._inline[v])))
        return True


def binding_count(value: Value, features: Features) -> int:
    """Bindings that a stored value takes."""
    size = storage_of(value.data_type, features).buffer_bytes(value.size)
    return len(parts_of(size, features.binding_bytes))


def _is_looping(node: Node) -> bool:
    return node.op in LOOPING or node.op == STEPS or _reduces(node)


def _reduces(node: Node) -> bool:
    return node.op != STEPS and REGISTRY[node.op].reduce is not None


def _spreads(value: Value, reader: Node) -> bool:
    """Whether one element of `value` goes into many of the reader's."""
    return max(output.size for output in reader.outputs) >= 2 * value.size
