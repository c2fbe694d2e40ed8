"""Pass that replaces means of whole images by poolings.

An engine with the NCHWc layout pools in that layout, but must convert the whole image for a
reduction. If the channels do not fill whole blocks, the reduction is faster.
"""

from __future__ import annotations

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK_CHANNELS
from webnn_py.passes.target import Target


def mean_to_pool(graph: Graph, target: Target) -> Graph:
    """Replace float32 reduce_mean over the last two of four dimensions by average_pool2d.

    Requires: the channels fill whole blocks.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "reduce_mean" or node.output.data_type != "float32":
            return None
        (source,) = node.operands
        if source.rank != 4 or sorted(node.attrs["axes"]) != [2, 3]:
            return None
        channels = source.shape[1]
        if is_dimension(channels) or channels % BLOCK_CHANNELS:
            return None
        made = rewriter.average_pool2d(rewriter.map[source])
        if not node.attrs["keep_dimensions"]:
            made = rewriter.reshape(made, node.output.shape)
        return [made]

    return Rewriter(graph).run(rule)
