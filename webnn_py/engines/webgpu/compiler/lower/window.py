"""Convolution, transposed convolution and pooling, element by element: loops over taps."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from webnn_py.core import shapes
from webnn_py.core.errors import OperationError
from webnn_py.engines.webgpu.compiler.code.affine import coordinate
from webnn_py.engines.webgpu.compiler.code.expressions import adapted
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, total
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS, lowering
from webnn_py.engines.webgpu.program.pieces import u32
from webnn_py.ir import Node, Value
from webnn_py.ops.convolution import dims

MAX_UNROLLED_TAPS = 64
"""Taps of a window up to which GPUs get it unrolled: a loop waits for each load in turn."""
MAX_RECOMPUTED_TAPS = 8
"""Taps of a pool up to which it may compute its input while it loads it."""


def window_position(
    body: Body, at: Sequence[Index], tap: Sequence[Index], node: Node
) -> tuple[list[Index], str]:
    """Return row and column of a tap, and the test that they are inside; "" if always true."""
    attrs = node.attrs
    layout = attrs.get("input_layout") or attrs["layout"]
    size = dims(next(node.operands).shape, layout, "hw")
    places: list[Index] = []
    checks: list[str] = []
    for i in (0, 1):
        low = attrs["padding"][2 * i]
        place = at[i] * attrs["strides"][i] + tap[i] * attrs["dilations"][i] - low
        place = body.let(place, "p")
        if low or not always_inside(node, i, size[i]):
            checks.append(f"{place} < {u32(size[i])}")  # negative values wrap to huge ones
        # Compilers reject a constant index out of bounds, even behind the check.
        outside = not place.terms and not 0 <= place.offset < size[i]
        places.append(constant(0) if outside else place.below(size[i]))
    return places, " && ".join(checks)


def always_inside(node: Node, axis: int, size: int) -> bool:
    """Whether the last window ends inside the input along height (0) or width (1)."""
    attrs = node.attrs
    layout = attrs.get("input_layout") or attrs["layout"]
    out = dims(node.output.shape, layout, "hw")[axis]
    window = window_of(node)[axis]
    end = (out - 1) * attrs["strides"][axis] + (window - 1) * attrs["dilations"][axis]
    return bool(end - attrs["padding"][2 * axis] < size)


def is_pixelwise(node: Node, value: Value) -> bool:
    """Whether a node is a 1x1 convolution of `value` with stride 1 and no padding."""
    if node.op != "conv2d" or node.inputs[0] is not value or value in node.inputs[1:]:
        return False
    attrs = node.attrs
    moves = (attrs["groups"], *attrs["strides"], *window_of(node))
    return moves == (1, 1, 1, 1, 1) and not any(attrs["padding"])


def window_of(node: Node) -> tuple[int, ...]:
    """Return height and width of the window."""
    if "window_dimensions" in node.attrs:
        return tuple(node.attrs["window_dimensions"])
    filter_ = node.inputs[1]
    assert filter_ is not None
    return dims(filter_.shape, node.attrs["filter_layout"], "hw")


def flat(layout: str, value: Value, places: Mapping[str, Index]) -> Index:
    """Return the flat index of the element at the coordinates, which are keyed by layout letter."""
    steps = zip(layout, value.shape, shapes.strides(value.shape), strict=True)
    return total(places[letter].below(size) * stride for letter, size, stride in steps)


def output_position(body: Body, node: Node, index: Index, layout: str) -> dict[str, Index]:
    """Return the output's coordinates by layout letter."""
    shape = node.output.shape
    return {
        letter: body.let(coordinate(shape, axis, index), letter)
        for axis, letter in enumerate(layout)
    }


def _taps(
    body: Body, node: Node, at: Mapping[str, Index], channels: int = 1
) -> Iterator[tuple[tuple[Index, Index], tuple[Index, Index], str]]:
    """Emit the taps of a window, unrolled or in loops; the caller emits the loop's body.

    Args:
        body: Body of the kernel function.
        node: A convolution or pool.
        at: Coordinates of the output element, by layout letter.
        channels: Elements of the input under a tap.

    Yields:
        Row and column in the window, row and column in the input, and the test that they are
        inside; "" if always true or already tested.
    """
    height, width = window_of(node)
    place = at["h"], at["w"]
    if _is_unrolled(body, node, height * width * channels):
        for tap in itertools.product(map(constant, range(height)), map(constant, range(width))):
            (row, column), inside = window_position(body, place, tap, node)
            yield tap, (row, column), inside
        return
    with body.loop(height, "y") as y, body.loop(width, "x") as x:
        (row, column), inside = window_position(body, place, (y, x), node)
        with body.block(f"if ({inside})" if inside else ""):
            yield (y, x), (row, column), ""


def _is_unrolled(body: Body, node: Node, taps: int) -> bool:
    """Whether the window is small enough to unroll on this device."""
    builder, data = body.builder, node.inputs[0]
    assert data is not None
    while builder.computes(data) and builder.producers[data].op in VIEWS:
        data = next(builder.producers[data].operands)
    short = MAX_RECOMPUTED_TAPS if builder.computes(data) else MAX_UNROLLED_TAPS
    return builder.features.kind != "cpu" and taps <= short


def pools_few(node: Node) -> bool:
    """Whether a node pools so few elements that each may be recomputed by every reader."""
    return "window_dimensions" in node.attrs and math.prod(window_of(node)) <= MAX_RECOMPUTED_TAPS


