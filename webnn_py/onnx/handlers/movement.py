"""Operators that move elements, or create tensors from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension, is_open, span, undecided
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.shapes import MAX_RANK, broadcast
from webnn_py.onnx.arithmetic import equal, least
from webnn_py.onnx.emitter import BOOL, Emitter
from webnn_py.onnx.handlers.windows import Windows, edges, overlapped, steps_of
from webnn_py.onnx.registry import OWN, handles
from webnn_py.onnx.tensor import (
    BrokenModelError,
    Tensor,
    at_least,
    axis_in,
    check_rank,
    choice,
    listed,
    narrowing,
    of_array,
    refuse,
    webnn_type,
    without_elements,
)

Old = list[int] | None
"""`consumed_inputs`, a hint of the first opset that says nothing about results."""


def _reshaped(shape: Sequence[int], target: Sequence[int], allowzero: int) -> list[int]:
    if len([size for size in target if not is_dimension(size) and size == -1]) > 1:
        raise BrokenModelError(f"its shape is {shown(list(target))}, expected one -1 at most")
    new = [
        shape[i] if size == 0 and not allowzero and i < len(shape) else size
        for i, size in enumerate(target)
    ]
    if -1 in new:
        rest = -math.prod(new)
        new[new.index(-1)] = math.prod(shape) // rest if rest else 0
    return new


@handles("Reshape", since=5)
def reshape(g: Emitter, x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Any:
    """Reshape a tensor; 0 copies a size unless `allowzero` is set, -1 stands for the rest."""
    return g.reshape(x, _reshaped(x.shape, g.dimensions(shape, "shape"), allowzero))


@handles("Reshape")
def reshape_1(
    g: Emitter, x: Tensor, *, shape: list[int] | None = None, consumed_inputs: Old = None
) -> Any:
    """Handle Reshape before opset 5."""
    return g.reshape(x, _reshaped(x.shape, shape or [], 0))


@handles("Flatten")
def flatten(g: Emitter, x: Tensor, *, axis: int = 1) -> Any:
    """Flatten to a matrix whose columns start at `axis`."""
    at = x.rank if axis == x.rank else x.axis(axis)
    return g.reshape(x, [math.prod(x.shape[:at]), math.prod(x.shape[at:])])


@handles("Transpose")
def transpose(g: Emitter, x: Tensor, *, perm: list[int] | None = None) -> Any:
    """Permute dimensions; reverse their order by default."""
    return g.transpose(x, permutation=perm if perm is not None else [*range(x.rank)][::-1])


def _squeezed(g: Emitter, x: Tensor, axes: Sequence[int] | None) -> Any:
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if equal(n, 1)]
    used = {x.axis(axis) for axis in axes}  # a set, as an axis may be repeated
    for at in sorted(used):
        with narrowing():
            if x.shape[at] != 1:
                why = undecided(x.shape[at], 1)
                raise ValidationError(f"its axis {at} of shape {list(x.shape)} is not 1{why}")
    return g.reshape(x, [n for i, n in enumerate(x.shape) if i not in used])


@handles("Squeeze", since=13)
def squeeze(g: Emitter, x: Tensor, axes: Tensor | None = None) -> Any:
    """Remove dimensions of size 1."""
    return _squeezed(g, x, None if axes is None else axes.integers("axes"))


@handles("Squeeze")
def squeeze_1(g: Emitter, x: Tensor, *, axes: list[int] | None = None) -> Any:
    """Handle Squeeze before opset 13."""
    return _squeezed(g, x, axes)


def _unsqueezed(g: Emitter, x: Tensor, axes: Sequence[int]) -> Any:
    rank = x.rank + len(axes)
    if rank > MAX_RANK:
        refuse(f"a result of rank {rank}, over {MAX_RANK}")
    used = {axis_in(axis, rank) for axis in axes}
    if len(used) < len(axes):
        raise BrokenModelError(f"its axes {list(axes)} have one twice")
    sizes = iter(x.shape)
    return g.reshape(x, [1 if i in used else next(sizes) for i in range(rank)])


@handles("Unsqueeze", since=13)
def unsqueeze(g: Emitter, x: Tensor, axes: Tensor) -> Any:
    """Insert dimensions of size 1."""
    return _unsqueezed(g, x, axes.integers("axes"))


@handles("Unsqueeze")
def unsqueeze_1(g: Emitter, x: Tensor, *, axes: list[int]) -> Any:
    """Handle Unsqueeze before opset 13."""
    return _unsqueezed(g, x, axes)


@handles("Concat")
def concat(g: Emitter, *inputs: Tensor, axis: int = 1) -> Any:
    """Concatenate along an axis; skip operands without elements."""
    inputs[0].axis(axis)
    check_rank(inputs[0].rank, **{f"input {i}": one for i, one in enumerate(inputs)})
    full = [one for one in inputs if math.prod(one.shape)]
    if not full:
        return inputs[0]
    return g.concat(full, full[0].axis(axis)) if len(full) > 1 else g.identity(full[0])


def parts(g: Emitter, x: Tensor, sizes: Sequence[int], axis: int) -> Any:
    """Split into parts of `sizes` along an axis; parts of size 0 are constants."""
    full = [size for size in sizes if is_dimension(size) or size]
    made = iter([x] if len(full) == 1 else g.split(x, full, axis=axis))
    lead, tail = x.shape[:axis], x.shape[axis + 1 :]
    return [
        next(made) if is_dimension(n) or n else without_elements(x.elem, [*lead, n, *tail])
        for n in sizes
    ]


@handles("Split", since=13)
def split(
    g: Emitter,
    x: Tensor,
    split: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
) -> Any:
    """Split into parts of `split` or of equal size; the last equal part may be smaller."""
    at = x.axis(axis)
    if split is not None:
        return parts(g, x, split.dimensions("split"), at)
    if num_outputs is None:  # before opset 18: one part of equal size per output
        return split_1(g, x, axis=at)
    count = num_outputs
    if count != len(g.outputs):
        raise BrokenModelError(f"its num_outputs is {count}, expected {len(g.outputs)}")
    size = -(-x.shape[at] // count)
    sizes = [size] * (count - 1)
    return parts(g, x, [*sizes, x.shape[at] - sum(sizes)], at)


@handles("Split")
def split_1(g: Emitter, x: Tensor, *, axis: int = 0, split: list[int] | None = None) -> Any:
    """Handle Split before opset 13."""
    at = x.axis(axis)
    count = len(g.outputs)
    return parts(g, x, split or [x.shape[at] // count] * count, at)


@handles("Expand")
def expand(g: Emitter, x: Tensor, shape: Tensor) -> Any:
    """Broadcast `x` with a shape."""
    target = broadcast(x.shape, g.dimensions(shape, "shape"), ("x", "shape"))
    return x if target == x.shape else g.expand(x, list(target))


@handles("ConstantOfShape")
def constant_of_shape(g: Emitter, shape: Tensor, *, value: Any = None) -> Any:
    """Fill a shape with one number."""
    number = np.zeros(1, np.float32) if value is None else value
    if number.size != 1:
        raise BrokenModelError(f"its value has shape {list(number.shape)}, expected one element")
    filled, sizes = of_array(number.reshape(())), g.dimensions(shape, "shape")
    return without_elements(filled.elem, sizes) if 0 in sizes else g.expand(filled, sizes)


@handles("Range")
def range_(g: Emitter, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Any:
    """Return evenly spaced integers from `start` on, up to but not including `limit`."""
    ends = {"start": start, "limit": limit, "delta": delta}
    known = [one.number(name) for name, one in ends.items() if one.array is not None]
    if not all(float(number).is_integer() for number in known):
        refuse("a range of numbers that are no integers")
    step = delta.integer("delta")
    if not step:
        raise BrokenModelError("its delta is 0")
    if g.can_measure(limit):
        first = start.dimension("start")
        count = g.once(("steps", limit, first, step), lambda: _steps_to(g, limit, first, step))
    else:
        first, last = start.dimension("start"), limit.dimension("limit")
        over = last - first if step > 0 else first - last
        count = (over + abs(step) - 1) // abs(step)
    numbers = g.mul(g.places(count), g.size(step))
    return g.to(g.add(numbers, g.size(first)), start.data_type)


def _steps_to(g: Emitter, limit: Tensor, first: Any, step: int) -> Any:
    """Return the number of steps to a limit that a run computes, an open dimension."""
    end = g.to(g.ceil(limit) if step > 0 else g.floor(limit), "int64") if limit.is_float else limit
    end = g.to(g.moved(end, ()), "int64")
    over = g.sub(end, g.size(first)) if step > 0 else g.sub(g.size(first), end)
    steps = g.div(g.add(over, g.size(abs(step) - 1)), g.size(abs(step)))
    return g.data_size(g.max(steps, g.size(0))).dimension


@handles("Tile", since=6)
def tile(g: Emitter, x: Tensor, repeats: Tensor) -> Any:
    """Repeat a tensor along each axis."""
    return g.tile(x, g.dimensions(repeats, "repeats"))


@handles("Tile")
def tile_1(g: Emitter, x: Tensor, tiles: Tensor, axis: Tensor) -> Any:
    """Handle Tile before opset 6, along one axis."""
    counts = [1] * x.rank
    counts[x.axis(axis.integer("axis"))] = tiles.integer("tiles")
    return g.tile(x, counts)


def _padded(
    g: Emitter, x: Tensor, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int]
) -> Any:
    kinds = {"constant": "constant", "reflect": "reflection", "edge": "edge", "wrap": "wrap"}
    choice("mode", mode, *kinds)
    count = len(axes)
    axes, pads = x.axes(axes), listed("pads", pads, 2 * count)
    before, after = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + count]
    more = [[-least(-p, 0) for p in ends] for ends in (before, after)]
    if more != [before, after]:
        pairs = zip((before, after), more, strict=True)
        cut = [[b - a for a, b in zip(*ends, strict=True)] for ends in pairs]
        x = g.slice(x, cut[0], [n - a - b for n, a, b in zip(x.shape, *cut, strict=True)])
    before, after = more
    if mode == "wrap":
        return _wrapped(g, x, before, after)
    return g.pad(x, before, after, mode=kinds[mode], value=value)


def _wrapped(g: Emitter, x: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            g.afford(low + x.shape[axis] + high, f"an axis {axis} that is wrapped around")
            places = np.arange(-low, x.shape[axis] + high, dtype=np.int64) % x.shape[axis]
            x = g.gather(x, g.array(places.astype(np.int32)), axis=axis)
    return x


@handles("Pad", since=11)
def pad(
    g: Emitter,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Any:
    """Pad the ends of axes; negative padding removes elements."""
    used = range(x.rank) if axes is None else axes.integers("axes")
    number = 0 if value is None else value.number("constant_value")
    number = int(number) if x.elem == BOOL else number
    return _padded(g, x, pads.dimensions("pads"), mode, number, list(used))


@handles("Pad", since=2)
def pad_2(
    g: Emitter, x: Tensor, *, pads: list[int], mode: str = "constant", value: float = 0.0
) -> Any:
    """Handle Pad before opset 11."""
    return _padded(g, x, pads, mode, value, range(x.rank))


@handles("Pad")
def pad_1(
    g: Emitter, x: Tensor, *, paddings: list[int], mode: str = "constant", value: float = 0.0
) -> Any:
    """Handle Pad before opset 2."""
    return _padded(g, x, paddings, mode, value, range(x.rank))


@handles("DepthToSpace")
def depth_to_space(g: Emitter, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Any:
    """Move channels into blocks of rows and columns."""
    choice("mode", mode, "DCR", "CRD")
    at_least("blocksize", blocksize, 1)
    check_rank(4, x=x)
    n, c, h, w = x.shape
    b, rest = blocksize, c // (blocksize * blocksize)
    if mode == "DCR":
        parts, order = [n, b, b, rest, h, w], [0, 3, 4, 1, 5, 2]
    else:
        parts, order = [n, rest, b, b, h, w], [0, 1, 4, 2, 5, 3]
    moved = g.transpose(g.reshape(x, parts), permutation=order)
    return g.reshape(moved, [n, rest, h * b, w * b])


@handles("SpaceToDepth")
def space_to_depth(g: Emitter, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Any:
    """Move blocks of rows and columns into channels."""
    choice("mode", mode, "DCR", "CRD")
    at_least("blocksize", blocksize, 1)
    check_rank(4, x=x)
    n, c, h, w = x.shape
    b = blocksize
    parts = g.reshape(x, [n, c, h // b, b, w // b, b])
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = g.transpose(parts, permutation=order)
    return g.reshape(moved, [n, c * b * b, h // b, w // b])


@handles("Trilu")
@handles("Trilu", domain=OWN)
def trilu(g: Emitter, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Any:
    """Return the upper or lower triangle; set other elements to 0."""
    check_rank(2, 10, x=x)
    diagonal = 0 if k is None else k.dimension("k")
    high = sum(span(size)[1] for size in x.shape[-2:])
    if not is_open([diagonal]):  # ONNX's k is int64, WebNN's option is int32
        diagonal = max(-high, min(diagonal, high))
    return g.triangular(x, upper=bool(upper), diagonal=diagonal)


@handles("EyeLike")
def eye_like(g: Emitter, x: Tensor, *, dtype: int | None = None, k: int = 0) -> Any:
    """Return 1 on diagonal `k` and 0 elsewhere, in the shape of `x`."""
    check_rank(2, x=x)
    elem = x.elem if dtype is None else dtype
    data_type = webnn_type(elem)
    rows, columns = (g.places(size, axis, 2) for axis, size in enumerate(x.shape))
    made = g.equal(g.add(rows, g.size(k)), columns)
    return made if elem == BOOL else g.cast(made, data_type)


@handles("ReverseSequence")
def reverse_sequence(
    g: Emitter, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Any:
    """Reverse the first elements of each batch, as many as its length."""
    check_rank(1, lengths=lengths)
    batch, time = x.axis(batch_axis), x.axis(time_axis)
    if batch == time:
        raise BrokenModelError(f"its batch_axis and its time_axis are both {batch_axis}")
    shape = [1] * x.rank
    shape[batch] = x.shape[batch]
    length = g.reshape(lengths, shape)
    place = g.places(x.shape[time], time, x.rank)
    turned = g.sub(g.sub(length, place), g.array(np.asarray(1, np.int64)))
    places = g.where(g.lesser(place, length), turned, place)
    return g.gather_elements(x, g.expand(places, list(x.shape)), axis=time)


@handles("AffineGrid")
def affine_grid(g: Emitter, theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Any:
    """Return the sampling grid of an affine map for an output of constant size."""
    check_rank(3, theta=theta)
    wanted = size.integers("size")
    if len(wanted) < 3:
        raise BrokenModelError(f"its size is {wanted}, expected a batch, channels and sizes")
    batch, _, *sizes = wanted
    rank = len(sizes)
    if min(sizes, default=0) < 1 or theta.shape[1:] != (rank, rank + 1):
        raise BrokenModelError(
            f"its size {[batch, _, *sizes]} does not fit theta of shape {list(theta.shape)}"
        )

    def column(place: int) -> Any:
        """Return one column of `theta`, shaped to broadcast over the output."""
        part = g.slice(theta, [0, 0, place], [theta.shape[0], rank, 1])
        return g.reshape(part, [theta.shape[0], *[1] * rank, rank])

    made = column(rank)
    for axis, count in enumerate(sizes):
        g.afford(count, f"the size {count} along axis {2 + axis}")
        ends = np.linspace(-1, 1, count) if align_corners and count > 1 else None
        middle = (2 * np.arange(count) + 1) / count - 1
        along = (middle if ends is None else ends).reshape([-1, *[1] * (rank - axis)])
        made = g.add(made, g.mul(column(rank - 1 - axis), g.constant(along, theta)))
    return made


@handles("Col2Im")
def col_to_im(
    g: Emitter,
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Sum columns of blocks into their image, one axis at a time (col2im)."""
    check_rank(3, x=x)
    image = listed("image_shape", image_shape.integers("image_shape"), None, 1)
    rank = len(image)
    block = listed("block_shape", block_shape.integers("block_shape"), rank, 1)
    over = Windows(block, edges(rank, pads), *steps_of(rank, strides, dilations))
    listed("pads", pads or [], None, 0)
    counts, taps = over.counts(image), math.prod(block)
    batch, channels, places = x.shape
    if channels % taps or places != math.prod(counts):
        raise BrokenModelError(
            f"its input has {channels} rows of {places} blocks, expected a multiple of"
            f" {taps} rows and {math.prod(counts)} blocks"
        )
    made: Any = x
    lead = batch * (channels // taps)
    for axis in reversed(range(rank)):
        ends = [lead * math.prod(block[:axis]), math.prod(image[axis + 1 :])]
        middle = [block[axis], math.prod(counts[:axis]), counts[axis]]
        made = g.reshape(made, [ends[0], *middle, ends[1]])
        made = overlapped(g, made, over.part(slice(axis, axis + 1)), image[axis])
    return g.reshape(made, [batch, channels // taps, *image])
