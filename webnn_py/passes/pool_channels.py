"""Pass that replaces means of neighbouring channels by a 1 x 1 convolution with a band matrix.

Importers express the means of local response normalization as pad, reshape, average_pool2d and
reshape: several passes through memory. The convolution takes one, and later passes fold scales and
shifts of its result into it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

MAX_CHANNELS = 512
"""Most channels; with more, the product of all channels costs more than it saves."""


def pool_channels(graph: Graph, target: Target) -> Graph:
    """Replace pad, reshape, average_pool2d and reshape by a convolution, in float32."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        means = means_of_channels(graph, node)
        if means is None:
            return None
        source = means.source
        if source.data_type != "float32" or source.shape[1] > MAX_CHANNELS:
            return None
        return [_convolve_band(rewriter, rewriter.map[source], means.window, means.before)]

    return Rewriter(graph).run(rule)


@dataclass(frozen=True, slots=True)
class Means:
    """Means of neighbouring channels of an NCHW image padded with zeros.

    Attributes:
        source: The image.
        window: Number of channels in each mean.
        before: Number of zero channels before the first channel.
    """

    source: Value
    window: int
    before: int


def means_of_channels(graph: Graph, node: Node) -> Means | None:
    """Match means of channels: pad, reshape, average_pool2d, and `node`, a reshape."""
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


def _convolve_band(rewriter: Rewriter, source: MLOperand, window: int, before: int) -> MLOperand:
    """Build the means of windows that begin `before` channels before each channel."""
    channels = np.arange(source.shape[1])
    offset = channels[np.newaxis] - channels[:, np.newaxis] + before
    band = np.where((offset >= 0) & (offset < window), np.float32(1 / window), np.float32(0))
    weights = rewriter.add_constant(band.reshape(*band.shape, 1, 1), "float32")
    return rewriter.conv2d(source, weights)


def _pools_channels(after: Node, pooling: Node, before: Node, pad: Node) -> bool:
    """Whether these nodes compute means of neighbouring channels padded with zeros."""
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
        and all(_as_tuple(pooling.attrs[name]) == value for name, value in plain.items())
    )


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, (list, tuple)) else value