def _set(body: Body, name: str, value: str, inside: str) -> None:
    """Assign to a variable if the tap is inside."""
    body.line(f"{name} = {f'select({name}, {value}, {inside})' if inside else value};")


@lowering("conv2d", loops=True)
def conv2d(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit a loop over the filter's taps and the group's channels."""
    data, filter_, bias = node.inputs
    assert data is not None
    assert filter_ is not None
    attrs = node.attrs
    layout = attrs["input_layout"]
    at = output_position(body, node, index, layout)
    outs, ins = dims(filter_.shape, attrs["filter_layout"], "oi")
    per_group = outs // attrs["groups"]
    first = body.let(at["c"] // per_group * ins)
    total = body.var("f32", "0.0")
    for (y, x), (row, column), inside in _taps(body, node, at, ins):
        with body.loop(ins, "k") as k:
            place = {"n": at["n"], "c": first + k, "h": row, "w": column}
            element = body.load(data, flat(layout, data, place))
            tap = {"o": at["c"], "i": k, "h": y, "w": x}
            weight = body.load(filter_, flat(attrs["filter_layout"], filter_, tap))
            _set(body, total, f"fma({element}, {weight}, {total})", inside)
    if bias is None:
        return total
    return f"{total} + {body.load(bias, at['c'])}"


def _pool(body: Body, node: Node, index: Index, start: str, step: str) -> tuple[str, str]:
    """Return the accumulated window and the count of elements inside; `step` uses {a} and {b}."""
    data = next(node.operands)
    layout = node.attrs["layout"]
    at = output_position(body, node, index, layout)
    storage = body.builder.storage(node.output)
    total = body.var(storage.compute, start)
    count = body.var("u32", "0u", "count")
    for _, (row, column), inside in _taps(body, node, at):
        element = body.load(data, flat(layout, data, at | {"h": row, "w": column}))
        _set(body, total, step.format(a=total, b=element), inside)
        _set(body, count, f"{count} + 1u", inside)
    return total, count


@lowering("average_pool2d", loops=True)
def average_pool2d(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the mean of the elements inside."""
    total, count = _pool(body, node, index, "0.0", "{a} + {b}")
    return f"{total} / f32({count})"


@lowering("l2_pool2d", loops=True)
def l2_pool2d(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the root of the sum of squares."""
    total, _ = _pool(body, node, index, "0.0", "fma({b}, {b}, {a})")
    return f"sqrt({total})"


@lowering("max_pool2d", loops=True)
def max_pool2d(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the greatest element."""
    storage = body.builder.storage(node.output)
    lowest = storage.extreme("min")
    total, _ = _pool(body, node, index, lowest, adapted("max({a}, {b})", storage))
    return total


@contextlib.contextmanager
def _reaching_taps(
    body: Body, node: Node, axis: int, place: Index
) -> Iterator[tuple[Index, Index]]:
    """Loop over the taps along height (0) or width (1); yield the tap and its input coordinate.

    The input at (p - tap * dilation) / stride contributes to the output at p if that divides.
    """
    data, filter_, *_ = node.operands
    attrs = node.attrs
    size = dims(data.shape, attrs["input_layout"], "hw")[axis]
    taps = dims(filter_.shape, attrs["filter_layout"], "hw")[axis]
    stride, dilation = attrs["strides"][axis], attrs["dilations"][axis]
    start = body.let(place + attrs["padding"][2 * axis], "p")
    # Without dilation, every stride-th tap divides.
    tap_step = stride if dilation == 1 else 1
    first = body.let(start % tap_step, "first")
    with body.loop(-(-taps // tap_step), "t") as step:
        tap = body.let(first + step * tap_step, "tap")
        reach = body.let(start - tap * dilation, "d")
        checks = [f"{reach} <= {u32((size - 1) * stride)}"]  # negative values wrap to huge ones
        if tap_step > 1 and taps % tap_step:
            checks.append(f"{tap} < {u32(taps)}")
        if stride > 1 and tap_step == 1 and size > 1:
            checks.append(f"{reach % stride} == 0u")
        with body.block(f"if ({' && '.join(checks)})"):
            yield tap.below(taps), body.let(reach // stride, "at").below(size)


@lowering("conv_transpose2d", loops=True)
def conv_transpose2d(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit a loop over the contributing taps and the group's channels."""
    data, filter_, bias = node.inputs
    assert data is not None
    assert filter_ is not None
    attrs = node.attrs
    groups = attrs["groups"]
    ins, outs = dims(filter_.shape, attrs["filter_layout"], "io")
    if ins % groups:
        label = f" [{node.label}]" if node.label else ""
        raise OperationError(f"{node.op}{label}: {ins} channels in {groups} groups do not divide")
    at = output_position(body, node, index, attrs["input_layout"])
    group = body.let(at["c"] // outs * (ins // groups), "first")
    channel = body.let(at["c"] % outs, "o")
    total = body.var("f32", "0.0")
    with (
        _reaching_taps(body, node, 0, at["h"]) as (y, row),
        _reaching_taps(body, node, 1, at["w"]) as (x, column),
        body.loop(ins // groups, "k") as k,
    ):
        source = body.let(group + k, "c")
        place = {"n": at["n"], "c": source, "h": row, "w": column}
        element = body.load(data, flat(attrs["input_layout"], data, place))
        tap = {"i": source, "o": channel, "h": y, "w": x}
        weight = body.load(filter_, flat(attrs["filter_layout"], filter_, tap))
        body.line(f"{total} = fma({element}, {weight}, {total});")
    if bias is None:
        return total
    return f"{total} + {body.load(bias, at['c'])}"
