"""Row fusion: reductions in one kernel with the operators that read them, as in softmax.

A row is the elements that a reduction combines into one result. Reductions over the same axes and
elementwise operators form a row kernel if only their last value is read by others. A workgroup then
computes a row from beginning to end, and no reduction's result lies in a buffer.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from webnn_py.core.shape_tracing import is_traced
from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.compiler.fusing.op_traits import traits_of
from webnn_py.engines.webgpu.compiler.legalize.packed_products import PACKED_PRODUCT
from webnn_py.engines.webgpu.compiler.loop_bounds import MAX_LOOP_ELEMENTS
from webnn_py.engines.webgpu.compiler.lower.reduction import count_of
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes, storage_of
from webnn_py.ir import Graph, Node, Value

MIN_SHARED_ROW = {"gpu": 64, "cpu": 512}
"""Elements of a row from which a workgroup computes it, by kind of device; else an invocation."""

MAX_SHARED_ROWS = {"gpu": 1 << 20, "cpu": 2}
"""Rows up to which a workgroup computes each. Barriers take long on a processor."""

MAX_SHARED_LONG_ROWS = {"gpu": 1 << 20, "cpu": 1 << 12}
"""The same for rows longer than MAX_FUSED_ROW."""

MAX_FUSED_ROW = 1 << 13
"""Elements of a row up to which one kernel computes all of it.

