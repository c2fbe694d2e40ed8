"""Split long loops in two: partial results of equal parts, then their combination.

No invocation may loop over more than `MAX_LOOP_ELEMENTS` elements (see `loop_bounds`). Parallel
parts are faster on any device. The rules here emit views, smaller nodes of the same kind, and a
node that combines their results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webnn_py.core.shape_tracing import is_traced
from webnn_py.engines.webgpu.compiler.loop_bounds import MAX_LOOP_ELEMENTS
from webnn_py.ir import Node
from webnn_py.ops.convolution import dims
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter, in_layout

MIN_PART_ELEMENTS = 4096
"""Elements of a part; smaller parts cost more than they gain."""

MAX_PARTIAL_ELEMENTS = 1 << 26
"""Elements of all partial results of a product; beyond, its loop is unrolled instead."""

MAX_POOLED_ELEMENTS = 64
"""Elements of a pooling plane up to which each may be a separate reduction."""

_PARTS = {
    "reduce_l1": ("reduce_l1", "reduce_sum"),
    "reduce_l2": ("reduce_sum_square", "reduce_sum"),
    "reduce_log_sum": ("reduce_sum", "reduce_sum"),
    "reduce_max": ("reduce_max", "reduce_max"),
    "reduce_mean": ("reduce_sum", "reduce_sum"),
    "reduce_min": ("reduce_min", "reduce_min"),
    "reduce_product": ("reduce_product", "reduce_product"),
    "reduce_sum": ("reduce_sum", "reduce_sum"),
    "reduce_sum_square": ("reduce_sum_square", "reduce_sum"),
}
"""For each reduction, the one of a part and the one that combines the parts."""

_POOLED = {
    "average_pool2d": "reduce_mean",
    "l2_pool2d": "reduce_l2",
    "max_pool2d": "reduce_max",
}
"""The reduction that a pooling operator applies to one window."""


def split_long_loop(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """Return the node in shorter loops; None if its loop is short enough."""
    rule = _RULES.get(node.op)
    result = None if rule is None else rule(rewriter, node)
    return None if result is None else [result]


def part_lengths(count: int, most: int = MAX_LOOP_ELEMENTS, multiple: int = 1) -> tuple[int, int]:
    """Return the number and length of parts with the least padding in the last one.

    Args:
        count: Elements, more than `most`.
        most: Maximum length of a part.
        multiple: Preferred divisor of the length.
    """
    if is_traced(count):  # each count has parts of its own
        count = count.exactly()
    longest = min(most, max(MIN_PART_ELEMENTS, 1 << (count.bit_length() // 2)))
    step = multiple if longest >= multiple else 1
    lengths = range(longest // step * step, max(1, longest // 2) - 1, -step)
    length = min(lengths, key=lambda length: -count % length)
    return -(-count // length), length


def pad_end(rewriter: Rewriter, x: MLOperand, axis: int, size: int, value: Any = 0) -> MLOperand:
    """Append `value` along `axis` until there are `size` elements."""
    if x.shape[axis] == size:
        return x
    ends = [size - x.shape[axis] if d == axis else 0 for d in range(x.rank)]
    return rewriter.pad(x, [0] * x.rank, ends, value=value)


def flatten_axes(rewriter: Rewriter, x: MLOperand, axes: Sequence[int]) -> MLOperand:
    """Return the operand as [other axes, `axes` in order]."""
    kept = [axis for axis in range(x.rank) if axis not in axes]
    permuted = rewriter.transpose(x, permutation=[*kept, *axes])
    size = math.prod(x.shape[axis] for axis in axes)
    return rewriter.reshape(permuted, [math.prod(x.shape) // size, size])


def _neutral(op: str, data_type: str) -> float | int:
    """Return the neutral element of a reduction."""
    rule = REGISTRY[op].reduce
    assert rule is not None
    if rule.init not in ("min", "max"):
        return int(rule.init)
    if data_type.startswith("float"):
        return -math.inf if rule.init == "min" else math.inf
    info = np.iinfo(data_type)
    return int(info.min if rule.init == "min" else info.max)


def _reduction(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Reduce parts, then their results."""
    axes = sorted(node.attrs["axes"])
    x = rewriter.map[next(node.operands)]
    count = math.prod(x.shape[axis] for axis in axes)
    if count <= MAX_LOOP_ELEMENTS:
        return None
    lines = flatten_axes(rewriter, wide(rewriter, x) if x.data_type == "float16" else x, axes)
    part, whole = _PARTS[node.op]
    while lines.shape[1] > MAX_LOOP_ELEMENTS:
        parts, length = part_lengths(lines.shape[1])
        lines = pad_end(rewriter, lines, 1, parts * length, _neutral(part, lines.data_type))
        lines = rewriter.reshape(lines, [lines.shape[0], parts, length])
        lines = getattr(rewriter, part)(lines, axes=[2], label=node.label)
        part = whole
    total: MLOperand = getattr(rewriter, whole)(lines, axes=[1], label=node.label)
    if node.op == "reduce_mean":
        total = rewriter.div(total, rewriter.constant_of(count, total))
    elif node.op == "reduce_l2":
        total = rewriter.sqrt(total)
    elif node.op == "reduce_log_sum":
        total = rewriter.log(total)
    return rewriter.reshape(narrow(rewriter, total, x.data_type), node.output.shape)


