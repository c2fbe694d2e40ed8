"""Pass that changes convolutions and poolings from NCHW to NHWC.

A convolution multiplies all channels under one tap before it goes to the next tap. In NHWC, four
channels need one address, one comparison with the border and one load.
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

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations from NCHW to NHWC, and from NHWC to NCHW."""

VECTOR_ELEMENTS = 4
"""Number of elements that a kernel loads at once."""

LAYOUTS = {
    "conv2d": "input_layout",
    "conv2d_integer": "input_layout",
    "average_pool2d": "layout",
    "max_pool2d": "layout",
    "l2_pool2d": "layout",
}
"""The option of each operator that names the layout."""


def to_nhwc(graph: Graph, target: Target) -> Graph:
    """Convolve and pool in NHWC, with transposes where other operators need NCHW.

    The graph stays unchanged if a convolution's channels are not a multiple of four, because its
    kernel would load them one by one. It also stays unchanged if the pass would add as many
    transposes as the graph has convolutions.
    """
    convolutions = [node for node in graph.nodes if node.op in ("conv2d", "conv2d_integer")]
    if not convolutions or not all(map(_is_in_fours, convolutions)):
        return graph
    images: dict[Value, MLOperand] = {}

    def interleaved(rewriter: Rewriter, value: Value) -> MLOperand:
        if value not in images:
            images[value] = rewriter.transpose(rewriter.map[value], permutation=TO_NHWC)
        return images[value]

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        shuffled = _match_shuffle(graph, node)
        if shuffled is not None:
            value, groups = shuffled
            batch, channels, height, width = value.shape
            parts = (batch, height, width, groups, channels // groups)
            made = rewriter.reshape(interleaved(rewriter, value), new_shape=parts)
            made = rewriter.transpose(made, permutation=(0, 1, 2, 4, 3))
            made = rewriter.reshape(made, new_shape=(batch, height, width, channels))
            return [rewriter.transpose(made, permutation=TO_NCHW)]
        means = means_of_channels(graph, node)
        if means is not None:
            made = _pool_rows(rewriter, interleaved(rewriter, means.source), means)
            return [rewriter.transpose(made, permutation=TO_NCHW)]
        option = LAYOUTS.get(node.op)
        if option is None or node.attrs[option] != "nchw":
            return None
        data = node.inputs[0]
        assert data is not None
        image = interleaved(rewriter, data)  # pass it by name: the filter may be the same value
        (made,) = rewriter.apply_again(node, None, input=image, **{option: "nhwc"})
        return [rewriter.transpose(made, permutation=TO_NCHW)]

    moved = cancel_transposes(simplify(Rewriter(graph).run(rule), target), target)
    cost = _count_transposes(moved) - _count_transposes(graph)
    if any(node.output.data_type == "float32" for node in convolutions):
        # Means of channels cost more in NHWC; count each as two transposes.
        cost += 2 * sum(means_of_channels(graph, node) is not None for node in graph.nodes)
    return moved if cost < len(convolutions) else graph


def _pool_rows(rewriter: Rewriter, image: MLOperand, means: Means) -> MLOperand:
    """Build means of neighbouring channels as a pooling in which each pixel is a row."""
    batch, height, width, channels = image.shape
    after = means.window - 1 - means.before
    made = rewriter.pad(image, [0, 0, 0, means.before], [0, 0, 0, after])
    rows = (batch, 1, height * width, channels + means.window - 1)
    made = rewriter.reshape(made, new_shape=rows)
    made = rewriter.average_pool2d(made, window_dimensions=(1, means.window))
    return rewriter.reshape(made, new_shape=image.shape)


def _count_transposes(graph: Graph) -> int:
    return sum(node.op == "transpose" for node in graph.nodes)


def _is_in_fours(node: Node) -> bool:
    """Whether a convolution's input channels are a multiple of four, or fewer than four."""
    filter_ = node.inputs[1]
    assert filter_ is not None
    (ins,) = dims(filter_.shape, node.attrs["filter_layout"], "i")
    return ins < VECTOR_ELEMENTS or ins % VECTOR_ELEMENTS == 0


def _match_shuffle(graph: Graph, node: Node) -> tuple[Value, int] | None:
    """Match a channel shuffle: reshape, transpose, and `node`, a reshape.

    Returns:
        The image and its number of groups, or None.
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
