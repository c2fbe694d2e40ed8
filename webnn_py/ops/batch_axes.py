"""Follows an open dimension through a graph to find the batch axis of each value.

Runs can be batched along the dimension if each value of the batched run is either the same for all
runs, or the concatenation of their values along one axis, its *batch axis*. Each operator has a
rule that returns the batch axis of its results, or raises `MixedError` because it mixes elements
along that axis. Operators without a rule count as mixing.
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
"""A batch axis; None for a value that is the same for all runs."""


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The axes along which a graph's runs are batched.

    Attributes:
        inputs: Batch axis of each input, in the graph's order. An input without one must be the
            same in all runs.
        outputs: Batch axis of each output, in the graph's order.
        bounds: Lowest and highest size of the open dimension.
    """

    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    bounds: tuple[int, int]


RANGES_OF_ALL = ("dynamic_quantize_linear", "lstm_packed")
"""Operators that may quantize by the range of all elements, which joined calls would share."""


class MixedError(Exception):
    """An operator mixes elements along the batch axis, so batching would change its results."""


class NodeAxes:
    """A node with the batch axes of its operands.

    Attributes:
        attrs: The node's options.
        output: The node's first output.
        size: The open dimension along which runs are batched.
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
        """Return the operand called `name`, which the operator requires."""
        value = self._names[name]
        assert value is not None
        return value

    def axis(self, name: str) -> Axis:
        """Return the batch axis of an operand; None if it is absent."""
        value = self._names.get(name)
        return None if value is None else self._axes[value]

    @property
    def broadcast_axis(self) -> int:
        """The output's batch axis, if all batched operands broadcast to the same one."""
        found = {
            axis - value.rank
            for value in self.node.operands
            if (axis := self._axes[value]) is not None
        }
        if len(found) != 1:
            raise MixedError
        return found.pop() + self.output.rank

    def only(self, *names: str) -> Axis:
        """Return the batch axis of the first of `names`; raise if another operand has one."""
        if any(self.axis(name) is not None for name in self._names if name not in names):
            raise MixedError
        return self.axis(names[0])


Rule = Callable[[NodeAxes], int]
"""Function that returns the batch axis of a node's outputs, or raises `MixedError`."""
RULES: dict[str, Rule] = {}
OPS_WITH_SIZE_OPTIONS = ("expand", "reshape", "slice")
"""Operators whose rules check options that depend on the open dimension."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def batch_axes(recipe: Graph, name: str) -> BatchAxes:
    """Return the batch axes of a graph's inputs and outputs for one of its open dimensions.

    Args:
        recipe: The graph as recorded.
        name: Name of the open dimension.

    Raises:
        ValidationError: An operator mixes elements along the dimension.
    """
    symbol = recipe.open_sizes[name]
    size = named(symbol.name, symbol.low, symbol.high, symbol.scope)
    axes: dict[Value, Axis] = dict.fromkeys(recipe.constants)
    for value in recipe.inputs:
        try:
            axes[value] = axis_of(value, size)
        except MixedError:
            raise ValidationError(
                f"input {shown(value.name)}: computes of {value} cannot be joined along"
                f" {name!r}, which is to be one of its dimensions, alone or times another size;"
                " leave out `batch` for this graph"
            ) from None
    for node in checkpoints(recipe.nodes):
        try:
            axes.update(zip(node.outputs, result_axes(node, axes, size), strict=True))
        except MixedError:
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


def result_axes(node: Node, axes: Mapping[Value, Axis], size: MLDimension) -> list[Axis]:
    """Return the batch axis of each output of a node.

    Args:
        node: The node.
        axes: The batch axes of its operands.
        size: The open dimension.

    Raises:
        MixedError: The operator mixes elements along the dimension.
    """
    sized = _depends([*node.attrs.values()], size)
    if not sized and all(axes[value] is None for value in node.operands):
        return [None] * len(node.outputs)
    if sized and node.op not in OPS_WITH_SIZE_OPTIONS:
        raise MixedError
    first = _rule_of(REGISTRY[node.op])(NodeAxes(node, axes, size))
    # A recurrent network's sequence output has one more leading dimension, the steps.
    results: list[Axis] = [
        first if v.rank == node.outputs[0].rank else first + 1 for v in node.outputs
    ]
    # Check each rule's answer: the batch axis must be the one whose size depends on the dimension.
    if any(axis_of(v, size) != axis for v, axis in zip(node.outputs, results, strict=True)):
        raise MixedError
    return results


def _rule_of(op: Operator) -> Rule:
    if op.elementwise:
        return _pointwise
    return RULES.get(op.name, _unknown) if op.reduce is None else _reduction


def _depends(options: Sequence[Any], size: MLDimension) -> bool:
    return bool(set(size.names) & symbols_of(options).keys())


def axis_of(value: Value, size: MLDimension) -> Axis:
    """Return the one axis whose size is a multiple of `size`.

    Raises:
        MixedError: Several depend on it, or one is no multiple.
    """
    found = [axis for axis, along in enumerate(value.shape) if _depends([along], size)]
    if not found:
        return None
    (axis, *others) = found
    each: Any = value.shape[axis] // size
    if others or _depends([each], size) or each * size != value.shape[axis]:
        raise MixedError
    return axis


def _unknown(node: NodeAxes) -> int:
    raise MixedError


def _require_unmixed(axis: Axis, *mixed: int) -> int:
    """Return `axis`; raise if it is None or one of the axes that the operator mixes."""
    if axis is None or axis in mixed:
        raise MixedError
    return axis


def _axis_after_reduction(axis: int, reduced: Sequence[int], keep: bool) -> int:
    """Return the axis's number in the result of a reduction over other axes."""
    return axis if keep else axis - sum(other < axis for other in reduced)


