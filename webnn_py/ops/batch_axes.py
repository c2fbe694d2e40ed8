"""How a dimension passes through a graph: whether runs can be joined along it, and where.

Runs are joined where each value of the joined run is what the values of the runs are, one behind
the other along one axis, its *batch axis*; or the same for all of them. Each operator has a rule
that says so of its results, or that it mixes what lies along the axis. The rules ask for no more
than is sure: what has none mixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webnn_py.core.dimensions import MLDimension, named, symbols_of
from webnn_py.core.errors import ValidationError
from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.messages import shown
from webnn_py.ir import Descriptor, Graph, Node, Value, titled
from webnn_py.ops.registry import REGISTRY, Operator

Axis = int | None
"""A batch axis; None for what has none."""


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """Where runs of a graph are joined.

    Attributes:
        inputs: The batch axis of each input, in the graph's order; those that have none must be the
            same in all runs.
        outputs: The same.
        bounds: The lowest and the highest size.
    """

    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    bounds: tuple[int, int]


class Mixed(Exception):
    """An operator's results for joined runs are others than for each alone."""


class Applied:
    """A node, and the batch axes of its operands.

    Attributes:
        attrs: The node's options, as they count.
        output: Its first result.
        size: The open size that runs are joined along.
    """

    def __init__(self, node: Node, axes: Mapping[Value, Axis], size: MLDimension) -> None:
        self.node = node
        self.attrs = node.attrs
        self.output = node.outputs[0]
        self.size = size
        self._axes = axes
        op = REGISTRY[node.op]
        self._names = dict(zip(op.limits, node.inputs, strict=True)) if not op.variadic else {}

    def operand(self, name: str) -> Value:
        """An operand that is given."""
        value = self._names[name]
        assert value is not None
        return value

    def axis(self, name: str) -> Axis:
        """The batch axis of an operand."""
        value = self._names.get(name)
        return None if value is None else self._axes[value]

    @property
    def aligned(self) -> int:
        """The result's, where operands broadcast and those that have one have the same."""
        found = {
            axis - value.rank
            for value in self.node.operands
            if (axis := self._axes[value]) is not None
        }
        if len(found) != 1:
            raise Mixed
        return found.pop() + self.output.rank

    def only(self, *names: str) -> Axis:
        """The batch axis of the first of these operands; no others have one."""
        if any(self.axis(name) is not None for name in self._names if name not in names):
            raise Mixed
        return self.axis(names[0])


Rule = Callable[[Applied], int]
"""The batch axis of a node's results, some of whose operands have one or whose options its size."""
RULES: dict[str, Rule] = {}
TAKE_ITS_SIZE = ("expand", "reshape", "slice")
"""Operators whose options may hold the size: their rules look at it."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter the rule of some operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def batch_axes(recipe: Graph, name: str) -> BatchAxes:
    """Where runs of a graph are joined along one of its open sizes.

    Args:
        recipe: The graph as it was recorded.
        name: Of the size.

    Raises:
        ValidationError: An operator mixes what lies along the dimension.
    """
    symbol = recipe.open_sizes[name]
    size = named(symbol.name, symbol.low, symbol.high, symbol.scope)
    axes: dict[Value, Axis] = dict.fromkeys(recipe.constants)
    for value in recipe.inputs:
        try:
            axes[value] = _axis_of(value, size)
        except Mixed:
            raise ValidationError(
                f"input {shown(value.name)}: computes of {value} cannot be joined along"
                f" {name!r}, which is to be one of its dimensions, alone or times another size;"
                " leave out `batch` for this graph"
            ) from None
    for node in checkpoints(recipe.nodes):
        try:
            axes.update(zip(node.outputs, _results(node, axes, size), strict=True))
        except Mixed:
            raise ValidationError(
                f"{titled(node.op, node.label)}: computes cannot be joined along {name!r}, as the"
                f" operator mixes what lies along it: {_described(node)};"
                " leave out `batch` for this graph"
            ) from None
    inputs = tuple(axes[value] for value in recipe.inputs)
    outputs = tuple(axes[value] for _, value in recipe.outputs)
    return BatchAxes(inputs, outputs, (symbol.low, symbol.high))


def _described(node: Node) -> str:
    operands = ", ".join(Descriptor.__str__(value) for value in node.operands)
    results = ", ".join(Descriptor.__str__(value) for value in node.outputs[:4])
    return f"{operands} -> {results}"


def _results(node: Node, axes: Mapping[Value, Axis], size: MLDimension) -> list[Axis]:
    sized = _depends([*node.attrs.values()], size)
    if not sized and all(axes[value] is None for value in node.operands):
        return [None] * len(node.outputs)
    if sized and node.op not in TAKE_ITS_SIZE:
        raise Mixed
    first = _rule_of(REGISTRY[node.op])(Applied(node, axes, size))
    # The sequence of a recurrent network's states has the steps before the dimensions of a state.
    results: list[Axis] = [
        first if v.rank == node.outputs[0].rank else first + 1 for v in node.outputs
    ]
    # Whatever a rule says: a batch axis shows in the shape, and there is no other one.
    if any(_axis_of(v, size) != axis for v, axis in zip(node.outputs, results, strict=True)):
        raise Mixed
    return results


def _rule_of(op: Operator) -> Rule:
    if op.elementwise:
        return _pointwise
    return RULES.get(op.name, _unknown) if op.reduce is None else _reduction


def _depends(options: Sequence[Any], size: MLDimension) -> bool:
    return bool(set(size.names) & symbols_of(options).keys())


def _axis_of(value: Value, size: MLDimension) -> Axis:
    """The axis whose size is a multiple of the batch's, while no other one depends on it."""
    found = [axis for axis, along in enumerate(value.shape) if _depends([along], size)]
    if not found:
        return None
    (axis, *others) = found
    each: Any = value.shape[axis] // size
    if others or _depends([each], size) or each * size != value.shape[axis]:
        raise Mixed
    return axis


