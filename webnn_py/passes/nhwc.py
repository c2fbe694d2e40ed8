"""Images with their channels side by side (NHWC), for kernels that load several of them at once.

A convolution multiplies all channels under one tap of its window before it goes to the next. Side
by side they take one place to compute, one comparison with the border and one load.
"""

from __future__ import annotations

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.pool_channels import Means, means_of_channels
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.simplify import simplify
from webnn_py.passes.target import Target
from webnn_py.passes.transposes import cancel_transposes

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations from NCHW to NHWC, and back."""

FOUR = 4
"""Elements that are loaded at once."""

LAYOUTS = {
    "conv2d": "input_layout",
    "average_pool2d": "layout",
    "max_pool2d": "layout",
    "l2_pool2d": "layout",
}
"""By operator, the option that names the layout."""


def interleave_channels(graph: Graph, target: Target) -> Graph:
    """Convolve and pool with channels last, and transpose only where others need it.

    Where channels of a convolution come in other numbers than fours, such as those of small groups,
    they would be loaded one by one: the graph stays as it is. So it does where there would be as
    many transposes as convolutions.
    """
    convolutions = [node for node in graph.nodes if node.op == "conv2d"]
    if not convolutions or not all(map(_is_in_fours, convolutions)):
        return graph
    images: dict[Value, MLOperand] = {}

    def interleaved(rewriter: Rewriter, value: Value) -> MLOperand:
        if value not in images:
            images[value] = rewriter.transpose(rewriter.map[value], permutation=LAST)
        return images[value]

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        shuffled = _shuffled(graph, node)
        if shuffled is not None:
            value, groups = shuffled
            batch, channels, height, width = value.shape
            parts = (batch, height, width, groups, channels // groups)
            made = rewriter.reshape(interleaved(rewriter, value), new_shape=parts)
            made = rewriter.transpose(made, permutation=(0, 1, 2, 4, 3))
            made = rewriter.reshape(made, new_shape=(batch, height, width, channels))
            return [rewriter.transpose(made, permutation=FIRST)]
        means = means_of_channels(graph, node)
        if means is not None:
            made = _pooled(rewriter, interleaved(rewriter, means.source), means)
            return [rewriter.transpose(made, permutation=FIRST)]
        option = LAYOUTS.get(node.op)
        if option is None or node.attrs[option] != "nchw":
            return None
        data = node.inputs[0]
        assert data is not None
        image = interleaved(rewriter, data)  # by name, as it may be its own filter
        (made,) = rewriter.apply_again(node, None, input=image, **{option: "nhwc"})
        return [rewriter.transpose(made, permutation=FIRST)]

    moved = cancel_transposes(simplify(Rewriter(graph).run(rule), target), target)
    apart = _transposes(moved) - _transposes(graph)
    if any(node.output.data_type == "float32" for node in convolutions):
        # Few convolutions between normalizations gain less than these lose.
        apart += 2 * sum(means_of_channels(graph, node) is not None for node in graph.nodes)
    return moved if apart < len(convolutions) else graph


def _pooled(rewriter: Rewriter, image: MLOperand, means: Means) -> MLOperand:
    """The means of neighbouring channels that lie side by side: each pixel is a row."""
    batch, height, width, channels = image.shape
    after = means.window - 1 - means.before
    made = rewriter.pad(image, [0, 0, 0, means.before], [0, 0, 0, after])
    rows = (batch, 1, height * width, channels + means.window - 1)
    made = rewriter.reshape(made, new_shape=rows)
    made = rewriter.average_pool2d(made, window_dimensions=(1, means.window))
    return rewriter.reshape(made, new_shape=image.shape)


def _transposes(graph: Graph) -> int:
    return sum(node.op == "transpose" for node in graph.nodes)


def _is_in_fours(node: Node) -> bool:
    """Whether a convolution loads channels by four, or so few that it matters not."""
    filter_ = node.inputs[1]
    assert filter_ is not None
    (ins,) = dims(filter_.shape, node.attrs["filter_layout"], "i")
    return ins < FOUR or ins % FOUR == 0


def _shuffled(graph: Graph, node: Node) -> tuple[Value, int] | None:
    """The image whose channels a node shuffles, and the groups that they come from.

    None unless it is the last of reshape, transpose and reshape that do so.
    """
    if node.op != "reshape":
        return None
    transpose = graph.producers.get(next(node.operands))
    if transpose is None or transpose.op != "transpose":
        return None
    if tuple(transpose.attrs["permutation"]) != (0, 2, 1, 3, 4):
        return None
    split = graph.producers.get(next(transpose.operands))
    if split is None or split.op != "reshape":
        return None
    value = next(split.operands)
    groups = split.output.shape[1]
    shape = value.shape[:1], value.shape[2:]
    if value.rank != 4 or (split.output.shape[:1], split.output.shape[3:]) != shape:
        return None
    return (value, groups) if node.output.shape == value.shape else None
