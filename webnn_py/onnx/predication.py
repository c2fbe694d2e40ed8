"""Predication of an imported graph: it computes all elements in place of those that a mask chooses.

Exporters write `y[mask] = f(x[mask])` as NonZero, GatherND and ScatterND. If `f` computes each
chosen element by itself, it can compute all elements, and the mask selects results. Then no size
depends on data, and an empty choice needs no tensors without elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.api.builder import MLGraphBuilder, recorded
from webnn_py.api.staged_graph import CountedSize
from webnn_py.core.dimensions import MLDimension, is_open, named
from webnn_py.core.open_dims import evaluated
from webnn_py.ir import Graph, Node, Value, without_dead_nodes
from webnn_py.onnx.data_sizes import DataSize
from webnn_py.ops.batch_axes import Axis, MixedError, axis_of, result_axes
from webnn_py.ops.operand import MLOperand
from webnn_py.ops.registry import REGISTRY
from webnn_py.passes.rewrite import Rewriter

CHOICE = ("mask", "chosen", "places", "everything")
"""Parts of a choice, which are outputs of the graph until it is rewritten."""


def with_data_sizes(
    builder: MLGraphBuilder, outputs: Mapping[str, MLOperand], sizes: Sequence[DataSize]
) -> tuple[Graph, list[CountedSize]]:
    """Record a graph; predicate what it computes of chosen elements, where that is possible.

    Args:
        builder: The builder.
        outputs: The operands of the outputs, by name.
        sizes: The sizes that contents of tensors decide.

    Returns:
        The graph, and the sizes that it still computes, as outputs of its own.
    """
    mark = ":"
    while any(mark in name for name in outputs):
        mark += ":"
    times = Counter(size.dimension for size in sizes)
    hidden = []
    for number, size in enumerate(sizes):
        # Of sizes that are equal in each valid run, the elements may be different ones.
        is_choice = size.choice is not None and times[size.dimension] == 1
        parts_of = ("count", *CHOICE) if is_choice else ("count",)
        hidden.append({f"{number}{mark}{part}": part for part in parts_of})
    parts = {
        name: size.count if part == "count" else getattr(size.choice, part)
        for size, names in zip(sizes, hidden, strict=True)
        for name, part in names.items()
    }
    graph = recorded(builder, {**outputs, **parts})
    left = []
    for size, names in zip(sizes, hidden, strict=True):
        count, *own = names
        made = _predicated(graph, size, names) if own else None
        if made is None:
            one = CountedSize(
                size.dimension, size.title, count, size.carrier, size.choose, size.highest
            )
            left.append(one)
        else:
            graph = made
            own.append(count)
        graph = graph.replace(outputs=[(n, value) for n, value in graph.outputs if n not in own])
    return without_dead_nodes(graph), left


def _predicated(graph: Graph, size: DataSize, hidden: Mapping[str, str]) -> Graph | None:
    """Return the graph with all elements in place of the chosen ones, or None if some mix.

    Args:
        graph: The graph.
        size: The number of chosen elements.
        hidden: By output, the part of the choice that it holds.
    """
    choice = {hidden[name]: value for name, value in graph.outputs if name in hidden}
    mask, chosen, everything = (choice[part] for part in ("mask", "chosen", "everything"))
    try:
        follow = _Chosen(graph, size.dimension, choice)
        for node in graph.nodes:
            follow.add(node)
    except MixedError:
        return None
    ends = [value for name, value in graph.outputs if name not in hidden]
    if any(follow.axes[value] is not None for value in ends):
        return None
    (total,) = everything.shape
    name = str(size.dimension)
    sizes: dict[str, Any] = {other: _dimension(graph, other) for other in graph.open_sizes}
    sizes[name] = total

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.outputs[0] is chosen:
            return [rewriter.map[everything]]
        if node in follow.exits:
            x, _, updates = (rewriter.map[value] for value in node.operands)
            shown = rewriter.map[mask]
            if x.rank > shown.rank:
                shown = rewriter.reshape(shown, [*shown.shape, *[1] * (x.rank - shown.rank)])
            return [rewriter.where(shown, rewriter.reshape(updates, list(x.shape)), x)]
        if follow.axes[node.outputs[0]] is None:
            return None
        options = {key: evaluated(node.given[key], sizes) for key in REGISTRY[node.op].sizes}
        return rewriter.apply_again(node, **options)

    rewritten = Rewriter(graph).run(rule)
    return rewritten.replace(inputs=[v for v in rewritten.inputs if v.name != size.carrier])


def _dimension(graph: Graph, name: str) -> MLDimension:
    symbol = graph.open_sizes[name]
    return named(symbol.name, symbol.low, symbol.high, symbol.scope)


class _Axes(dict[Value, Axis]):
    """The axis of the chosen elements of the values that have one."""

    def __missing__(self, value: Value) -> None:
        """Return None: the value is the same for all choices."""


class _Chosen:
    """Follows the chosen elements through a graph, to prove that each is computed by itself.

    Row numbers change if all elements are computed. They may only be the first coordinate of
    places to write to, which keeps each element's row its own.

    Attributes:
        axes: For each value, the axis of the chosen elements, or None.
        exits: Nodes that write results back to the places of the chosen elements.
    """

    def __init__(self, graph: Graph, size: MLDimension, choice: Mapping[str, Value]) -> None:
        self._graph = graph
        self._size = size
        self._choice = choice
        self.axes = _Axes()
        for value in graph.inputs:
            self._note(value, axis_of(value, size))
        self.exits: set[Node] = set()
        self._turned: set[Value] = set()  # coordinates of the chosen elements, [count, rank]
        self._numbers: set[Value] = set()  # numbers of rows, along the axis
        self._grids: set[Value] = set()  # coordinates that begin with the number of their row

    def add(self, node: Node) -> None:
        """Follow a node.

        Raises:
            MixedError: It mixes chosen elements.
        """
        if self.axes.keys().isdisjoint(node.operands) and not is_open(node.attrs.values()):
            return  # most nodes of a model
        output = node.outputs[0]
        axes: list[Axis]
        if output is self._choice["chosen"]:
            axes = [0]
        elif self._is_exit(node):
            self.exits.add(node)
            axes = [None]
        elif self._is_number(node):
            self._numbers.add(output)
            axes = [axis_of(output, self._size)]
        elif self._numbers.isdisjoint(node.operands) and self._grids.isdisjoint(node.operands):
            axes = result_axes(node, self.axes, self._size)
        else:
            axes = [self._with_numbers(node)]
        if node.is_assumed and axes != [None] and output is not self._choice["chosen"]:
            raise MixedError  # sizes that are only equal in some runs: other elements
        for value, axis in zip(node.outputs, axes, strict=True):
            self._note(value, axis)
        is_turned = node.op == "transpose" and node.attrs["permutation"] == (1, 0)
        if is_turned and node.inputs[0] is self._choice["places"]:
            self._turned.add(output)

    def _note(self, value: Value, axis: Axis) -> None:
        if axis is not None:
            self.axes[value] = axis

    def _is_exit(self, node: Node) -> bool:
        if node.op != "scatter_nd":
            return False
        x, indices, updates = node.operands
        shape = self._choice["mask"].shape
        return (
            indices in self._turned
            and self.axes[x] is None
            and x.shape[: len(shape)] == shape
            and updates.shape[0] == self._size
            and updates not in self._numbers | self._grids
        )

    def _is_number(self, node: Node) -> bool:
        """Whether a node's result is the number of its row, wherever it is."""
        output = node.outputs[0]
        if node.op == "cumulative_sum":
            attrs = node.attrs
            return (
                self._size == output.shape[attrs["axis"]]
                and attrs["exclusive"]
                and not attrs["reversed"]
                and self._is_filled(node.inputs[0], 1)
            )
        numbers = [value for value in node.operands if value in self._numbers]
        if len(numbers) != 1 or self._size not in output.shape:
            return False
        others = [value for value in node.operands if value not in self._numbers]
        neutral = {"add": 0, "mul": 1}.get(node.op)
        if neutral is not None:
            return self._is_filled(others[0], neutral)
        return node.op in ("cast", "expand", "identity", "reshape") and (
            result_axes(node, self.axes, self._size) == [axis_of(output, self._size)]
        )

    def _is_filled(self, value: Value | None, number: int) -> bool:
        """Whether a value is a constant of one number, perhaps expanded."""
        graph = self._graph
        node = graph.producers.get(value) if value is not None else None
        if node is not None and node.op == "expand":
            value = node.inputs[0]
        array = None if value is None else graph.constants.get(value)
        return array is not None and bool(np.all(array == number))

    def _with_numbers(self, node: Node) -> Axis:
        """Return the axis of the result of a node that reads numbers of rows."""
        output = node.outputs[0]
        first, *others = node.operands
        if node.op == "concat":
            is_last = node.attrs["axis"] == output.rank - 1
            plain = self._numbers.isdisjoint(others) and self._grids.isdisjoint(node.operands)
            if is_last and plain and first.shape[-1] == 1 and self.axes[first] == 0:
                self._grids.add(output)
                return 0
        if node.op == "scatter_nd":
            indices, updates = others
            rows = [self.axes[value] for value in (first, indices, updates)]
            if indices in self._grids and rows == [0, 0, 0] and updates not in self._numbers:
                return 0
        raise MixedError
