"""Pass that changes convolutions and poolings from NCHW to NHWC.

A convolution multiplies all channels under one tap before it goes to the next tap. In NHWC, four
channels need one address, one comparison with the border and one load.
"""

from __future__ import annotations

from typing import Any

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.channel_groups import ChannelGroups
from webnn_py.passes.pool_channels import Means, means_of_channels
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.simplify import simplify
from webnn_py.passes.target import Target
from webnn_py.passes.transposes import cancel_transposes, is_movable

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations from NCHW to NHWC, and from NHWC to NCHW."""

SWAPPED = (0, 2, 1)
"""Permutation between rows of channels and rows of pixels."""

MEAN_COST = 2
"""What means of channels, or of their groups, cost in NHWC and float32, in transposes."""

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
    transposes as the graph has convolutions. Means of channels, or of their groups, count as
    MEAN_COST transposes; for tensor cores, groups count nothing, as convolutions gain more.
    """
    convolutions = [node for node in graph.nodes if node.op in ("conv2d", "conv2d_integer")]
    if not convolutions or not all(map(_is_in_fours, convolutions)):
        return graph
    images = _Images(graph)
    result = cancel_transposes(simplify(Rewriter(graph).run(images.rule), target), target)
    cost = _count_transposes(result) - _count_transposes(graph)
    if any(node.output.data_type == "float32" for node in convolutions):
        cost += MEAN_COST * sum(means_of_channels(graph, node) is not None for node in graph.nodes)
        if not target.has_tensor_cores:
            cost += MEAN_COST * sum(map(images.groups.starts_at, graph.nodes))
    return result if cost < len(convolutions) else graph


class _Images:
    """The images of a graph in NHWC.

    Args:
        graph: The graph.

    Attributes:
        groups: Its normalizations of groups of channels.
    """

    def __init__(self, graph: Graph) -> None:
        self.groups = ChannelGroups(graph)
        self._graph = graph
        self._images: dict[Value, MLOperand] = {}
        self._moved: set[Value] = set()

    def rule(self, rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        """Compute a node in NHWC, with transposes around it; return None if it stays as it is."""
        source = next(node.operands, None)
        if source in self._moved:
            if _is_image_in_rows(node):
                batch, channels, pixels = node.output.shape
                image = self._image(rewriter, source)
                rows = rewriter.reshape(image, new_shape=(batch, pixels, channels))
                return [rewriter.transpose(rows, permutation=SWAPPED)]
            if _splits_channels(node):
                image = self._image(rewriter, source)
                parts = rewriter.apply_again(node, None, input=image, axis=3)
                self._moved.update(node.outputs)
                return [rewriter.transpose(part, permutation=TO_NCHW) for part in parts]
        made = self._made_by(rewriter, node)
        follows = is_movable(self._graph, node) and not self._moved.isdisjoint(node.operands)
        if made is not None or follows:
            self._moved.update(node.outputs)
        return None if made is None else [rewriter.transpose(made, permutation=TO_NCHW)]

    def _image(self, rewriter: Rewriter, value: Value) -> MLOperand:
        """Return an image in NHWC."""
        if value not in self._images:
            self._images[value] = rewriter.transpose(rewriter.map[value], permutation=TO_NHWC)
        return self._images[value]

    def _made_by(self, rewriter: Rewriter, node: Node) -> MLOperand | None:
        """Return the image that a node makes, in NHWC; None if it should stay as it is."""
        shuffled = _match_shuffle(self._graph, node)
        if shuffled is not None:
            value, groups = shuffled
            batch, channels, height, width = value.shape
            parts = (batch, height, width, groups, channels // groups)
            made = rewriter.reshape(self._image(rewriter, value), new_shape=parts)
            made = rewriter.transpose(made, permutation=(0, 1, 2, 4, 3))
            return rewriter.reshape(made, new_shape=(batch, height, width, channels))
        means = means_of_channels(self._graph, node)
        if means is not None:
            return _pool_rows(rewriter, self._image(rewriter, means.source), means)
        if self.groups.starts_at(node):
            (source,) = node.operands
            image = self._image(rewriter, source)
            self.groups.start(rewriter, node, image, source in self._moved)
            return None
        if (normalized := self.groups.move(rewriter, node)) is not None:
            return normalized
        if _is_image_from_pixels(self._graph, node):
            batch, channels, height, width = node.output.shape
            rows = rewriter.transpose(rewriter.map[next(node.operands)], permutation=SWAPPED)
            return rewriter.reshape(rows, new_shape=(batch, height, width, channels))
        options = _options(node)
        if options is None:
            return None
        data = node.inputs[0]
        assert data is not None
        image = self._image(rewriter, data)  # pass it by name: the filter may be the same value
        return rewriter.apply_again(node, None, input=image, **options)[0]


def _pool_rows(rewriter: Rewriter, image: MLOperand, means: Means) -> MLOperand:
    """Build means of neighbouring channels as a pooling in which each pixel is a row."""
    batch, height, width, channels = image.shape
    after = means.window - 1 - means.before
    made = rewriter.pad(image, [0, 0, 0, means.before], [0, 0, 0, after])
    rows = (batch, 1, height * width, channels + means.window - 1)
    made = rewriter.reshape(made, new_shape=rows)
    made = rewriter.average_pool2d(made, window_dimensions=(1, means.window))
    return rewriter.reshape(made, new_shape=image.shape)


def _options(node: Node) -> dict[str, Any] | None:
    """Return the options by which an operator takes NHWC in place of NCHW; None if it has none."""
    if node.op == "resample2d" and tuple(node.attrs["axes"]) == (2, 3):
        return {"axes": (1, 2)}
    option = LAYOUTS.get(node.op)
    return None if option is None or node.attrs[option] != "nchw" else {option: "nhwc"}


def _splits_channels(node: Node) -> bool:
    """Whether a node splits the channels of an NCHW image."""
    return node.op == "split" and node.outputs[0].rank == 4 and node.attrs["axis"] == 1


def _is_image_in_rows(node: Node) -> bool:
    """Whether a node makes an NCHW image one row for each channel."""
    if node.op != "reshape" or next(node.operands).rank != 4:
        return False
    *begin, height, width = next(node.operands).shape
    return node.output.shape == (*begin, height * width)


def _is_image_from_pixels(graph: Graph, node: Node) -> bool:
    """Whether a node makes an NCHW image of rows that were one a pixel before a transpose."""
    if node.op != "reshape" or node.output.rank != 4:
        return False
    rows = next(node.operands)
    swap = graph.producers.get(rows)
    return rows.shape[:2] == node.output.shape[:2] and swap is not None and _is_swap(swap)


def _is_swap(node: Node) -> bool:
    return node.op == "transpose" and tuple(node.attrs["permutation"]) == SWAPPED


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
