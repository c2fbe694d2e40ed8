"""Pooling windows cropped to what can meet the input, where much of them only meets padding."""

from __future__ import annotations

from webnn_py.ir import Node
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.ops.windows import Windows
from webnn_py.passes.rewrite import Rewriter


def crop(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """The same node over smaller windows and less padding, if it is a pool that has any."""
    if "window_dimensions" not in node.attrs:
        return None
    attrs = node.attrs
    layout, operand = attrs["layout"], next(node.operands)
    sizes, counts = (dims(value.shape, layout, "hw") for value in (operand, node.output))
    taps, padding = list(attrs["window_dimensions"]), list(attrs["padding"])
    for i in (0, 1):
        stride, dilation = attrs["strides"][i], attrs["dilations"][i]
        whole = Windows(sizes[i], padding[2 * i], taps[i], stride, dilation, counts[i])
        less = whole.cropped()
        behind = less.span - less.padding - sizes[i]
        # The options still say how many windows there are, where the last one ends behind all.
        if less.taps < taps[i] and behind >= 0:
            taps[i], padding[2 * i : 2 * i + 2] = less.taps, (less.padding, behind)
    if tuple(taps) == attrs["window_dimensions"]:
        return None
    return rewriter.apply_again(node, window_dimensions=taps, padding=padding, output_sizes=counts)
