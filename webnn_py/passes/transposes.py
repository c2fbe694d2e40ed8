"""Pass that removes transposes in pairs, before and behind order-independent operators.

A region is a connected set of nodes that compute the same in any order of dimensions. If a region
computes in the order that its operands had before their transposes, these transposes and the
inverse ones behind it disappear. Other values that enter or leave the region need new transposes;
constants are transposed at build. A region changes its order if that leaves fewer transposes and no
more elements to transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from webnn_py.core.dimensions import least
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.copy_contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.simplify import simplify
from webnn_py.passes.target import Target

Order = tuple[int, ...]
MAX_SWEEPS = 8
"""Most passes over the graph."""
MAX_ORDERS = 4
"""Most orders tried for one region."""
KIND = "transpose"
"""Name of this computation in `constant_replay.KINDS`."""


def cancel_transposes(graph: Graph, target: Target) -> Graph:
    """Change the order of regions until none gains.

    Of two neighbouring regions one waits for the next sweep, because the other changes its gain.
    """
    for _ in range(MAX_SWEEPS):
        moves = _find_moves(graph)
        if not moves:
            break
        graph = simplify(_reorder(graph, moves, target), target)
    return graph


def inverse(order: Order) -> Order:
    """Return the inverse permutation of `order`."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _transpose_of(graph: Graph, value: Value) -> Node | None:
    """Return the transpose that produces a value, or None."""
    node = graph.producers.get(value)
    return node if node is not None and node.op == "transpose" else None


class Region:
    """Connected nodes of one rank that compute the same in any order of dimensions."""

    def __init__(self, graph: Graph, nodes: list[Node]) -> None:
        self.nodes = nodes
        self._graph = graph
        self._inside = set(nodes)
        made = [node.output for node in nodes]
        inner = set(made)
        read = dict.fromkeys(value for node in nodes for value in node.operands)
        self._entering = [
            v for v in read if v not in inner and v not in graph.constants and v.size != 1
        ]
        self._leaving = [value for value in made if self._stays(value)]

    def _readers(self, value: Value) -> tuple[Node, ...]:
        return self._graph.readers.get(value, ())

    def _stays(self, value: Value) -> bool:
        """Whether the value is a graph output or has a reader outside the region."""
        return value in self._graph.results or not self._inside.issuperset(self._readers(value))

    def transposes(self) -> Iterator[tuple[Node, Order]]:
        """Yield the transposes at the border, each with the region's order that removes it."""
        for value in self._entering:
            node = _transpose_of(self._graph, value)
            if node is not None:
                yield node, node.attrs["permutation"]
        for value in self._leaving:
            for node in self._readers(value):
                if node.op == "transpose":
                    yield node, inverse(node.attrs["permutation"])

    def best_order(self) -> Order | None:
        """Return the order of dimensions that gains most, or None if no order gains."""
        orders = list(dict.fromkeys(order for _, order in self.transposes()))[:MAX_ORDERS]
        gains = {order: self._gain(order) for order in orders}
        best = max(gains, key=lambda order: gains[order], default=None)
        if best is None or gains[best][0] <= 0 or gains[best][1] < 0:
            return None
        return best

    def _gain(self, order: Order) -> tuple[int, int]:
        """Return the number of transposes saved, and of elements no longer transposed."""
        saved = [*self._saved_before(order), *self._saved_behind(order)]
        return sum(1 if size > 0 else -1 for size in saved), sum(saved)

    def _saved_before(self, order: Order) -> Iterator[int]:
        for value in self._entering:
            node = _transpose_of(self._graph, value)
            if node is None:
                yield -_elements(value)
            elif node.attrs["permutation"] == order:
                if not self._stays(value):
                    yield _elements(value)
            elif self._stays(value):
                yield -_elements(value)

    def _saved_behind(self, order: Order) -> Iterator[int]:
        for value in self._leaving:
            outside = [node for node in self._readers(value) if node not in self._inside]
            for node in outside:
                if node.op == "transpose" and inverse(node.attrs["permutation"]) == order:
                    yield _elements(value)
            if value in self._graph.results or any(node.op != "transpose" for node in outside):
                yield -_elements(value)


def _elements(value: Value) -> int:
    """Return the number of elements, for open dimensions the least possible."""
    return math.prod(least(value.shape))


