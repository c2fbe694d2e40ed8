"""Which values are stored, and which are computed where they are read.

Every stored value becomes one kernel, whose root it is; what its kernel reads from buffers are its
leaves. A value is stored if it is a graph output, if computing it again would cost more than
reading it, or if its reader would read it at other places than its own: the result of a kernel's
anchor, the one node whose loop the kernel is built around, can only be taken up by readers that go
element by element with it (an epilogue), or that are computed row by row with it (`rows`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map
from webnn_py.engines.webgpu.compiler.fusing.inline_dequant import unpacked_weights, unpacks
from webnn_py.engines.webgpu.compiler.fusing.op_traits import elementwise_leaves, facts_of
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import Rows, is_step, is_writable, rows_of
from webnn_py.engines.webgpu.compiler.inplace_concat import Places
from webnn_py.engines.webgpu.compiler.loop_bounds import LONG
from webnn_py.engines.webgpu.compiler.lower.window import is_pixelwise, pools_few
from webnn_py.engines.webgpu.program.storage import Features, parts_of, storage_of
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.declare import REGISTRY

RECOMPUTE_LIMIT = 4
"""Elementwise operators that may be computed once more rather than stored and read."""

MOST_LOADED = 8
"""Elementwise operators that a convolution of single pixels may compute on an element it loads."""

MOST_POOLED = 2
"""Elementwise operators that a pooling of few elements may compute on each of them."""

SIZE_LIMIT = 32
"""Elements that a kernel computes or reads on the way to one of its root, written out one by one.

