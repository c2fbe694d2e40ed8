"""Pooling over any number of dimensions, computed by WebNN's 2-D pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webnn_py.core.dimensions import is_open
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.reduction import lowest
from webnn_py.onnx.handlers.windows import Windows, placed
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import (
    BrokenModelError,
    Tensor,
    at_least,
    check_rank,
    listed,
    refuse,
)


def _slid(g: Emitter, x: Any, method: str, over: Windows) -> Any:
    """Pool a padded input, two dimensions at a time."""
    rank = x.rank - 2
    if rank == 1:
        wide = g.reshape(x, [*x.shape[:2], 1, x.shape[2]])
        made = _slid(g, wide, method, over.widened(before=1))
        return g.reshape(made, [*made.shape[:2], made.shape[3]])
    if rank == 2:
        return getattr(g, method)(
            x, window_dimensions=over.taps, strides=over.strides, dilations=over.dilations
        )
    n, c, *size = x.shape
    outer = math.prod(size[:-2])
    flat = g.reshape(x, [n, c * outer, *size[-2:]])
    inner = _slid(g, flat, method, over.part(slice(-2, None)))
    h, w = inner.shape[2:]
    rows = g.reshape(inner, [n * c, *size[:-2], h * w])
    rows = g.reshape(rows, [n, c, *size[:-2], h * w])
    made = _slid(g, rows, method, over.part(slice(-2)).widened(after=1))
    return g.reshape(made, [n, c, *made.shape[2:-1], h, w])


def _is_plain(x: Any, over: Windows, ceil_mode: int) -> bool:
    """Return whether WebNN's 2-D pooling has the same windows as ONNX's.

    When rounding up, ONNX leaves out windows that begin in the padding after the input.
    """
    each = list(zip(over.pads, over.strides, over.reach, strict=True))
    if ceil_mode and any(pads[1] or stride > reach for pads, stride, reach in each):
        return False
    return x.rank in (3, 4) and all(max(pads) < reach for pads, _, reach in each)


def _rounds_up(x: Any, over: Windows, ceil_mode: int) -> bool:
    """Return whether rounding up adds windows, or may add some to open dimensions."""
    each = zip(over.pads, over.strides, over.reach, strict=True)
    if not ceil_mode or all(stride == 1 and pads[1] < reach for pads, stride, reach in each):
        return False
    size = x.shape[2:]
    return is_open(size) or over.counts(size, 1) != over.counts(size)


def _plain(g: Emitter, x: Any, method: str, over: Windows, ceil_mode: int) -> Any:
    """Pool one or two dimensions by WebNN's 2-D pooling and its padding."""
    if x.rank == 3:
        wide = g.reshape(x, [*x.shape[:2], 1, x.shape[2]])
        made = _plain(g, wide, method, over.widened(before=1), ceil_mode)
        return g.reshape(made, [*made.shape[:2], made.shape[3]])
    return getattr(g, method)(
        x,
        window_dimensions=over.taps,
        padding=[*over.pads[0], *over.pads[1]],
        strides=over.strides,
        dilations=over.dilations,
        output_shape_rounding="ceil" if ceil_mode else "floor",
    )


def _surrounded(
    g: Emitter, x: Any, over: Windows, counts: Sequence[int], value: float, ceil_mode: int
) -> Any:
    """Pad the input; with `ceil_mode`, pad or cut it to exactly the span of the windows."""
    after = []
    cut = list(x.shape)
    for i, count in enumerate(counts):
        if not ceil_mode:
            after.append(over.pads[i][1])
            continue
        end = (count - 1) * over.strides[i] + over.reach[i] - over.pads[i][0]
        after.append(max(0, end - x.shape[2 + i]))
        cut[2 + i] = min(x.shape[2 + i], end)
    if cut != list(x.shape):
        x = g.slice(x, [0] * x.rank, cut)
    before = [low for low, _ in over.pads]
    if before != [0] * len(before) or after != before:
        return g.pad(x, [0, 0, *before], [0, 0, *after], value=value)
    return x


