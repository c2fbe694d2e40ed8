"""Means of neighbouring channels as a product, which engines with fast convolutions do in place.

Local response normalization comes as squares padded along the channels, laid out anew, pooled over
windows of channels and laid out as before: five walks through memory. A convolution of one element
with a band of weights is one, and what scales and shifts its result becomes part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

MOST_CHANNELS = 512
"""Up to which a product of all channels takes less than the walks."""


def pool_channels_by_products(graph: Graph, target: Target) -> Graph:
    """Put a convolution in the place of pad, reshape, average_pool2d and reshape."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        means = means_of_channels(graph, node)
        if means is None:
            return None
        source = means.source
        if source.data_type != "float32" or source.shape[1] > MOST_CHANNELS:
            return None
        return [_convolved(rewriter, rewriter.map[source], means.window, means.before)]

    return Rewriter(graph).run(rule)


@dataclass(frozen=True, slots=True)
class Means:
    """Means of neighbouring channels of an NCHW image, of zeros around it, too.

    Attributes:
        source: The image.
        window: Channels of each mean.
        before: Zeros before the first channel.
    """

    source: Value
    window: int
    before: int


def means_of_channels(graph: Graph, node: Node) -> Means | None:
    """What a node has made of pad, reshape, average_pool2d and itself, a reshape."""
    if node.op != "reshape":
        return None
    steps = [node]
    for op in ("average_pool2d", "reshape", "pad"):
        maker = graph.producers.get(next(steps[-1].operands))
        if maker is None or maker.op != op or graph.uses[maker.output] > 1:
            return None
        steps.append(maker)
    if not _pools_channels(*steps):
        return None
    _, pooling, _, pad = steps
    (source,) = pad.operands
    window = pooling.attrs["window_dimensions"][0]
    return Means(source, window, pad.attrs["beginning_padding"][1])


def _convolved(rewriter: Rewriter, source: MLOperand, window: int, before: int) -> MLOperand:
    """The means of windows that begin so many channels `before` each."""
    places = np.arange(source.shape[1])
    apart = places[np.newaxis] - places[:, np.newaxis] + before
    band = np.where((apart >= 0) & (apart < window), np.float32(1 / window), np.float32(0))
    weights = rewriter.add_constant(band.reshape(*band.shape, 1, 1), "float32")
    return rewriter.conv2d(source, weights)


def _pools_channels(after: Node, pooling: Node, before: Node, pad: Node) -> bool:
    """Whether these nodes make means of neighbouring channels, zeros around them."""
    (source,) = pad.operands
    if source.rank != 4 or after.output.shape != source.shape:
        return False
    batch, channels, height, width = source.shape
    begins, ends = pad.attrs["beginning_padding"], pad.attrs["ending_padding"]
    window = begins[1] + ends[1] + 1
    plain = {"padding": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1), "layout": "nchw"}
    return (
        (pad.attrs["mode"], pad.attrs["value"]) == ("constant", 0)
        and tuple(begins) == (0, begins[1], 0, 0)
        and tuple(ends) == (0, ends[1], 0, 0)
        and before.output.shape == (batch, 1, channels + window - 1, height * width)
        and tuple(pooling.attrs["window_dimensions"]) == (window, 1)
        and all(_plain(pooling.attrs[name]) == value for name, value in plain.items())
    )


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, (list, tuple)) else value
