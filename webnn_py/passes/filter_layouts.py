"""Filters of convolutions with their output channels side by side.

Kernels that multiply through tiles read so many channels of one tap at once, and all taps of one
place in the window, which lie in the image side by side, one after the other.
"""

from __future__ import annotations

import numpy as np

from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

WANTED = "hwio"
BLOCK = 64
"""Rows that are transposed at once: what is written stays in the cache."""


def put_channels_last(graph: Graph, target: Target) -> Graph:
    """Lay out the constant filters of planar convolutions anew."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "conv2d" or node.attrs["input_layout"] != "nchw":
            return None
        data, filter_, bias = node.inputs
        if data is None or filter_ is None or node.attrs["filter_layout"] != "oihw":
            return None
        array = graph.constants.get(filter_)
        channels, ins = filter_.shape[:2]
        if array is None or channels // node.attrs["groups"] < 4 or ins * channels % 4:
            return None
        (made,) = target.derive(("filter", WANTED), [array], lambda: (_laid_out(array),))
        laid_out = rewriter.add_constant(made, filter_.data_type)
        operands = {data: rewriter.map[data], filter_: laid_out}
        if bias is not None:
            operands[bias] = rewriter.map[bias]
        return rewriter.apply_again(node, operands, filter_layout=WANTED)

    return Rewriter(graph).run(rule)


def _laid_out(array: Array) -> Array:
    """OIHW as HWIO."""
    outs, ins, height, width = array.shape
    made = np.empty((height, width, ins, outs), array.dtype)
    for first in range(0, outs, BLOCK):
        made[..., first : first + BLOCK] = array[first : first + BLOCK].transpose(2, 3, 1, 0)
    return made