def _find_moves(graph: Graph) -> dict[Node, Order]:
    """Return the nodes to reorder, each with the permutation from its new order to its old one."""
    moves: dict[Node, Order] = {}
    if not any(node.op == "transpose" for node in graph.nodes):
        return moves
    claimed: set[Node] = set()
    for nodes in _regions(graph):
        region = Region(graph, nodes)
        border = {node for node, _ in region.transposes()}
        order = region.best_order() if border and claimed.isdisjoint(border) else None
        if order is not None:
            claimed |= border
            moves.update(dict.fromkeys(nodes, order))
    return moves


def _regions(graph: Graph) -> list[list[Node]]:
    """Return the connected sets of movable nodes of one rank, in the order of their first nodes."""
    root: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for node in graph.nodes:
        if not is_movable(graph, node):
            continue
        root[node] = node
        for value in node.operands:
            below = graph.producers.get(value)
            if below in root and value.rank == node.output.rank:
                root[find(node)] = find(below)
    regions: dict[Node, list[Node]] = {}
    for node in root:
        regions.setdefault(find(node), []).append(node)
    return list(regions.values())


def is_movable(graph: Graph, node: Node) -> bool:
    """Whether the node computes the same in any order of dimensions."""
    if not (REGISTRY[node.op].elementwise or node.op in OPTIONS):
        return False
    rank = node.output.rank
    return rank > 1 and all(
        value.rank == rank or value.size == 1 or value in graph.constants for value in node.operands
    )


def _reorder(graph: Graph, moves: Mapping[Node, Order], target: Target) -> Graph:
    """Reorder nodes, with new transposes on all sides; `simplify` removes most of these."""
    before: dict[tuple[Value, Order], MLOperand] = {}

    def operand_of(rewriter: Rewriter, value: Value, order: Order) -> MLOperand:
        if (value, order) not in before:
            before[value, order] = _untransposed(rewriter, rewriter.map[value], order, target)
        return before[value, order]

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        order = moves.get(node)
        if order is None:
            return None
        operands = {value: operand_of(rewriter, value, order) for value in node.operands}
        options = OPTIONS[node.op](node.given, inverse(order)) if node.op in OPTIONS else {}
        (made,) = rewriter.apply_again(node, operands, **options)
        before[node.output, order] = made
        return [rewriter.transpose(made, permutation=order)]

    return Rewriter(graph).run(rule)


def _untransposed(
    rewriter: Rewriter, operand: MLOperand, order: Order, target: Target
) -> MLOperand:
    if operand.size == 1:
        return operand
    array = rewriter.array_of(operand)
    back = inverse(order)
    if array is None:
        return rewriter.transpose(operand, permutation=back)
    what = KIND, repr(back)
    (made,) = target.derive(what, [array], lambda: (transposed(array, back),))
    return rewriter.add_constant(made, operand.data_type)


def transposed(array: Array, order: Order) -> Array:
    """Transpose an array; prepend dimensions of size 1 if `order` has more."""
    wide = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
    return contiguous(wide.transpose(order))


def _lists(*names: str) -> Callable[[Mapping[str, Any], Order], dict[str, Any]]:
    """Return a function that permutes options with one number for each dimension."""

    def permuted(options: Mapping[str, Any], back: Order) -> dict[str, Any]:
        present = [name for name in names if options[name] is not None]
        return {name: tuple(options[name][axis] for axis in back) for name in present}

    return permuted


def _axes(options: Mapping[str, Any], back: Order) -> dict[str, Any]:
    """Permute a list of axes; None, which means all axes, stays."""
    axes = options["axes"]
    return {} if axes is None else {"axes": tuple(map(back.index, axes))}


OPTIONS: dict[str, Callable[[Mapping[str, Any], Order], dict[str, Any]]] = {
    "concat": lambda options, back: {"axis": back.index(options["axis"])},
    "dequantize_linear": lambda options, back: {},
    "pad": _lists("beginning_padding", "ending_padding"),
    "quantize_linear": lambda options, back: {},
    "reverse": _axes,
    "slice": _lists("starts", "sizes", "strides"),
    "tile": _lists("repetitions"),
}
"""Movable operators that are not elementwise, with the function that permutes their options."""