# Elementwise operators and reductions


def _pointwise(node: NodeAxes) -> int:
    return node.broadcast_axis


def _reduction(node: NodeAxes) -> int:
    attrs = node.attrs
    axis = _require_unmixed(node.axis("input"), *attrs["axes"])
    return _axis_after_reduction(axis, attrs["axes"], attrs["keep_dimensions"])


@rule("arg_max", "arg_min")
def _position(node: NodeAxes) -> int:
    attrs = node.attrs
    axis = _require_unmixed(node.axis("input"), attrs["axis"])
    return _axis_after_reduction(axis, [attrs["axis"]], attrs["keep_dimensions"])


# Operators along some axes of their input


@rule("arg_top_k", "batch_normalization", "cumulative_sum", "softmax", "split")
def _along(node: NodeAxes) -> int:
    return _require_unmixed(node.only("input"), node.attrs["axis"])


@rule("rms_normalization")
def _rms_normalization(node: NodeAxes) -> int:
    return _require_unmixed(node.only("x"), *node.attrs["axes"])


@rule("layer_normalization", "resample2d", "reverse")
def _along_several(node: NodeAxes) -> int:
    return _require_unmixed(node.only("input"), *node.attrs["axes"])


@rule("instance_normalization", "average_pool2d", "l2_pool2d", "max_pool2d")
def _windows(node: NodeAxes) -> int:
    layout: str = node.attrs["layout"]
    return _require_unmixed(node.only("input"), layout.index("h"), layout.index("w"))


@rule("conv2d", "conv2d_integer", "conv_transpose2d")
def _convolution(node: NodeAxes) -> int:
    return _require_unmixed(node.only("input"), 1, 2, 3)


@rule("triangular")
def _triangular(node: NodeAxes) -> int:
    rank = node.output.rank
    return _require_unmixed(node.axis("input"), rank - 2, rank - 1)


# Products


@rule("matmul")
def _matmul(node: NodeAxes) -> int:
    a, b = node.operand("a"), node.operand("b")
    rows, columns = node.axis("a"), node.axis("b")
    rank = node.output.rank
    if columns is None and rows == a.rank - 2:
        return rank - 2
    if rows is None and columns == b.rank - 1:
        return rank - 1
    return _require_unmixed(node.broadcast_axis, rank - 2, rank - 1)


@rule("gemm")
def _gemm(node: NodeAxes) -> int:
    rows, columns, c = node.axis("a"), node.axis("b"), node.axis("c")
    if columns is None and rows == int(node.attrs["a_transpose"]):
        place = 0
    elif rows is None and columns == int(not node.attrs["b_transpose"]):
        place = 1
    else:
        raise MixedError
    if c is not None and c - node.operand("c").rank != place - 2:
        raise MixedError
    return place


@rule("matmul_packed")
def _matmul_packed(node: NodeAxes) -> int:
    return _require_unmixed(node.only("x"), node.output.rank - 1)


@rule("matmul_integer")
def _matmul_integer(node: NodeAxes) -> int:
    for name in ("a_zero_point", "b_zero_point"):
        axis = node.axis(name)
        if axis is not None and node.operand(name).rank == 1:
            raise MixedError  # it lies along rows or columns
    return _matmul(node)


# Attention


@rule("scaled_dot_product_attention")
def _attention(node: NodeAxes) -> int:
    """Require the batch of queries, keys and values, and of what else has one."""
    needed = [node.axis(name) for name in ("query", "key", "value")]
    lengths, mask = node.axis("lengths"), node.axis("mask")
    if needed != [0, 0, 0] or lengths not in (None, 0):
        raise MixedError
    if mask is not None and mask - node.operand("mask").rank != -4:
        raise MixedError
    return 0


