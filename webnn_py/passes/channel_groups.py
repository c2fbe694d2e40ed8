"""Normalizations of groups of channels, for the layout NHWC.

Importers write a group normalization as a reshape of an NCHW image to one row for each group,
reductions and elementwise operators of these rows, and a reshape back to the image.
"""

from __future__ import annotations

import math

from webnn_py.core.dimensions import is_open
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter

AXES = (1, 3)
"""Axes of a group's elements in [batch, pixels, groups, channels of a group]."""

STEPWISE = frozenset({"reduce_max", "reduce_mean", "reduce_min", "reduce_product", "reduce_sum"})
"""Reductions that may reduce equal parts first, and then their results."""

MAX_WHOLE_GROUP = 1 << 13
"""Elements of a group up to which one kernel normalizes it.

A group of channels is a short piece of each pixel. So parts of larger groups are reduced for each
channel, where adjacent invocations read adjacent elements.
"""

MIN_PART, MAX_PART = 8, 48
"""Pixels of a part; fewer than those that invocations share."""


class ChannelGroups:
    """Rewrites the rows of groups of channels as [batch, pixels, groups, channels of a group].

    Args:
        graph: The graph before rewriting.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._rows = {node: rows for node in graph.nodes if (rows := self._rows_behind(node))}
        self._inner = {value for rows in self._rows.values() for value in rows}
        self._moved: dict[Value, MLOperand] = {}
        self._in_parts: set[Value] = set()

    def starts_at(self, node: Node) -> bool:
        """Whether a node makes rows of an NCHW image."""
        return node in self._rows

    def start(self, rewriter: Rewriter, node: Node, image: MLOperand, is_interleaved: bool) -> None:
        """Move the rows that `node` makes.

        Args:
            rewriter: The rewriter.
            node: The reshape.
            image: Its image in NHWC.
            is_interleaved: Whether memory has the image in this order, too.
        """
        batch, height, width, channels = image.shape
        groups = node.output.shape[1]
        shape = (batch, height * width, groups, channels // groups)
        self._moved[node.output] = rewriter.reshape(image, shape)
        if is_interleaved:
            self._in_parts.update(self._rows[node])

    def move(self, rewriter: Rewriter, node: Node) -> MLOperand | None:
        """Compute a node of moved rows; return the NHWC image if it is the reshape to one."""
        if self._moved.keys().isdisjoint(node.operands):
            return None
        operands = {value: self._moved.get(value, rewriter.map[value]) for value in node.operands}
        if node.output not in self._inner:
            (rows,) = operands.values()
            batch, channels, height, width = node.output.shape
            return rewriter.reshape(rows, (batch, height, width, channels))
        if _reduces(node):
            (rows,) = operands.values()
            if node.op in STEPWISE and node.output in self._in_parts:
                rows = _reduced_in_parts(rewriter, node, rows)
            (made,) = rewriter.apply_again(node, None, input=rows, axes=AXES)
        else:
            (made,) = rewriter.apply_again(node, operands)
        self._moved[node.output] = made
        return None

    def _rows_behind(self, node: Node) -> list[Value] | None:
        """Return the values from the reshape `node` to those back to the shape of its image."""
        if node.op != "reshape" or not _makes_rows(node):
            return None
        image, rows = next(node.operands), [node.output]
        nodes: list[Node] = []
        for value in rows:  # grows meanwhile
            if value in self._graph.results:
                return None
            for reader in self._graph.readers.get(value, ()):
                if reader.op == "reshape" and reader.output.shape == image.shape:
                    if value.shape != node.output.shape:
                        return None
                elif not _keeps_rows(reader, node.output.rank):
                    return None
                elif reader.output not in rows:
                    rows.append(reader.output)
                    nodes.append(reader)
        known = set(rows)
        foreign = (v for one in nodes for v in one.operands if v not in known and v.size != 1)
        return rows if len(rows) > 1 and next(foreign, None) is None else None


def _reduced_in_parts(rewriter: Rewriter, node: Node, rows: MLOperand) -> MLOperand:
    """Reduce equal parts of a channel's pixels until few are left, or they have no divisor."""
    batch, pixels, groups, own = rows.shape
    while pixels * own > MAX_WHOLE_GROUP:
        sizes = (size for size in range(MAX_PART, MIN_PART - 1, -1) if pixels % size == 0)
        part = next(sizes, None)
        if part is None:
            break
        pixels //= part
        parts = rewriter.reshape(rows, (batch, pixels, part, groups * own))
        (made,) = rewriter.apply_again(node, None, input=parts, axes=(2,))
        rows = rewriter.reshape(made, (batch, pixels, groups, own))
    return rows


def _makes_rows(node: Node) -> bool:
    """Whether a reshape makes rows of neighboring channels: [batch, groups, 1, elements]."""
    image, rows = next(node.operands), node.output
    if image.rank != 4 or rows.rank not in (3, 4) or is_open(image.shape):
        return False
    batch, channels, *size = image.shape
    groups = rows.shape[1]
    if rows.shape[0] != batch or channels % groups:
        return False
    ones = (1,) * (rows.rank - 3)
    return rows.shape[2:] == (*ones, channels // groups * math.prod(size))


def _keeps_rows(node: Node, rank: int) -> bool:
    """Whether a node computes each row from rows, or from elements of it."""
    if len(node.outputs) != 1 or node.output.rank != rank:
        return False
    return REGISTRY[node.op].elementwise or node.op == "cast" or _reduces(node)


def _reduces(node: Node) -> bool:
    """Whether a node reduces rows to one element each, and keeps their rank."""
    if REGISTRY[node.op].reduce is None:
        return False
    rank = next(node.operands).rank
    return tuple(sorted(node.attrs["axes"])) == tuple(range(2, rank)) and node.output.rank == rank
