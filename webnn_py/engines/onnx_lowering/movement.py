"""Lowerings of operators that move elements, and of resampling."""

from __future__ import annotations

from webnn_py.core.dimensions import is_open
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.onnx_lowering.emitter import Emitter, NotLowered, Tensor, lowering
from webnn_py.ir import Node
from webnn_py.ops.movement import split_sizes

_BEFORE_FIRST = -(2**63)
_MODES = {"constant": "constant", "edge": "edge", "reflection": "reflect"}


@lowering
def concat(e: Emitter, node: Node, *inputs: Tensor) -> Tensor:
    """Write Concat."""
    return e.op("Concat", *inputs, axis=node.attrs["axis"])


@lowering
def expand(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Expand."""
    return e.op("Expand", x, e.constant(node.attrs["new_shape"]))


@lowering
def pad(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Pad; Identity for a scalar."""
    if not node.output.rank:
        return e.op("Identity", x)
    mode = node.attrs["mode"]
    widths = e.constant([*node.attrs["beginning_padding"], *node.attrs["ending_padding"]])
    value = e.like(node.attrs["value"], x) if mode == "constant" else None
    return e.op("Pad", x, widths, value, mode=_MODES[mode])


@lowering
def reshape(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Reshape."""
    (old,) = node.operands
    return e.reshape(x, node.attrs["new_shape"], old.shape)


@lowering
def reverse(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Slice with negative steps."""
    axes = sorted(node.attrs["axes"])
    if not axes:
        return e.op("Identity", x)
    ends = [_BEFORE_FIRST] * len(axes)
    backwards = [-1] * len(axes)
    return e.op("Slice", x, *map(e.constant, (backwards, ends, axes, backwards)))


@lowering
def slice(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Slice along the axes that are cut; Identity where there are none.

    ONNX Runtime makes one Split of slices along one axis.
    """
    (whole,) = node.operands
    names = ("starts", "sizes", "strides")
    axes = zip(*(node.attrs[name] for name in names), whole.shape, strict=True)
    cut = [
        (start, start + size, axis, step)
        for axis, (start, size, step, full) in enumerate(axes)
        if not (step == 1 and start == 0 and size == full)
    ]
    if not cut:
        return e.op("Identity", x)
    return e.op("Slice", x, *map(e.constant, zip(*cut, strict=True)))


@lowering
def split(e: Emitter, node: Node, x: Tensor) -> list[Tensor]:
    """Write Split."""
    (whole,), axis = node.inputs, node.attrs["axis"]
    assert whole is not None
    sizes = split_sizes(whole.shape[axis], node.attrs["splits"])
    parts = e.ops("Split", [x, e.constant(sizes)], [x.data_type] * len(sizes), axis=axis)
    return [part for part in parts if part is not None]


@lowering
def tile(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Tile; Identity for a scalar."""
    if not node.output.rank:
        return e.op("Identity", x)
    return e.op("Tile", x, e.constant(node.attrs["repetitions"]))


@lowering
def transpose(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Transpose."""
    return e.transpose(x, node.attrs["permutation"])


@lowering
def triangular(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Trilu; cast data types for which ONNX Runtime has no kernel."""
    wide = e.cast(x, "int64") if x.data_type in ("int8", "uint8", "uint32") else x
    upper = int(node.attrs["upper"])
    return e.cast(e.op("Trilu", wide, e.constant(node.attrs["diagonal"]), upper=upper), x.data_type)


@lowering
def resample2d(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write Resize on the last two dimensions, or Gather for most "nearest-neighbor" cases.

    Resize is used for "nearest-neighbor" only where each element repeats a whole number of times.
    Gather avoids its rounding, and is faster where whole rows are copied.
    """
    (whole,), axes = node.inputs, node.attrs["axes"]
    assert whole is not None
    old, new = whole.shape, node.output.shape
    if node.attrs["mode"] == "nearest-neighbor":
        repeats = all(b // a * a == b for a, b in zip(old, new, strict=True))
        if repeats and (old[-1] != new[-1] or is_open((*old, *new))):
            options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
            return e.op("Resize", x, None, None, e.constant(new), nearest_mode="floor", **options)
        if is_open((*old, *new)):
            raise NotLowered(f"ONNX rounds the places in {list(new)} of elements of {list(old)}")
        for axis in axes:
            if old[axis] != new[axis]:
                places = e.constant(_nearest(old[axis], new[axis]))
                x = e.op("Gather", x, places, axis=axis)
        return x if old != new else e.op("Identity", x)
    last = [*(i for i in range(4) if i not in axes), *sorted(axes)]
    moved = e.cast(e.transpose(x, last), "float32")
    sizes = e.constant([new[axis] for axis in last])
    options = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    made = e.op("Resize", moved, None, None, sizes, **options)
    if DTYPES[x.data_type].kind != "f":
        made = e.op("Round", made)
    return e.transpose(e.cast(made, x.data_type), [last.index(axis) for axis in range(4)])


def _nearest(old: int, new: int) -> list[int]:
    """Return for each new position the old one with the nearest centre, the lower of two."""
    places = (-((2 * i + 1) * -old // (2 * new)) - 1 for i in range(new))
    return [min(max(place, 0), old - 1) for place in places]