@rule("rotary_embedding")
def _rotary_embedding(node: NodeAxes) -> int:
    """Require the batch or, of `x` alone, the heads."""
    axis = _require_unmixed(node.axis("x"), 2, 3)
    for name, rank in (("cos", 3), ("sin", 3), ("positions", 2)):
        other = node.axis(name)
        if other is not None and (other, axis, node.operand(name).rank) != (0, 0, rank):
            raise MixedError
    return axis


# Movement


@rule("transpose")
def _transpose(node: NodeAxes) -> int:
    order: tuple[int, ...] = node.attrs["permutation"]
    return order.index(_require_unmixed(node.axis("input")))


@rule("concat")
def _concat(node: NodeAxes) -> int:
    return _require_unmixed(node.broadcast_axis, node.attrs["axis"])


@rule("pad")
def _pad(node: NodeAxes) -> int:
    axis = _require_unmixed(node.axis("input"))
    if node.attrs["beginning_padding"][axis] or node.attrs["ending_padding"][axis]:
        raise MixedError
    return axis


@rule("slice")
def _slice(node: NodeAxes) -> int:
    axis, attrs = _require_unmixed(node.axis("input")), node.attrs
    window = (attrs["starts"][axis], attrs["sizes"][axis], attrs["strides"][axis])
    whole = (0, node.operand("input").shape[axis], 1)
    if window != whole or _depends([*attrs["starts"]], node.size):
        raise MixedError
    return axis


@rule("tile")
def _tile(node: NodeAxes) -> int:
    axis = _require_unmixed(node.axis("input"))
    if node.attrs["repetitions"][axis] != 1:
        raise MixedError
    return axis


@rule("expand")
def _expand(node: NodeAxes) -> int:
    if node.axis("input") is not None:
        return node.broadcast_axis
    # The batch axis is new: the input repeats along it.
    return _require_unmixed(axis_of(node.output, node.size))


@rule("reshape")
def _reshape(node: NodeAxes) -> int:
    """Require equal element counts before the axis, so that rows of input and output agree."""
    before = _require_unmixed(node.axis("input"))
    after = _require_unmixed(axis_of(node.output, node.size))
    source = node.operand("input").shape
    if math.prod(source[:before]) != math.prod(node.output.shape[:after]):
        raise MixedError
    return after


# Indices


@rule("gather")
def _gather(node: NodeAxes) -> int:
    along, indices = node.attrs["axis"], node.operand("indices")
    place = node.axis("indices")
    if place is not None:
        node.only("indices")
        return int(along + place)
    axis = _require_unmixed(node.axis("input"), along)
    return axis if axis < along else axis + indices.rank - 1


@rule("gather_elements")
def _gather_elements(node: NodeAxes) -> int:
    if node.axis("input") is None:
        return _require_unmixed(node.axis("indices"))
    return _require_unmixed(node.broadcast_axis, node.attrs["axis"])


@rule("gather_nd")
def _gather_nd(node: NodeAxes) -> int:
    *places, length = node.operand("indices").shape
    if node.axis("input") is None:
        return _require_unmixed(node.axis("indices"), len(places))
    axis = _require_unmixed(node.only("input"), *range(length))
    return axis - length + len(places)


@rule("scatter_elements")
def _scatter_elements(node: NodeAxes) -> int:
    _require_unmixed(node.axis("input"))
    return _require_unmixed(node.broadcast_axis, node.attrs["axis"])


@rule("scatter_rows")
def _scatter_rows(node: NodeAxes) -> int:
    axis = _require_unmixed(node.axis("cache"), node.attrs["axis"])
    if node.axis("rows") != axis or node.axis("starts") not in (None, axis):
        raise MixedError
    return axis


@rule("scatter_nd")
def _scatter_nd(node: NodeAxes) -> int:
    *places, length = node.operand("indices").shape
    axis = _require_unmixed(node.only("input", "updates"), *range(length))
    if node.axis("updates") != axis - length + len(places):
        raise MixedError
    return axis


# Quantisation and recurrent networks


@rule("quantize_linear", "dequantize_linear")
def _blocks(node: NodeAxes) -> int:
    axis = _require_unmixed(node.axis("input"))
    for name in ("scale", "zero_point"):
        if node.axis(name) != axis and node.operand(name).shape[axis] != 1:
            raise MixedError  # a block would span several runs
    return axis


@rule(*RANGES_OF_ALL)
def _range_of_all(node: NodeAxes) -> int:
    raise MixedError


@rule("gru", "lstm")
def _network(node: NodeAxes) -> int:
    return _states(node, 1, "initial_hidden_state", "initial_cell_state")


@rule("gru_cell", "lstm_cell")
def _cell(node: NodeAxes) -> int:
    return _states(node, 0, "hidden_state", "cell_state")


def _states(node: NodeAxes, axis: int, *states: str) -> int:
    node.only("input", *states)
    if any(node.axis(name) not in (None, axis) for name in ("input", *states)):
        raise MixedError
    return axis