def _position(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Return the best of the parts' best elements; of equals, the first wins."""
    axis = node.attrs["axis"]
    x = rewriter.map[next(node.operands)]
    count, kind = x.shape[axis], node.output.data_type
    if count <= MAX_LOOP_ELEMENTS:
        return None
    lines = flatten_axes(rewriter, x, [axis])
    parts, length = part_lengths(count)
    worst = _neutral("reduce_max" if node.op == "arg_max" else "reduce_min", x.data_type)
    lines = pad_end(rewriter, lines, 1, parts * length, worst)
    lines = rewriter.reshape(lines, [lines.shape[0], parts, length])
    best = functools.partial(getattr(rewriter, node.op), output_data_type=kind, label=node.label)
    inside = best(lines, 2, keep_dimensions=True)
    values = rewriter.gather_elements(lines, inside, axis=2)
    flat = [lines.shape[0], parts]
    part = best(rewriter.reshape(values, flat), 1, keep_dimensions=True)
    rest = rewriter.gather_elements(rewriter.reshape(inside, flat), part, axis=1)
    first = rewriter.mul(part, rewriter.constant_of(length, part))
    return rewriter.reshape(rewriter.add(first, rest), node.output.shape)


def _running_sum(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Return the running sums within parts, plus the sum of all parts before."""
    axis = node.attrs["axis"]
    operand = rewriter.map[next(node.operands)]
    count = operand.shape[axis]
    if count <= MAX_LOOP_ELEMENTS:
        return None
    x = wide(rewriter, operand) if operand.data_type == "float16" else operand
    lines = flatten_axes(rewriter, x, [axis])
    parts, length = part_lengths(count)
    lines = pad_end(rewriter, lines, 1, parts * length)
    lines = rewriter.reshape(lines, [lines.shape[0], parts, length])
    options = {"reversed": node.attrs["reversed"], "label": node.label}
    inside = rewriter.cumulative_sum(lines, 2, exclusive=node.attrs["exclusive"], **options)
    sums = rewriter.reduce_sum(lines, axes=[2], keep_dimensions=True, label=node.label)
    before = rewriter.cumulative_sum(sums, 1, exclusive=True, **options)
    total = rewriter.reshape(rewriter.add(inside, before), [lines.shape[0], parts * length])
    total = rewriter.slice(total, [0, 0], [lines.shape[0], count])
    kept = [d for d in range(x.rank) if d != axis]
    total = rewriter.reshape(total, [*(x.shape[d] for d in kept), count])
    order = [*kept, axis]
    total = rewriter.transpose(total, permutation=[order.index(d) for d in range(x.rank)])
    return narrow(rewriter, total, operand.data_type)


def _matmul(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Return the sum of one product for each part of k."""
    a, b = (rewriter.map[value] for value in node.operands)
    count = a.shape[-1]
    if count <= MAX_LOOP_ELEMENTS:
        return None
    result = _product(rewriter, a, b, math.prod(node.output.shape), node.label)
    return narrow(rewriter, result, node.output.data_type)


def _product(rewriter: Rewriter, a: MLOperand, b: MLOperand, size: int, label: str) -> MLOperand:
    """Multiply [..., m, k] by [..., k, n], `size` output elements, in float32, in parts of k."""
    a, b = wide(rewriter, a), wide(rewriter, b)
    count = a.shape[-1]
    most = min(MAX_LOOP_ELEMENTS, max(MIN_PART_ELEMENTS, count * size // MAX_PARTIAL_ELEMENTS))
    parts, length = part_lengths(count, most, 16)
    a = pad_end(rewriter, a, a.rank - 1, parts * length)
    b = pad_end(rewriter, b, b.rank - 2, parts * length)
    a = rewriter.reshape(a, [*a.shape[:-1], parts, length])
    b = rewriter.reshape(b, [*b.shape[:-2], parts, length, b.shape[-1]])
    outer = range(a.rank - 3)
    a = rewriter.transpose(a, permutation=[*outer, a.rank - 2, a.rank - 3, a.rank - 1])
    product = rewriter.matmul(a, b, label=label)
    return rewriter.reduce_sum(product, axes=[product.rank - 3], label=label)


def _convolution(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Turn parts of the input channels into groups, and add up the results of the groups."""
    arguments = rewriter.arguments(node)
    data = in_layout(rewriter, arguments["input"], arguments["input_layout"], "nchw")
    transposed = node.op == "conv_transpose2d"
    order = "iohw" if transposed else "oihw"
    filter_ = in_layout(rewriter, arguments["filter"], arguments["filter_layout"], order)
    groups = arguments["groups"]
    ins = data.shape[1] // groups
    outs = filter_.shape[1] if transposed else filter_.shape[0] // groups
    height, width = filter_.shape[2:]
    if ins * height * width <= MAX_LOOP_ELEMENTS or ins == 1:
        return None
    data, filter_ = wide(rewriter, data), wide(rewriter, filter_)
    parts, length = part_lengths(ins, min(ins - 1, max(1, MAX_LOOP_ELEMENTS // (height * width))))
    batch, _, *size = data.shape
    data = rewriter.reshape(data, [batch, groups, ins, *size])
    data = pad_end(rewriter, data, 2, parts * length)
    data = rewriter.reshape(data, [batch, groups * parts * length, *size])
    if transposed:
        filter_ = rewriter.reshape(filter_, [groups, ins, outs, height, width])
        filter_ = pad_end(rewriter, filter_, 1, parts * length)
        filter_ = rewriter.reshape(filter_, [groups * parts * length, outs, height, width])
    else:
        filter_ = pad_end(rewriter, filter_, 1, parts * length)
        filter_ = rewriter.reshape(filter_, [groups, outs, parts, length, height, width])
        filter_ = rewriter.transpose(filter_, permutation=[0, 2, 1, 3, 4, 5])
        filter_ = rewriter.reshape(filter_, [groups * parts * outs, length, height, width])
    bias = arguments["bias"]
    options = {
        name: value
        for name, value in arguments.items()
        if name not in ("input", "filter", "bias", "groups", "input_layout", "filter_layout")
    }
    result = getattr(rewriter, node.op)(
        data, filter_, groups=groups * parts, input_layout="nchw", filter_layout=order, **options
    )
    _, _, *size = result.shape
    result = rewriter.reshape(result, [batch, groups, parts, outs, *size])
    result = rewriter.reduce_sum(result, axes=[2], label=node.label)
    result = rewriter.reshape(result, [batch, groups * outs, *size])
    if bias is not None:
        channels = rewriter.reshape(wide(rewriter, bias), [1, groups * outs, 1, 1])
        result = rewriter.add(result, channels)
    result = in_layout(rewriter, result, "nchw", arguments["input_layout"])
    return narrow(rewriter, result, node.output.data_type)


def _pool(rewriter: Rewriter, node: Node) -> MLOperand | None:
    """Pool along each axis in turn; for few output elements, reduce each window instead."""
    attrs = node.attrs
    x = rewriter.map[next(node.operands)]
    taps = math.prod(attrs["window_dimensions"])
    places = dims(node.output.shape, attrs["layout"], "hw")
    if taps <= MAX_LOOP_ELEMENTS:
        return None
    if 1 not in attrs["window_dimensions"] and places != (1, 1):
        return _by_axes(rewriter, node, x, places)
    if math.prod(places) > MAX_POOLED_ELEMENTS:
        return None
    rows = []
    for row in range(places[0]):
        columns = [_window(rewriter, node, x, (row, column)) for column in range(places[1])]
        if any(place is None for place in columns):
            return None
        rows.append(_joined(rewriter, columns, attrs["layout"].index("w")))
    return _joined(rewriter, rows, attrs["layout"].index("h"))


def _joined(rewriter: Rewriter, parts: Sequence[MLOperand | None], axis: int) -> MLOperand:
    """Concatenate the operands that exist."""
    there = [part for part in parts if part is not None]
    return there[0] if len(there) == 1 else rewriter.concat(there, axis)


def _by_axes(rewriter: Rewriter, node: Node, x: MLOperand, places: tuple[int, ...]) -> MLOperand:
    """Pool along height, then width: separable, as all rows of a window have as many elements."""
    attrs = node.attrs
    kept = dims(x.shape, attrs["layout"], "hw")
    pooled = wide(rewriter, x) if x.data_type == "float16" else x
    for axis in (0, 1):
        one = [1, 1]
        one[axis] = attrs["window_dimensions"][axis]
        pads = [n if i // 2 == axis else 0 for i, n in enumerate(attrs["padding"])]
        pooled = getattr(rewriter, node.op)(
            pooled,
            window_dimensions=one,
            padding=pads,
            strides=[n if i == axis else 1 for i, n in enumerate(attrs["strides"])],
            dilations=[n if i == axis else 1 for i, n in enumerate(attrs["dilations"])],
            layout=attrs["layout"],
            output_sizes=(places[0], kept[1] if axis == 0 else places[1]),
            label=node.label,
        )
    return narrow(rewriter, pooled, x.data_type)


def _window(
    rewriter: Rewriter, node: Node, x: MLOperand, place: tuple[int, int]
) -> MLOperand | None:
    """Return the result of one window as a reduction; None if the window is empty."""
    attrs = node.attrs
    starts, sizes, steps = [0] * 4, list(x.shape), [1] * 4
    for i, letter in enumerate("hw"):
        axis = attrs["layout"].index(letter)
        step = attrs["dilations"][i]
        begin = place[i] * attrs["strides"][i] - attrs["padding"][2 * i]
        first = max(0, -(begin // step))
        last = min(attrs["window_dimensions"][i] - 1, (x.shape[axis] - 1 - begin) // step)
        if last < first:
            return None
        starts[axis], steps[axis] = begin + first * step, step
        sizes[axis] = (last - first) * step + 1
    inside = rewriter.slice(x, starts, sizes, strides=steps)
    axes = [attrs["layout"].index(letter) for letter in "hw"]
    reduce = getattr(rewriter, _POOLED[node.op])
    result: MLOperand = reduce(inside, axes=axes, keep_dimensions=True, label=node.label)
    return result


_RULES: dict[str, Callable[[Rewriter, Node], MLOperand | None]] = {
    **dict.fromkeys(_PARTS, _reduction),
    **dict.fromkeys(_POOLED, _pool),
    **dict.fromkeys(("arg_max", "arg_min"), _position),
    **dict.fromkeys(("conv2d", "conv_transpose2d"), _convolution),
    "cumulative_sum": _running_sum,
    "matmul": _matmul,
}