def _unknown(applied: Applied) -> int:
    raise Mixed


def _kept(axis: Axis, *mixed: int) -> int:
    """The axis, if the operator does not mix it."""
    if axis is None or axis in mixed:
        raise Mixed
    return axis


def _removed(axis: int, reduced: Sequence[int], keep: bool) -> int:
    """Where the axis is when others are reduced."""
    return axis if keep else axis - sum(other < axis for other in reduced)


# Elementwise operators and reductions


def _pointwise(applied: Applied) -> int:
    return applied.aligned


def _reduction(applied: Applied) -> int:
    attrs = applied.attrs
    axis = _kept(applied.axis("input"), *attrs["axes"])
    return _removed(axis, attrs["axes"], attrs["keep_dimensions"])


@rule("arg_max", "arg_min")
def _position(applied: Applied) -> int:
    attrs = applied.attrs
    axis = _kept(applied.axis("input"), attrs["axis"])
    return _removed(axis, [attrs["axis"]], attrs["keep_dimensions"])


# Operators along some axes of their input


@rule("arg_top_k", "batch_normalization", "cumulative_sum", "softmax", "split")
def _along(applied: Applied) -> int:
    return _kept(applied.only("input"), applied.attrs["axis"])


@rule("layer_normalization", "resample2d", "reverse")
def _along_several(applied: Applied) -> int:
    return _kept(applied.only("input"), *applied.attrs["axes"])


@rule("instance_normalization", "average_pool2d", "l2_pool2d", "max_pool2d")
def _windows(applied: Applied) -> int:
    layout: str = applied.attrs["layout"]
    return _kept(applied.only("input"), layout.index("h"), layout.index("w"))


@rule("conv2d", "conv_transpose2d")
def _convolution(applied: Applied) -> int:
    return _kept(applied.only("input"), 1, 2, 3)


@rule("triangular")
def _triangular(applied: Applied) -> int:
    rank = applied.output.rank
    return _kept(applied.axis("input"), rank - 2, rank - 1)


# Products


@rule("matmul")
def _matmul(applied: Applied) -> int:
    a, b = applied.operand("a"), applied.operand("b")
    rows, columns = applied.axis("a"), applied.axis("b")
    rank = applied.output.rank
    if columns is None and rows == a.rank - 2:
        return rank - 2
    if rows is None and columns == b.rank - 1:
        return rank - 1
    return _kept(applied.aligned, rank - 2, rank - 1)


