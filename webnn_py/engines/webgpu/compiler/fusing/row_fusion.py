"""Which reductions share a kernel with what reads them: softmax, normalizations and the like.

A row is what one result of a reduction is made of. Where reductions over the same axes and element
by element operators lead from rows to rows, and nothing leaves on the way but the last value, a
workgroup computes a row from beginning to end: results of reductions never see a buffer.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.compiler.fusing.op_traits import facts_of
from webnn_py.engines.webgpu.compiler.loop_bounds import LONG
from webnn_py.engines.webgpu.compiler.lower.reduction import count_of
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes, storage_of
from webnn_py.ir import Graph, Node, Value

FEWEST_SHARED = {"gpu": 64, "cpu": 512}
"""Elements in a row from which a workgroup for each pays, by kind of device; below, an invocation
computes a row."""

MOST_SHARED = {"gpu": 1 << 20, "cpu": 2}
"""Rows up to which a workgroup for each pays. A processor takes long to have invocations wait for
each other."""

MOST_LONG = {"gpu": 1 << 20, "cpu": 1 << 12}
"""As MOST_SHARED, of rows that are longer than LONGEST."""

LONGEST = 1 << 13
"""Elements in a row up to which one kernel computes all of it; the reductions of longer ones have
kernels of their own, and their other operators all of the device."""

SECTOR = 8
"""Elements of 32 bits that memory gives at least."""

FEWEST_GROUPS = 128
"""Workgroups that there are to be all the same, so that all processors have some."""

MOST_NODES = 64
"""Operators that are looked at on the way from a reduction."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Nodes that one kernel computes row by row.

    Attributes:
        shape: Of the rows together.
        row: Of what there is once for each row: the results of the reductions.
        nodes: In order; the last one's output is the only value that others read.
    """

    shape: tuple[int, ...]
    row: tuple[int, ...]
    nodes: tuple[Node, ...]

    def is_one(self, value: Value) -> bool:
        """Whether there is one element of a value for each row."""
        return value.shape == self.row


def is_reduction(node: Node) -> bool:
    """Whether a node reduces axes."""
    return facts_of(node.op).reduced is not None


def is_step(node: Node, features: Features) -> bool:
    """Whether a node goes element by element, without loops."""
    facts = facts_of(node.op)
    return facts.fuses and not facts.rounds(node, features)


def threads_for(count: int, results: int, features: Features) -> int:
    """Invocations that go over one row of `count` together; 1 where sharing does not pay."""
    count, results = sampled(count), sampled(results)
    most = MOST_SHARED if count <= LONGEST else MOST_LONG
    if count < FEWEST_SHARED[features.kind] or results > most[features.kind]:
        return 1
    limit = 1 << (features.invocations.bit_length() - 1)  # halves of it meet
    return min(256 if count >= 256 else 64, limit)


def beside_for(threads: int, operand: Value, axis: int, results: int, features: Features) -> int:
    """Results that a workgroup of so many invocations makes: those that lie side by side.

    It is more than one where their elements lie side by side, too, and are read in one go.

    Args:
        threads: As `threads_for` gives them.
        operand: What is reduced.
        axis: The last dimension along which it is.
        results: How many there are.
        features: The device.
    """
    if axis == operand.rank - 1 or features.kind == "cpu" or threads % 64:
        return 1
    most = min(sampled(results) // FEWEST_GROUPS, sampled(operand.shape[-1]), SECTOR)
    return 1 << max(0, int(most).bit_length() - 1)


def is_writable(value: Value, features: Features) -> bool:
    """Whether a kernel can write rows of a value element by element, into one binding."""
    whole = buffer_bytes(value) <= features.binding_bytes
    return whole and storage_of(value.data_type, features).per_word == 1


def rows_of(graph: Graph, features: Features) -> Mapping[Node, Rows]:
    """The nodes that are computed row by row, with all that belongs to theirs."""
    found: dict[Node, Rows] = {}
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node in found or not _begins(node, features):
            continue
        rows = _from(node, graph, place, features, found)
        if rows is not None:
            found |= dict.fromkeys(rows.nodes, rows)
    return found


def _begins(node: Node, features: Features) -> bool:
    """Whether a kernel can compute the rows of a reduction."""
    if not is_reduction(node):
        return False
    operand = next(node.operands)
    kept = tuple(1 if a in node.attrs["axes"] else n for a, n in enumerate(operand.shape))
    count = count_of(node)
    if node.output.shape != kept or not 1 < count <= LONGEST:
        return False
    # Invocations of a GPU that read long rows each have all their reads apart.
    return threads_for(count, node.output.size, features) > 1 or (
        features.kind == "cpu" or sampled(count) < FEWEST_SHARED["gpu"]
    )


def _from(
    first: Node,
    graph: Graph,
    place: Mapping[Node, int],
    features: Features,
    others: Collection[Node],
) -> Rows | None:
    """The longest way from a reduction to one value of its operand's shape, if there is one.

    Args:
        first: The reduction.
        graph: The graph.
        place: The place of each of its nodes.
        features: The device.
        others: The nodes that are on other ways.
    """
    shape, row = next(first.operands).shape, first.output.shape

    def belongs(node: Node) -> bool:
        if node in others or not is_writable(node.outputs[0], features):
            return False
        if is_reduction(node):
            return next(node.operands).shape == shape and node.output.shape == row
        return is_step(node, features) and node.output.shape in (shape, row)

    most = LONG // count_of(first) - 1  # times that an invocation goes over a row, but for writing
    nodes: list[Node] = []
    longest = 0
    unread: dict[Value, int] = {}  # how often what is made so far is read further on
    for node in itertools.islice(_behind(first, graph, place), MOST_NODES):
        nodes.append(node)
        if not belongs(node) or sum(map(is_reduction, nodes)) > most:
            break
        for value in node.operands:
            if value in unread:
                unread[value] -= 1
        unread[node.output] = graph.uses.get(node.output, 0)
        leaving = [value for value, reads in unread.items() if reads]
        if leaving == [node.output] and node.output.shape == shape:
            longest = len(nodes)
        if node.output in graph.results:
            break
    return Rows(shape, row, tuple(nodes[:longest])) if longest else None


def _behind(first: Node, graph: Graph, place: Mapping[Node, int]) -> Iterator[Node]:
    """A node, then all that follow from it, in their order."""
    waiting = [place[first]]
    seen = {first}
    while waiting:
        node = graph.nodes[heapq.heappop(waiting)]
        yield node
        for value in node.outputs:
            for reader in graph.readers.get(value, ()):
                if reader not in seen:
                    seen.add(reader)
                    heapq.heappush(waiting, place[reader])
