"""Means of whole images as poolings.

An engine that lays out channels in blocks has poolings that read these, and lays them out as before
for a reduction: of all elements, where its result is one for each channel. Other channels than
those that fill blocks are reduced faster.
"""

from __future__ import annotations

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK
from webnn_py.passes.target import Target


def average_images_by_poolings(graph: Graph, target: Target) -> Graph:
    """Put average_pool2d in the place of reduce_mean over the last two of four dimensions."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "reduce_mean" or node.output.data_type != "float32":
            return None
        (source,) = node.operands
        if source.rank != 4 or sorted(node.attrs["axes"]) != [2, 3]:
            return None
        channels = source.shape[1]
        if is_dimension(channels) or channels % BLOCK:
            return None
        made = rewriter.average_pool2d(rewriter.map[source])
        if not node.attrs["keep_dimensions"]:
            made = rewriter.reshape(made, node.output.shape)
        return [made]

    return Rewriter(graph).run(rule)