Compilers take more than twice the time for twice the code.
"""


@dataclass(frozen=True, slots=True)
class Inline:
    """What computing a value where it is read takes.

    Attributes:
        anchor: The result of a loop that flows, element by element, into this value.
        cost: Elementwise operators on the way from buffers.
        size: Elements computed or read on the way, each as often as its readers ask for it. No
            way is longer, so lowerings, which call each other on it, stay within Python's stack.
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
        places: Which of them lie in others' buffers.
    """

    def __init__(self, graph: Graph, features: Features) -> None:
        self._graph = graph
        self._features = features
        self._most_bindings = features.max_bindings - 1
        self._uses = graph.uses
        self._producers = graph.producers
        self._outputs = {value for _, value in graph.outputs}
        self._stored: set[Value] = set(graph.inputs) | set(graph.constants)
        self._inline: dict[Value, Inline] = {}
        self._rows = rows_of(graph, features)
        is_stored = self._stored.__contains__  # without a way back to this object
        self.places = Places(graph, features, is_stored)  # by what is known so far
        for node in checkpoints(graph.nodes):
            self._decide(node)
        self.places = Places(graph, features, is_stored)
        for node in graph.nodes:
            if node.op == "concat" and node.output in self._stored:
                self.places.join(node)
        made = [value for node in graph.nodes for value in node.outputs]
        self.roots: tuple[Value, ...] = tuple(v for v in made if v in self._stored)

    def is_stored(self, value: Value) -> bool:
        """Whether the value lies in a buffer."""
        return value in self._stored

    def leaves_of(self, root: Value) -> frozenset[Value]:
        """The stored values that a root's kernel reads."""
        return self._inline[root].leaves

    def anchor_of(self, root: Value) -> Node | None:
        """The node whose loop a root's kernel is built around, if there is one."""
        anchor = self._inline[root].anchor
        return None if anchor is None else self._producers[anchor]

    def rows_at(self, root: Value) -> Rows | None:
        """The rows that a root's kernel computes, if it does."""
        anchor = self.anchor_of(root)
        return None if anchor is None else self._rows.get(anchor)

    def is_needed_whole(self, root: Value) -> bool:
        """Whether a root has to lie in a buffer, whatever else its readers could do."""
        return root in self._outputs or self.places.buffer_of(root) is not root

    def _decide(self, node: Node) -> None:
        """Which of its operands a node needs stored, and what its outputs take then."""
        for value in node.operands:
            if value not in self._stored and self._must_store(value, node):
                self._store_for(value, node)
        inline = self._inlined(node)
        while self._bindings(inline) > self._most_bindings and self._store(node, self._bindings):
            inline = self._inlined(node)
        while inline.size > SIZE_LIMIT and self._store(node, lambda operand: operand.size):
            inline = self._inlined(node)
        for output in node.outputs:
            if facts_of(node.op).loops:
                inline = dataclasses.replace(inline, anchor=output)
            self._inline[output] = inline
            if output in self._outputs or self._takes_no_kernel(node):
                self._stored.add(output)

    def _store_for(self, value: Value, reader: Node) -> None:
        """Store a value, or what it is a view of, if a product reads unpacked weights by it."""
        weights = None
        if reader.op == "matmul":
            weights = unpacked_weights(value, self._producers, self.is_stored)
        if weights is None:
            self._stored.add(value)
            return
        self._stored.add(weights.output)  # in the order of the codes: words are read once
        views = []
        while value is not weights.output:
            views.append(self._producers[value])
            value = next(views[-1].operands)
        for node in reversed(views):
            self._inline[node.output] = self._inlined(node)

    def _takes_no_kernel(self, node: Node) -> bool:
        """Whether a node's result can be stored by the kernels of its operands."""
        return node.op == "concat" and self.places.join(node, whole=True)

    def _inlined(self, node: Node) -> Inline:
        """What computing a node takes, from what computing those of its operands does."""
        facts = facts_of(node.op)
        computed = [self._inline[v] for v in node.operands if v not in self._stored]
        anchors = [operand.anchor for operand in computed if operand.anchor is not None]
        leaves = {v for v in node.operands if v in self._stored and not self._is_number(v)}
        leaves = leaves.union(*(operand.leaves for operand in computed))
        anchor = anchors[0] if anchors else None
        rows = self._rows.get(node)
        if rows is not None and rows.is_one(node.output):
            return Inline(anchor, cost=0, size=1, leaves=frozenset(leaves), rounds=0)
        reads = facts.reads(node)
        return Inline(
            anchor=anchor,
            cost=sum(operand.cost for operand in computed) + (not facts.free),
            size=1 + reads * sum(operand.size for operand in computed),
            leaves=frozenset(leaves),
            rounds=reads * sum(operand.rounds for operand in computed)
            + facts.rounds(node, self._features),
        )

    def _is_number(self, value: Value) -> bool:
        """Whether a value is written into the code instead of being read."""
        return value.size == 1 and value in self._graph.constants

    def _must_store(self, value: Value, reader: Node) -> bool:
        """Whether a value has to lie in a buffer for a node that reads it."""
        inline, facts = self._inline[value], facts_of(reader.op)
        if (facts.loops or facts.reduced is not None) and self._unpacks(value):
            return True
        rows = self._common_rows(value, reader)
        if rows is not None and rows.is_one(value):
            return False
        if rows is None and inline.anchor is not None:
            return not self._is_epilogue(value, reader)
        if reader in self._rows and inline.rounds:
            return True
        if facts.reduced is not None:
            return inline.cost > RECOMPUTE_LIMIT or inline.rounds * facts.reduced(reader) > LONG
        if facts.loops or _is_repeated(value, reader):
            # Read often: by each window or row. A view costs only index arithmetic.
            return inline.cost > 0 and not self._is_computed_by(value, reader)
        return self._uses[value] > 1 and inline.cost > RECOMPUTE_LIMIT

    def _is_packed(self, value: Value) -> bool:
        """Whether float16 lies in words, which loops are slow to read and cannot write."""
        return value.data_type == "float16" and not self._features.f16

    def _unpacks(self, value: Value) -> bool:
        """Whether a value is cast from what lies in words to what does not."""
        node = self._producers[value]
        return node.op == "cast" and self._is_packed(next(node.operands)) > self._is_packed(value)

    def _is_computed_by(self, value: Value, reader: Node) -> bool:
        """Whether a reader computes its input as it loads it, each element a few times."""
        if self._uses[value] > 1 or storage_of(value.data_type, self._features).per_word > 1:
            return False
        if unpacks(reader, value):
            return unpacked_weights(value, self._producers, self.is_stored) is not None
        if self._features.kind == "cpu":
            return False
        if pools_few(reader):
            return self._inline[value].cost <= MOST_POOLED
        if not is_pixelwise(reader, value):
            return False
        leaves = elementwise_leaves(value, self._producers, self.is_stored) or []
        whole = any(leaf.shape == value.shape for leaf in leaves)
        return whole and self._inline[value].cost <= MOST_LOADED

    def _common_rows(self, value: Value, reader: Node) -> Rows | None:
        """The rows with which both a value and its reader are computed."""
        rows = self._rows.get(reader)
        made = self._producers.get(value)
        return rows if made is not None and self._rows.get(made) is rows else None

    def _is_of_rows(self, value: Value) -> bool:
        """Whether a kernel computes a value row by row."""
        anchor = self._inline[value].anchor
        return anchor is not None and self._producers[anchor] in self._rows

    def _goes_on(self, reader: Node) -> bool:
        """Whether what a kernel computes row by row may flow into a reader."""
        rounds = any(self._inline[v].rounds for v in reader.operands if v not in self._stored)
        step = is_step(reader, self._features) or facts_of(reader.op).view is not None
        return step and not rounds and is_writable(reader.output, self._features)

    def _is_epilogue(self, value: Value, reader: Node) -> bool:
        """Whether a loop's result can flow into its reader: one reader, element by element."""
        facts = facts_of(reader.op)
        if facts.loops or len(reader.outputs) > 1 or not self._meets_again(value):
            return False
        if self._is_packed(reader.output) > self._is_packed(value):
            return False
        others = [v for v in reader.operands if v is not value and v not in self._stored]
        anchors = {self._inline[v].anchor for v in others} - {None, self._inline[value].anchor}
        if anchors:
            return False
        if self._is_of_rows(value) and not self._goes_on(reader):
            return False
        if facts.view is not None:
            return facts.view(reader, 0).identity and reader.output.size == value.size
        return facts.fuses and broadcast_map(value.shape, reader.output.shape).identity

    def _meets_again(self, value: Value) -> bool:
        """Whether all that is read of a value flows, element by element, into its last reader."""
        if self._uses[value] == 1:
            return True
        *others, last = self._graph.readers[value]
        if value in self._outputs or not _is_step(last, value):
            return False
        for node in others:
            while node is not last:
                if not _is_step(node, value) or self._uses[node.output] > 1:
                    return False
                if node.output in self._outputs:
                    return False
                (node,) = self._graph.readers[node.output]
        return True

    def _bindings(self, inline: Inline) -> int:
        return sum(binding_count(leaf, self._features) for leaf in inline.leaves)

    def _store(self, node: Node, measure: Callable[[Inline], int]) -> bool:
        """Store the operand that has most of something; False if none has any."""
        computed = [v for v in node.operands if v not in self._stored and measure(self._inline[v])]
        if not computed:
            return False
        self._stored.add(max(computed, key=lambda v: measure(self._inline[v])))
        return True


def binding_count(value: Value, features: Features) -> int:
    """Bindings that a stored value takes."""
    size = storage_of(value.data_type, features).buffer_bytes(value.size)
    return len(parts_of(size, features.binding_bytes))


def _is_step(node: Node, value: Value) -> bool:
    """Whether a node goes element by element with a value."""
    return (
        len(node.outputs) == 1
        and node.output.shape == value.shape
        and node.op in REGISTRY
        and REGISTRY[node.op].wgsl is not None
    )


def _is_repeated(value: Value, reader: Node) -> bool:
    """Whether one element of `value` goes into many of the reader's."""
    return max(output.size for output in reader.outputs) >= 2 * value.size