@rule("gemm")
def _gemm(applied: Applied) -> int:
    rows, columns, c = applied.axis("a"), applied.axis("b"), applied.axis("c")
    if columns is None and rows == int(applied.attrs["a_transpose"]):
        place = 0
    elif rows is None and columns == int(not applied.attrs["b_transpose"]):
        place = 1
    else:
        raise Mixed
    if c is not None and c - applied.operand("c").rank != place - 2:
        raise Mixed
    return place


# Movement


@rule("transpose")
def _transpose(applied: Applied) -> int:
    order: tuple[int, ...] = applied.attrs["permutation"]
    return order.index(_kept(applied.axis("input")))


@rule("concat")
def _concat(applied: Applied) -> int:
    return _kept(applied.aligned, applied.attrs["axis"])


@rule("pad")
def _pad(applied: Applied) -> int:
    axis = _kept(applied.axis("input"))
    if applied.attrs["beginning_padding"][axis] or applied.attrs["ending_padding"][axis]:
        raise Mixed
    return axis


@rule("slice")
def _slice(applied: Applied) -> int:
    axis, attrs = _kept(applied.axis("input")), applied.attrs
    window = (attrs["starts"][axis], attrs["sizes"][axis], attrs["strides"][axis])
    whole = (0, applied.operand("input").shape[axis], 1)
    if window != whole or _depends([*attrs["starts"]], applied.size):
        raise Mixed
    return axis


@rule("tile")
def _tile(applied: Applied) -> int:
    axis = _kept(applied.axis("input"))
    if applied.attrs["repetitions"][axis] != 1:
        raise Mixed
    return axis


@rule("expand")
def _expand(applied: Applied) -> int:
    if applied.axis("input") is not None:
        return applied.aligned
    # What is repeated along a new dimension is the same at every place.
    return _kept(_axis_of(applied.output, applied.size))


@rule("reshape")
def _reshape(applied: Applied) -> int:
    """What lies before the axis stays before it, so that rows of the one are rows of the other."""
    before = _kept(applied.axis("input"))
    after = _kept(_axis_of(applied.output, applied.size))
    source = applied.operand("input").shape
    if math.prod(source[:before]) != math.prod(applied.output.shape[:after]):
        raise Mixed
    return after


# Indices


@rule("gather")
def _gather(applied: Applied) -> int:
    along, indices = applied.attrs["axis"], applied.operand("indices")
    place = applied.axis("indices")
    if place is not None:
        applied.only("indices")
        return int(along + place)
    axis = _kept(applied.axis("input"), along)
    return axis if axis < along else axis + indices.rank - 1


@rule("gather_elements")
def _gather_elements(applied: Applied) -> int:
    if applied.axis("input") is None:
        return _kept(applied.axis("indices"))
    return _kept(applied.aligned, applied.attrs["axis"])


@rule("gather_nd")
def _gather_nd(applied: Applied) -> int:
    *places, length = applied.operand("indices").shape
    if applied.axis("input") is None:
        return _kept(applied.axis("indices"), len(places))
    axis = _kept(applied.only("input"), *range(length))
    return axis - length + len(places)


@rule("scatter_elements")
def _scatter_elements(applied: Applied) -> int:
    _kept(applied.axis("input"))
    return _kept(applied.aligned, applied.attrs["axis"])


@rule("scatter_nd")
def _scatter_nd(applied: Applied) -> int:
    *places, length = applied.operand("indices").shape
    axis = _kept(applied.only("input", "updates"), *range(length))
    if applied.axis("updates") != axis - length + len(places):
        raise Mixed
    return axis


# Quantisation and recurrent networks


@rule("quantize_linear", "dequantize_linear")
def _blocks(applied: Applied) -> int:
    axis = _kept(applied.axis("input"))
    for name in ("scale", "zero_point"):
        if applied.axis(name) != axis and applied.operand(name).shape[axis] != 1:
            raise Mixed  # a block is made of what several runs have
    return axis


@rule("gru", "lstm")
def _network(applied: Applied) -> int:
    return _states(applied, 1, "initial_hidden_state", "initial_cell_state")


@rule("gru_cell", "lstm_cell")
def _cell(applied: Applied) -> int:
    return _states(applied, 0, "hidden_state", "cell_state")


def _states(applied: Applied, axis: int, *states: str) -> int:
    applied.only("input", *states)
    if any(applied.axis(name) not in (None, axis) for name in ("input", *states)):
        raise Mixed
    return axis
