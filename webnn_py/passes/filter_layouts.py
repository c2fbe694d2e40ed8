"""Filters of convolutions with their output channels side by side.

Kernels that multiply through tiles read so many channels of one tap at once, and all taps of one
place in the window, which lie in the image side by side, one after the other.
"""

from __future__ import annotations

import functools

from webnn_py.core.at_once import at_once
from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.contiguous import contiguous
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

WANTED = "hwio"
KIND = "filter"
"""The first word of what is computed here."""


def put_channels_last(graph: Graph, target: Target) -> Graph:
    """Lay out the constant filters of convolutions anew."""
    filters = {node: array for node in graph.nodes if (array := _filter(graph, node)) is not None}
    made = at_once(
        [functools.partial(_derived, target, array) for array in filters.values()],
        sum(array.nbytes for array in filters.values()),
        target.threads,
    )
    laid_out = dict(zip(filters, made, strict=True))

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node not in laid_out:
            return None
        filter_ = node.inputs[1]
        assert filter_ is not None
        operands = {value: rewriter.map[value] for value in node.operands}
        operands[filter_] = rewriter.add_constant(laid_out[node], filter_.data_type)
        return rewriter.apply_again(node, operands, filter_layout=WANTED)

    return Rewriter(graph).run(rule)


def _filter(graph: Graph, node: Node) -> Array | None:
    """The filter of a convolution that is to be laid out anew."""
    if node.op != "conv2d":
        return None
    filter_ = node.inputs[1]
    if filter_ is None or node.attrs["filter_layout"] != "oihw":
        return None
    channels, ins = filter_.shape[:2]
    if channels // node.attrs["groups"] < 4 or ins * channels % 4:
        return None
    return graph.constants.get(filter_)


def _derived(target: Target, array: Array) -> Array:
    (made,) = target.derive((KIND, repr(WANTED)), [array], lambda: (laid_out(array),))
    return made


def laid_out(array: Array) -> Array:
    """OIHW as HWIO."""
    return contiguous(array.transpose(2, 3, 1, 0))
