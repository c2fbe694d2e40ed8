"""Lowerings of convolution and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.onnx_lowering.emitter import Emitter, NotLowered, Tensor, lowering
from webnn_py.ir import Node
from webnn_py.ops.convolution import dims, transposed_sizes

POOLED = ("float32", "float16", "int8", "uint8")


def _shape(node: Node, number: int) -> tuple[int, ...]:
    value = node.inputs[number]
    assert value is not None
    return value.shape


def _window(attrs: Any) -> dict[str, Any]:
    """Return padding, strides and dilations as ONNX attributes."""
    top, bottom, left, right = attrs["padding"]
    return {
        "pads": [top, left, bottom, right],
        "strides": list(attrs["strides"]),
        "dilations": list(attrs["dilations"]),
    }


@lowering
def conv2d(e: Emitter, node: Node, x: Tensor, filter: Tensor, bias: Tensor | None) -> Tensor:
    """Write Conv in NCHW with an OIHW filter."""
    layout, order = node.attrs["input_layout"], node.attrs["filter_layout"]
    moved, taps = e.reorder(x, layout, "nchw"), e.reorder(filter, order, "oihw")
    return e.reorder(convolution(e, node, moved, taps, bias), "nchw", layout)


def convolution(e: Emitter, node: Node, x: Tensor, filter: Tensor, bias: Tensor | None) -> Tensor:
    """Write Conv for operands that are already NCHW and OIHW."""
    attrs = node.attrs
    kernel = list(dims(_shape(node, 1), attrs["filter_layout"], "hw"))
    how = _window(attrs) | {"group": attrs["groups"], "kernel_shape": kernel}
    return e.op("Conv", x, filter, bias, **how)


@lowering
def conv_transpose2d(
    e: Emitter, node: Node, x: Tensor, filter: Tensor, bias: Tensor | None
) -> Tensor:
    """Write ConvTranspose in NCHW with an IOHW filter; the sizes determine the output padding."""
    attrs = node.attrs
    layout, order = attrs["input_layout"], attrs["filter_layout"]
    channels, *size = dims(_shape(node, 0), layout, "chw")
    if channels % attrs["groups"]:
        raise NotLowered(f"{channels} channels in {attrs['groups']} groups")
    kernel = list(dims(_shape(node, 1), order, "hw"))
    steps = attrs["strides"], attrs["dilations"]
    least = transposed_sizes(size, kernel, attrs["padding"], *steps)
    wanted = dims(node.output.shape, layout, "hw")
    added = [got - low for got, low in zip(wanted, least, strict=True)]
    how = _window(attrs) | {"group": attrs["groups"], "kernel_shape": kernel}
    moved, taps = e.reorder(x, layout, "nchw"), e.reorder(filter, order, "iohw")
    made = e.op("ConvTranspose", moved, taps, bias, output_padding=added, **how)
    return e.reorder(made, "nchw", layout)


def _pooling(node: Node) -> tuple[dict[str, Any], bool]:
    """Return the ONNX attributes, and whether ONNX accepts their padding.

    ONNX rounds the output's size differently. So the end padding is chosen such that the number of
    windows needs no rounding.
    """
    attrs = node.attrs
    size = dims(_shape(node, 0), attrs["layout"], "hw")
    wanted = dims(node.output.shape, attrs["layout"], "hw")
    window, steps, spread = (attrs[n] for n in ("window_dimensions", "strides", "dilations"))
    padding = attrs["padding"]
    reach = [(n - 1) * d + 1 for n, d in zip(window, spread, strict=True)]
    starts, ends = [padding[0], padding[2]], [padding[1], padding[3]]
    rounds_up = is_open(wanted) and attrs["output_shape_rounding"] == "ceil"
    # When ONNX rounds up, it drops windows that begin in the end padding.
    if rounds_up and any((*ends, *(step > n for step, n in zip(steps, reach, strict=True)))):
        raise NotLowered("ONNX rounds the number of windows over open dimensions otherwise")
    for i in () if rounds_up else (0, 1):
        least = (wanted[i] - 1) * steps[i] + reach[i] - size[i] - starts[i]
        counted = (size[i] + starts[i] + ends[i] - reach[i]) // steps[i] + 1
        if counted != wanted[i]:
            ends[i] = max(least, 0)
    fits = all(begin < n and end < n for begin, end, n in zip(starts, ends, window, strict=True))
    how = {"kernel_shape": list(window), "pads": [*starts, *ends], "strides": list(steps)}
    if set(spread) != {1}:
        how["dilations"] = list(spread)  # older versions lack this attribute
    return how | ({"ceil_mode": 1} if rounds_up else {}), fits


def _is_global(node: Node) -> bool:
    """Whether the window is the whole input, whose size is open."""
    attrs = node.attrs
    size = dims(_shape(node, 0), attrs["layout"], "hw")
    is_whole = tuple(attrs["window_dimensions"]) == tuple(size) and not any(attrs["padding"])
    return is_whole and is_open(size) and set(attrs["dilations"]) == {1}


def _padded(e: Emitter, x: Tensor, how: dict[str, Any], fill: float) -> Tensor:
    """Pad before the pooling, because ONNX rejects padding as large as the window."""
    top, left, bottom, right = how.pop("pads")
    widths = e.constant([0, 0, top, left, 0, 0, bottom, right])
    return e.op("Pad", x, widths, e.like(fill, x), mode="constant")


@lowering
def average_pool2d(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write AveragePool without padding in the count, or GlobalAveragePool."""
    layout = node.attrs["layout"]
    moved = e.reorder(x, layout, "nchw")
    if _is_global(node):
        return e.reorder(e.op("GlobalAveragePool", moved), "nchw", layout)
    how, fits = _pooling(node)
    if fits:
        made = e.op("AveragePool", moved, count_include_pad=0, **how)
        return e.reorder(made, "nchw", layout)
    size = dims(_shape(node, 0), layout, "hw")
    ones = e.op("Expand", e.like(1, x), e.constant([1, 1, *size]))
    inside = e.op("AveragePool", _padded(e, ones, dict(how), 0), **_unpadded(how))
    made = e.op("AveragePool", _padded(e, moved, dict(how), 0), **_unpadded(how))
    return e.reorder(e.op("Div", made, inside), "nchw", layout)


def _unpadded(how: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in how.items() if name != "pads"}


@lowering
def l2_pool2d(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write LpPool with p = 2, or GlobalLpPool."""
    layout = node.attrs["layout"]
    moved = e.reorder(x, layout, "nchw")
    if _is_global(node):
        return e.reorder(e.op("GlobalLpPool", moved, p=2), "nchw", layout)
    how, fits = _pooling(node)
    if not fits:
        moved = _padded(e, moved, dict(how), 0)
        how = _unpadded(how)
    return e.reorder(e.op("LpPool", moved, p=2, **how), "nchw", layout)


@lowering
def max_pool2d(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write MaxPool, or ReduceMax over the whole image."""
    if x.data_type not in POOLED:
        raise NotLowered(f"ONNX has no maximum pooling of {x.data_type}")
    layout = node.attrs["layout"]
    moved = e.reorder(x, layout, "nchw")
    if _is_global(node):
        greatest = e.op("ReduceMax", moved, e.constant([2, 3]), keepdims=1)
        return e.reorder(greatest, "nchw", layout)
    how, fits = _pooling(node)
    if not fits:
        info = DTYPES[x.data_type]
        moved = _padded(e, moved, dict(how), -np.inf if info.kind == "f" else info.min)
        how = _unpadded(how)
    return e.reorder(e.op("MaxPool", moved, **how), "nchw", layout)