Reductions of longer rows have kernels of their own, so that their other operators use the whole
device.
"""

SECTOR_WORDS = 8
"""32-bit elements that one memory access transfers at least."""

MIN_WORKGROUPS = 128
"""Workgroups that keep all processors of a GPU busy."""

MAX_ROW_NODES = 64
"""Operators behind a reduction that are considered for its row kernel."""

MAX_PROLOGUE_BYTES = 16 << 10
"""Bytes of a row that a product computes into shared memory before its loop."""

MIN_PROLOGUE_DEPTH = 256
"""Elements of such a row at least: products of shorter ones read few weights."""

MAX_PROLOGUE_COLUMNS = 6_000
"""Columns of the products that compute such a row. On an H100, 2,048 elements that three products
of 3,072 columns compute add 0.5 to 0.8 µs; to one of 8,192 they add 1.9 to 2.9. A kernel of
their own takes 2.7.
"""

MIN_PROLOGUE_INVOCATIONS = 256
"""Invocations of a workgroup from which it computes rows fast enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Nodes that one kernel computes row by row.

    Attributes:
        shape: Shape of all rows together.
        row: Shape of values with one element per row: the results of the reductions.
        nodes: In order; others read only the last one's output.
    """

    shape: tuple[int, ...]
    row: tuple[int, ...]
    nodes: tuple[Node, ...]

    def is_one(self, value: Value) -> bool:
        """Whether a value has one element per row."""
        return value.shape == self.row


def is_reduction(node: Node) -> bool:
    """Whether a node reduces axes."""
    return traits_of(node.op).reduced is not None


def is_step(node: Node, features: Features) -> bool:
    """Whether a node is elementwise, without loops."""
    traits = traits_of(node.op)
    return traits.fuses and not traits.iterations(node, features)


def threads_for(count: int, results: int, features: Features) -> int:
    """Return the invocations that share one row of `count` elements; 1 where sharing is slower."""
    count, results = sampled(count), sampled(results)
    most = MAX_SHARED_ROWS if count <= MAX_FUSED_ROW else MAX_SHARED_LONG_ROWS
    if count < MIN_SHARED_ROW[features.kind] or results > most[features.kind]:
        return 1
    limit = 1 << (features.invocations.bit_length() - 1)  # a power of two, to be halved
    return min(256 if count >= 256 else 64, limit)


def beside_for(threads: int, operand: Value, axis: int, results: int, features: Features) -> int:
    """Return the adjacent results that one workgroup computes.

    There are several where the elements of adjacent results are adjacent, too: one memory access
    reads them together.

    Args:
        threads: Invocations of the workgroup, by `threads_for`.
        operand: The reduced value.
        axis: The last reduced dimension.
        results: Number of results.
        features: The device.
    """
    if axis == operand.rank - 1 or features.kind == "cpu" or threads % 64:
        return 1
    most = min(sampled(results) // MIN_WORKGROUPS, sampled(operand.shape[-1]), SECTOR_WORDS)
    return 1 << max(0, int(most).bit_length() - 1)


def is_writable(value: Value, features: Features) -> bool:
    """Whether a kernel can write a value element by element, through one binding."""
    whole = buffer_bytes(value) <= features.binding_bytes
    return whole and storage_of(value.data_type, features).per_word == 1


def is_prologue(rows: Rows, graph: Graph, features: Features) -> bool:
    """Whether all readers of the last value of `rows` compute it themselves, before their loops.

    They are products of one row, whose workgroups read all of it in any case. Several rows would
    be computed one after another.
    """
    *others, depth = rows.shape
    value, size = rows.nodes[-1].output, math.prod(rows.shape)
    readers = graph.readers.get(value, ())
    if (
        not others
        or value in graph.results
        or not all(_multiplies(node, value) for node in readers)
    ):
        return False
    columns = sum(node.output.shape[-1] for node in readers)
    if is_traced(size * columns) or rows.row != (*others, 1) or depth % 4:
        return False
    is_small = size == depth and columns <= MAX_PROLOGUE_COLUMNS
    return is_small and depth >= MIN_PROLOGUE_DEPTH and _has_room(4 * size, features)


def _has_room(size: int, features: Features) -> bool:
    """Whether a workgroup has room for so many bytes beside those of a product."""
    has_memory = features.workgroup_bytes >= max(4 * size, 2 * MAX_PROLOGUE_BYTES)
    is_large = features.kind != "cpu" and features.invocations >= MIN_PROLOGUE_INVOCATIONS
    return is_large and has_memory and size <= MAX_PROLOGUE_BYTES


def _multiplies(node: Node, value: Value) -> bool:
    """Whether a node is a product of a value by a stored matrix."""
    if node.op == PACKED_PRODUCT:
        return node.inputs[0] is value and value not in node.inputs[1:]
    if node.op != "matmul":
        return False
    left, right = node.operands
    return left is value is not right and right.rank == 2


def rows_of(graph: Graph, features: Features) -> Mapping[Node, Rows]:
    """Return the nodes that row kernels compute, each with its rows."""
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
    """Whether a reduction can begin a row kernel."""
    if not is_reduction(node):
        return False
    operand = next(node.operands)
    kept = tuple(1 if a in node.attrs["axes"] else n for a, n in enumerate(operand.shape))
    count = count_of(node)
    if node.output.shape != kept or not 1 < count <= MAX_FUSED_ROW:
        return False
    # Where each invocation of a GPU reads a long row of its own, their reads are not coalesced.
    return threads_for(count, node.output.size, features) > 1 or (
        features.kind == "cpu" or sampled(count) < MIN_SHARED_ROW["gpu"]
    )


def _from(
    first: Node,
    graph: Graph,
    place: Mapping[Node, int],
    features: Features,
    others: Collection[Node],
) -> Rows | None:
    """Return the longest chain from a reduction to one value of its operand's shape, or None.

    Args:
        first: The reduction.
        graph: The graph.
        place: The number of each node in the graph's order.
        features: The device.
        others: Nodes of other row kernels.
    """
    shape, row = next(first.operands).shape, first.output.shape

    def belongs(node: Node) -> bool:
        if node in others or not is_writable(node.outputs[0], features):
            return False
        if is_reduction(node):
            return next(node.operands).shape == shape and node.output.shape == row
        return is_step(node, features) and node.output.shape in (shape, row)

    # Passes over a row, without the one that writes.
    most = MAX_LOOP_ELEMENTS // count_of(first) - 1
    nodes: list[Node] = []
    longest = 0
    unread: dict[Value, int] = {}  # reads that are still to come, by value
    for node in itertools.islice(_behind(first, graph, place), MAX_ROW_NODES):
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
    """Yield a node, then all nodes that depend on it, in the graph's order."""
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
