"""Pass that replaces a convolution of a concat by a sum of convolutions of the concat's operands.

If a convolution has many input and few output channels, adding the partial results costs less than
copying the inputs together.
"""

from __future__ import annotations

import itertools

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.scale_channels import BLOCK_CHANNELS
from webnn_py.passes.target import Target


def convolve_parts(graph: Graph, target: Target) -> Graph:
    """Replace conv2d of a concat by convolutions and additions.

    Requires: float32, constant filters, and a concat along the channels that nothing else reads.
    """

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "conv2d" or node.output.data_type != "float32":
            return None
        source, filters, *_ = node.operands
        array, concat = graph.constants.get(filters), graph.producers.get(source)
        if array is None or concat is None or graph.uses[source] > 1 or not _pays(concat, node):
            return None
        parts = list(concat.operands)
        ends = list(itertools.accumulate(value.shape[1] for value in parts))[:-1]
        made = target.derive(("split", *ends), [array], lambda: _split(array, ends))
        operands = {value: rewriter.map[value] for value in node.operands}
        total: MLOperand | None = None
        for value, weights in zip(parts, made, strict=True):
            operands[source] = rewriter.map[value]
            operands[filters] = rewriter.add_constant(weights, "float32")
            if total is None:
                (total,) = rewriter.apply_again(node, operands)
            else:
                (term,) = rewriter.apply_again(node, operands, bias=None)
                total = rewriter.add(total, term)
        return None if total is None else [total]

    return Rewriter(graph).run(rule)


def _pays(concat: Node, node: Node) -> bool:
    """Whether the channels added are at most half of those that the concat copies.

    Each part must consist of whole blocks of channels.
    """
    attrs = node.attrs
    if (concat.op, attrs["groups"], attrs["input_layout"], attrs["filter_layout"]) != (
        "concat",
        1,
        "nchw",
        "oihw",
    ):
        return False
    sizes = [value.shape[1] for value in concat.operands]
    added = node.output.shape[1] * (len(sizes) - 1)
    return (
        concat.attrs["axis"] == 1
        and not any(is_dimension(size) or size % BLOCK_CHANNELS for size in sizes)
        and 2 * added <= sum(sizes)
    )


def _split(filters: Array, ends: list[int]) -> tuple[Array, ...]:
    return tuple(map(np.ascontiguousarray, np.split(filters, ends, axis=1)))