@handles("MaxPool")
def max_pool(
    g: Emitter,
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Any:
    """Return the maximum of each window and, as a second output, its position."""
    over = placed(x, kernel_shape, auto_pad, pads, strides, dilations)
    ceil_mode = int(_rounds_up(x, over, ceil_mode))
    places = len(g.outputs) > 1 and g.outputs[1]
    if not places and _is_plain(x, over, ceil_mode):
        return _plain(g, x, "max_pool2d", over, ceil_mode)
    counts = over.counts(x.shape[2:], ceil_mode)
    padded = _surrounded(g, x, over, counts, lowest(x), ceil_mode)
    made = _slid(g, padded, "max_pool2d", over)
    if not places:
        return made
    return [made, _places(g, x, padded, over, counts, storage_order, ceil_mode)]


def _places(
    g: Emitter,
    x: Tensor,
    padded: Any,
    over: Windows,
    counts: Sequence[int],
    storage_order: int,
    ceil_mode: int,
) -> Any:
    """Return the flat positions of the maxima, reducing one axis at a time.

    Each element carries its position in its plane; padding carries -1.
    """
    size = list(x.shape[2:])
    own: Any = None
    for axis in range(len(size)):
        apart = size[:axis] if storage_order else size[axis + 1 :]
        along = g.mul(g.places(size[axis], 2 + axis, x.rank), g.size(math.prod(apart)))
        own = along if own is None else g.add(own, along)
    own = _surrounded(g, g.to(own, "int32"), over, counts, -1, ceil_mode)
    is_padded = over.is_padded or padded.shape != x.shape
    best = padded, own
    for axis in reversed(range(len(size))):
        best = _best_along(g, best, over, axis, counts[axis], is_padded)
    planes = x.shape[0] * x.shape[1]
    shape = [*x.shape[:2], *[1] * len(size)]
    offset = g.mul(g.reshape(g.places(planes), shape), g.size(math.prod(size)))
    return g.add(g.to(best[1], "int64"), offset)


Best = tuple[Any, Any]
"""Maxima and their positions."""


def _best_along(
    g: Emitter, best: Best, over: Windows, axis: int, count: int, is_padded: bool
) -> Best:
    """Reduce the windows along an axis to their first maximum.

    Each round merges two neighboring windows into one of double size. The last step merges the
    two windows that together cover a pooling window.
    """
    taps, dilation = over.taps[axis], over.dilations[axis]
    if not taps:
        raise BrokenModelError("its kernel_shape has a 0")
    reach, wide = 1, best[0].shape[2 + axis]
    while 2 * reach < taps:
        wide -= reach * dilation
        near, far = (_part(g, best, axis, i * reach * dilation, wide, 1) for i in (0, 1))
        best = _better(g, near, far, is_padded)
        reach *= 2
    stride = over.strides[axis]
    near = _part(g, best, axis, 0, count, stride)
    if taps == 1:
        return near
    far = _part(g, best, axis, (taps - reach) * dilation, count, stride)
    return _better(g, near, far, is_padded)


def _part(g: Emitter, best: Best, axis: int, start: int, count: int, stride: int) -> Best:
    """Slice `count` elements along an axis, every `stride`-th from `start`, with positions."""
    found = []
    for x in best:
        starts, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[2 + axis], strides[2 + axis] = start, stride
        sizes[2 + axis] = (count - 1) * stride + 1
        is_whole = sizes == list(x.shape) and stride == 1
        found.append(x if is_whole else g.slice(x, starts, sizes, strides=strides))
    return found[0], found[1]


def _better(g: Emitter, near: Best, far: Best, is_padded: bool) -> Best:
    """Choose the greater element; among equal ones the first that is not padding."""
    is_far = g.greater(far[0], near[0])
    if is_padded:
        beside = g.logical_and(g.equal(far[0], near[0]), g.lesser(near[1], g.constant(0, near[1])))
        is_far = g.logical_or(is_far, beside)
    return g.where(is_far, far[0], near[0]), g.where(is_far, far[1], near[1])


@handles("AveragePool")
def average_pool(
    g: Emitter,
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Return the mean of each window, over input elements alone or with the padding."""
    over = placed(x, kernel_shape, auto_pad, pads, strides, dilations)
    ceil_mode = int(_rounds_up(x, over, ceil_mode))
    counts_all = count_include_pad and over.is_padded
    if not counts_all and _is_plain(x, over, ceil_mode):
        return _plain(g, x, "average_pool2d", over, ceil_mode)
    counts = over.counts(x.shape[2:], ceil_mode)
    padded = _surrounded(g, x, over, counts, 0, ceil_mode)
    made = _slid(g, padded, "average_pool2d", over)
    if not ceil_mode and (counts_all or not over.is_padded):
        return made
    ones = g.expand(g.constant(1, x), [1, 1, *x.shape[2:]])
    if counts_all:
        low, high = zip(*over.pads, strict=True)
        ones = g.pad(ones, [0, 0, *low], [0, 0, *high], value=1)
        over = over.unpadded()
    counted = _surrounded(g, ones, over, counts, 0, ceil_mode)
    share = _slid(g, counted, "average_pool2d", over)
    return g.div(made, g.max(share, 1 / math.prod(kernel_shape)))


@handles("LpPool")
def lp_pool(
    g: Emitter,
    x: Tensor,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    p: float = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Return the p-norm of each window."""
    over = placed(x, kernel_shape, auto_pad, pads, strides, dilations)
    ceil_mode = int(_rounds_up(x, over, ceil_mode))
    counts = over.counts(x.shape[2:], ceil_mode)
    at_least("p", p, 1)
    powers = g.pow(g.abs(x), float(p))
    padded = _surrounded(g, powers, over, counts, 0, ceil_mode)
    made = _slid(g, padded, "average_pool2d", over)
    return g.pow(g.mul(made, float(math.prod(kernel_shape))), 1.0 / p)


def _all(g: Emitter, x: Tensor, method: str) -> Any:
    check_rank(3, 10, x=x)
    return getattr(g, method)(x, axes=list(range(2, x.rank)), keep_dimensions=True)


@handles("GlobalAveragePool")
def global_average_pool(g: Emitter, x: Tensor) -> Any:
    """Return the mean of each channel."""
    return _all(g, x, "reduce_mean")


@handles("GlobalMaxPool")
def global_max_pool(g: Emitter, x: Tensor) -> Any:
    """Return the maximum of each channel."""
    return _all(g, x, "reduce_max")


@handles("GlobalLpPool")
def global_lp_pool(g: Emitter, x: Tensor, *, p: float = 2) -> Any:
    """Return the p-norm of each channel."""
    at_least("p", p, 1)
    total = _all(g, g.pow(g.abs(x), float(p)), "reduce_sum")
    return g.pow(total, 1.0 / p)


@handles("MaxUnpool")
def max_unpool(
    g: Emitter,
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Write elements to their positions before pooling, and zeros elsewhere."""
    over = placed(x, kernel_shape, "NOTSET", pads, strides, None)
    check_rank(x.rank, indices=indices)
    own = [
        (n - 1) * stride + taps - sum(around)
        for n, stride, taps, around in zip(
            x.shape[2:], over.strides, over.taps, over.pads, strict=True
        )
    ]
    shape = [*x.shape[:2], *own]
    if output_shape is not None:
        wanted = listed("output_shape", output_shape.integers("output_shape"), x.rank, 1)
        if math.prod(wanted) != math.prod(shape):
            return _unpooled(g, x, indices, shape, wanted)
        shape = wanted
    count = math.prod(x.shape)
    empty = g.expand(g.constant(0, x), [math.prod(shape)])
    put = g.scatter_elements(empty, g.reshape(indices, [count]), g.reshape(x, [count]))
    return g.reshape(put, shape)


def _unpooled(
    g: Emitter, x: Tensor, indices: Tensor, own: Sequence[int], wanted: Sequence[int]
) -> Any:
    count = math.prod(x.shape)
    empty = g.expand(g.constant(0, x), [math.prod(own)])
    put = g.scatter_elements(empty, g.reshape(indices, [count]), g.reshape(x, [count]))
    after = [b - a for a, b in zip(own, wanted, strict=True)]
    if min(after) < 0:
        refuse("an output smaller than the windows")
    return g.pad(g.reshape(put, list(own)), [0] * len(own), after)
