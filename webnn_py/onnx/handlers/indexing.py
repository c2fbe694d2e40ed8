"""Gather, scatter, one-hot and compress operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.onnx.data_sizes import Choice
from webnn_py.onnx.emitter import BOOL, Emitter, wrap
from webnn_py.onnx.handlers.reduction import highest, lowest
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import (
    BrokenModelError,
    Tensor,
    axis_in,
    check_rank,
    choice,
    of_array,
    refuse,
)
from webnn_py.onnx.unsupported_reasons import reason_of


def _indices(g: Emitter, tensor: Tensor) -> Tensor:
    if tensor.data_type in ("int32", "uint32", "int64"):
        return tensor
    return g.to(tensor, "int64" if tensor.data_type == "uint64" else "int32")


def _check_known(indices: Tensor, size: int) -> None:
    """Check that constant indices lie in [-size, size), as WebNN clamps others silently.

    Raises:
        BrokenModelError: An index is out of range.
    """
    known = indices.array
    if known is None or not known.size or is_dimension(size):
        return
    low, high = int(known.min()), int(known.max())
    if low < -size or high >= size:
        worst = low if low < -size else high
        raise BrokenModelError(f"its index {worst} is not one of {size} elements")


@handles("Gather")
def gather(g: Emitter, x: Tensor, indices: Tensor, *, axis: int = 0) -> Any:
    """Gather slices at `indices` along an axis."""
    at = x.axis(axis)
    _check_known(indices, x.shape[at])
    return g.gather(x, _indices(g, indices), axis=at)


@handles("GatherElements")
def gather_elements(g: Emitter, x: Tensor, indices: Tensor, *, axis: int = 0) -> Any:
    """Gather one element per index, which replaces its own position along `axis`."""
    at = x.axis(axis)
    check_rank(x.rank, indices=indices)
    _check_known(indices, x.shape[at])
    if any(i != at and a != b for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True))):
        sizes = [n if i == at else indices.shape[i] for i, n in enumerate(x.shape)]
        _check_within(x, indices.shape, at)
        x = g.slice(x, [0] * x.rank, sizes)
    return g.gather_elements(x, _indices(g, indices), axis=at)


def _check_within(x: Tensor, shape: Sequence[Any], axis: int) -> None:
    """Check that the shape of indices is at most that of `x`, except along `axis`.

    Raises:
        BrokenModelError: A dimension of the indices is larger.
    """
    for i, (n, count) in enumerate(zip(x.shape, shape, strict=True)):
        if i != axis and not is_dimension(n) and not is_dimension(count) and count > n:
            raise BrokenModelError(
                f"its indices have shape {list(shape)}, expected at most {n} along axis {i}"
            )


@handles("GatherND")
def gather_nd(g: Emitter, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Any:
    """Gather slices at coordinates; prepend the batch numbers to the coordinates."""
    check_rank(1, 10, x=x, indices=indices)
    if not 0 <= batch_dims < min(x.rank, indices.rank):
        raise BrokenModelError(
            f"its batch_dims is {batch_dims}, of ranks {x.rank} and {indices.rank}"
        )
    if batch_dims:
        shape = [*indices.shape[:-1], 1]
        numbers = [
            g.to(g.expand(g.places(x.shape[i], i, len(shape)), shape), indices.data_type)
            for i in range(batch_dims)
        ]
        indices = g.concat([*numbers, indices], indices.rank - 1)
    return g.gather_nd(x, _indices(g, indices))


MAX_PARTS = 10_000
"""Maximum number of updates that a reduction combines one at a time."""
_COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
_COMBINE_BOOLS = _COMBINE | {"add": "max", "mul": "min"}


def _combining(g: Emitter, x: Tensor, reduction: str) -> Any:
    return getattr(g, (_COMBINE_BOOLS if x.elem == BOOL else _COMBINE)[reduction])


def _check_parts(count: int, reduction: str) -> None:
    if count > MAX_PARTS:
        refuse(f"reduction {reduction!r} of {count} updates, expected at most {MAX_PARTS}")


def _scattered_by_parts(
    g: Emitter, x: Any, indices: Any, updates: Any, axis: int, reduction: str
) -> Any:
    """Scatter one index along the axis at a time, so that repeated indices combine."""
    combine = _combining(g, x, reduction)
    _check_parts(indices.shape[axis], reduction)
    made = x
    for i in range(indices.shape[axis]):
        starts = [i if k == axis else 0 for k in range(indices.rank)]
        sizes = [1 if k == axis else n for k, n in enumerate(indices.shape)]
        places, part = g.slice(indices, starts, sizes), g.slice(updates, starts, sizes)
        old = g.gather_elements(_narrowed(g, made, sizes, axis), places, axis=axis)
        made = _put(g, made, places, combine(old, part), axis)
    return made


_ENTIRE = {"add": "reduce_sum", "mul": "reduce_product", "max": "reduce_max", "min": "reduce_min"}


def _scattered_at_once(
    g: Emitter, x: Any, indices: Any, updates: Any, axis: int, reduction: str
) -> Any:
    """Scatter by comparing each position along the axis with each index.

    This works for an open number of indices, unlike `_scattered_by_parts`.
    """
    numbers = g.to(indices, "int64")
    nothing = g.array(np.asarray(0))
    numbers = g.where(g.lesser(numbers, nothing), g.add(numbers, g.size(x.shape[axis])), numbers)
    wide = [*indices.shape[:axis], 1, *indices.shape[axis:]]
    meant = g.equal(g.reshape(numbers, wide), g.places(x.shape[axis], axis, x.rank + 1))
    kind = (_COMBINE_BOOLS if x.elem == BOOL else _COMBINE)[reduction]
    neutral = {"add": 0, "mul": 1, "max": lowest(x), "min": highest(x)}[kind]
    each = g.where(meant, g.reshape(updates, wide), g.constant(neutral, x))
    entire = getattr(g, _ENTIRE[kind])(each, axes=[axis + 1])
    after = [a - b for a, b in zip(x.shape, entire.shape, strict=True)]
    if any(is_dimension(n) or n for n in after):
        entire = g.pad(entire, [0] * x.rank, after, value=neutral)
    return _combining(g, x, reduction)(x, entire)


def _narrowed(g: Emitter, x: Any, sizes: list[int], axis: int) -> Any:
    wanted = [n if i == axis else sizes[i] for i, n in enumerate(x.shape)]
    return x if wanted == list(x.shape) else g.slice(x, [0] * x.rank, wanted)


def _put(g: Emitter, x: Any, indices: Any, updates: Any, axis: int) -> Any:
    """Scatter updates, also if the indices span less than `x` in the other dimensions."""
    narrow = _narrowed(g, x, list(indices.shape), axis)
    if narrow is x:
        return g.scatter_elements(x, indices, updates, axis=axis)
    columns = [
        g.to(indices, "int64") if i == axis else g.expand(g.places(n, i, x.rank), indices.shape)
        for i, n in enumerate(indices.shape)
    ]
    coordinates = g.concat([g.reshape(c, [*indices.shape, 1]) for c in columns], x.rank)
    return g.scatter_nd(x, coordinates, updates)


@handles("ScatterElements", "Scatter")
def scatter_elements(
    g: Emitter,
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Any:
    """Write updates at indices along an axis, or combine them with the old elements."""
    at = x.axis(axis)
    check_rank(x.rank, indices=indices, updates=updates)
    if indices.shape != updates.shape:
        raise BrokenModelError(
            f"its updates have shape {list(updates.shape)}, its indices {list(indices.shape)}"
        )
    choice("reduction", reduction, "none", *_COMBINE)
    _check_within(x, indices.shape, at)
    places = _indices(g, indices)
    if reduction == "none":
        return _put(g, x, places, updates, at)
    if is_dimension(places.shape[at]):
        return _scattered_at_once(g, x, places, updates, at, reduction)
    return _scattered_by_parts(g, x, places, updates, at, reduction)


def _in_row(g: Emitter, places: Any, shape: Sequence[Any]) -> Any:
    """Return each row of coordinates as one row-major index, int64 [count, 1]."""
    count = places.shape[0]
    total: Any = None
    for i, number in enumerate(shape):
        own = g.to(g.slice(places, [0, i], [count, 1]), "int64")
        size = g.size(number)
        own = g.where(g.lesser(own, g.array(np.asarray(0))), g.add(own, size), own)
        total = own if total is None else g.add(g.mul(total, size), own)
    return total


@handles("ScatterND")
def scatter_nd(
    g: Emitter, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Any:
    """Write slices at coordinates, or combine them with the old elements."""
    choice("reduction", reduction, "none", *_COMBINE)
    check_rank(1, 10, x=x, indices=indices)
    if reduction == "none":
        return g.scatter_nd(x, indices, updates)
    combine = _combining(g, x, reduction)
    depth = indices.shape[-1]
    if is_dimension(depth) or not 1 <= depth <= x.rank:
        raise BrokenModelError(
            f"its indices have {depth} coordinates, of an input of rank {x.rank}"
        )
    count = math.prod(indices.shape[:-1])
    places = g.reshape(indices, [count, depth])
    parts = g.reshape(updates, [count, *x.shape[depth:]])
    if is_dimension(count):
        size, rows = math.prod(x.shape[:depth]), math.prod(x.shape[depth:])
        flat = _in_row(g, places, x.shape[:depth])
        lines = g.reshape(x, [size, rows]), g.expand(flat, [count, rows])
        made = _scattered_at_once(g, *lines, g.reshape(updates, [count, rows]), 0, reduction)
        return g.reshape(made, list(x.shape))
    _check_parts(count, reduction)
    made = x
    for i in range(count):
        place = g.slice(places, [i, 0], [1, depth])
        part = g.slice(parts, [i, *[0] * (parts.rank - 1)], [1, *parts.shape[1:]])
        made = g.scatter_nd(made, place, combine(g.gather_nd(made, place), part))
    return made


@handles("OneHot")
def one_hot(g: Emitter, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Any:
    """Return `values[1]` at each index along a new axis and `values[0]` elsewhere."""
    count = g.dimension(depth, "depth")
    at = axis_in(axis, indices.rank + 1)
    shape = [*indices.shape[:at], 1, *indices.shape[at:]]
    kind = "float32" if indices.is_float else "int64"
    numbers = g.reshape(g.to(indices, kind), shape)
    size = g.to(g.size(count), kind)
    nothing = g.constant(0, numbers)
    numbers = g.where(g.lesser(numbers, nothing), g.add(numbers, size), numbers)
    row = g.to(g.places(count, at, len(shape)), kind)
    check_rank(1, values=values)
    off = g.reshape(g.slice(values, [0], [1]), [])
    on = g.reshape(g.slice(values, [1], [1]), [])
    return g.where(g.equal(numbers, row), on, off)


def _chosen(g: Emitter, mask: Tensor) -> Choice:
    """Return the elements of a mask that are not 0, whose number is an open dimension."""
    total = math.prod(mask.shape)
    flat = g.reshape(mask, [total])
    running = g.cumulative_sum(g.to(flat, "int64"), 0)
    size = g.data_size(g.slice(running, [total - 1], [1]), total)
    everything = g.places(total)
    if everything.array is not None:  # whoever computes all elements needs a node to replace
        everything = g.identity(everything)
    # Place each chosen number by its rank, and all others behind the end.
    rank = g.sub(running, g.array(np.asarray(1)))
    target = g.where(flat, rank, g.size(total))
    spare = g.expand(g.array(np.zeros(1, np.int64)), [total + 1])
    packed = g.scatter_elements(spare, target, everything, axis=0)
    chosen = g.slice(packed, [0], [size.dimension])
    rows, rest = [], chosen
    for i in range(1, mask.rank):
        stride = g.size(math.prod(mask.shape[i:]))
        whole = g.div(rest, stride)
        rows.append(whole)
        rest = g.sub(rest, g.mul(whole, stride))
    rows = [g.reshape(row, [1, size.dimension]) for row in [*rows, rest]]
    places = g.concat(rows, 0) if len(rows) > 1 else rows[0]
    parts = (g.identity(mask), chosen, places, everything)
    size.choice = made = Choice(*map(g.operand, parts))
    return made


@handles("NonZero")
def non_zero(g: Emitter, x: Tensor) -> Any:
    """Return the coordinates of the elements that are not 0, [rank, count]."""
    if not (g.can_measure(x) and x.rank):
        x.known("what is not 0")
        refuse(reason_of("NonZero"))
    choice = g.once(("chosen", g.operand(x)), lambda: _chosen(g, g.to(x, "bool")))
    return wrap(choice.places, None, x.inputs, x.open_sizes)


@handles("Compress")
def compress(g: Emitter, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Any:
    """Select the slices whose element of the condition is true."""
    check_rank(1, condition=condition)
    if g.can_measure(condition):
        if axis is None:
            x, axis = g.reshape(x, [math.prod(x.shape)]), 0
        choice = g.once(("chosen", g.operand(condition)), lambda: _chosen(g, condition))
        return g.gather(x, wrap(choice.chosen, None, condition.inputs), axis=x.axis(axis))
    places = np.flatnonzero(condition.known("condition"))
    if not len(places):
        refuse("WebNN has no tensors without elements")
    if axis is None:
        x, axis = g.reshape(x, [math.prod(x.shape)]), 0
    at = x.axis(axis)
    _check_known(of_array(places), x.shape[at])
    return g.gather(x, g.array(places.astype(np.int64)), axis=at)


@handles("TensorScatter")
def tensor_scatter(
    g: Emitter,
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Any:
    """Write new rows into a cache, in each batch from its own start index on."""
    choice("mode", mode, "linear", "circular")
    check_rank(past.rank, update=update)
    check_rank(1, write_indices=write_indices)
    at = past.axis(axis)
    if at == 0:
        raise BrokenModelError("its axis is 0, the batch, expected at least 1")
    starts = g.array(np.zeros(1, np.int64)) if write_indices is None else write_indices
    if mode == "linear":
        return g.scatter_rows(past, update, starts, axis=at)
    size = g.size(past.shape[at])
    first = g.sub(starts, g.mul(g.div(starts, size), size))
    made = g.scatter_rows(past, update, first, axis=at)
    # Rows behind the end are dropped there, and written here from the beginning on.
    return g.scatter_rows(made, update, g.sub(first, size), axis=at)
