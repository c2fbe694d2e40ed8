"""Means of neighbouring channels as a product, which engines with fast convolutions do in place.

Local response normalization comes as squares padded along the channels, laid out anew, pooled over
windows of channels and laid out as before: five walks through memory. A convolution of one element
with a band of weights is one, and what scales and shifts its result becomes part of it. Most of
the weights of many channels are 0: then groups of them, each with the neighbours that its windows
reach, take less, and the walk that lays these beside each other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from webnn_py.ir import Array, Graph, Node
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

Convolved = Callable[[Rewriter, MLOperand, int, int], MLOperand]
"""Given a window's length, and how many of it lie before."""

MOST_CHANNELS = 512
"""Up to which a product of all channels takes less than the walks."""

GROUP = 32
"""Channels of one group."""


def pool_channels_by_products(graph: Graph, target: Target) -> Graph:
    """Put a convolution in the place of pad, reshape, average_pool2d and reshape."""
    return _pooled(graph, _convolved)


def pool_channels_by_groups(graph: Graph, target: Target) -> Graph:
    """The same, by groups where these have less than half of the weights."""
    return _pooled(graph, _convolved_by_groups)


def _pooled(graph: Graph, convolved: Convolved) -> Graph:
    uses = graph.uses
    makers = graph.producers

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op != "reshape":
            return None
        steps = [node]
        for op in ("average_pool2d", "reshape", "pad"):
            maker = makers.get(next(steps[-1].operands))
            if maker is None or maker.op != op or uses[maker.output] > 1:
                return None
            steps.append(maker)
        if not _pools_channels(*steps):
            return None
        _, pooling, _, pad = steps
        (source,) = pad.operands
        window = pooling.attrs["window_dimensions"][0]
        before = pad.attrs["beginning_padding"][1]
        return [convolved(rewriter, rewriter.map[source], window, before)]

    return Rewriter(graph).run(rule)


def _convolved(rewriter: Rewriter, source: MLOperand, window: int, before: int) -> MLOperand:
    """The means of windows that begin so many channels `before` each."""
    places = np.arange(source.shape[1])
    weights = _filters(places, places, window, before)
    return rewriter.conv2d(source, rewriter.add_constant(weights, "float32"))


def _convolved_by_groups(
    rewriter: Rewriter, source: MLOperand, window: int, before: int
) -> MLOperand:
    """The same, of each group by itself."""
    channels, reach = source.shape[1], GROUP + window - 1
    if channels % GROUP or 2 * reach > channels:
        return _convolved(rewriter, source, window, before)
    groups = np.arange(channels).reshape(-1, GROUP)
    # At either end more neighbours than are needed, in the place of what lies outside.
    first = np.clip(groups[:, :1] - before, 0, channels - reach)
    read = first + np.arange(reach)
    weights = [_filters(*two, window, before) for two in zip(groups, read, strict=True)]
    indices = rewriter.add_constant(read.reshape(-1).astype(np.int32), "int32")
    laid = _laid(rewriter, source, indices)
    filters = rewriter.add_constant(np.concatenate(weights), "float32")
    return rewriter.conv2d(laid, filters, groups=len(groups))


def _laid(rewriter: Rewriter, source: MLOperand, indices: MLOperand) -> MLOperand:
    """Channels by their indices; of squares, what is squared, as what follows reads that, too."""
    maker = rewriter.producer_of(source)
    if maker is None or maker.op != "mul" or len(set(maker.inputs)) > 1:
        return rewriter.gather(source, indices, axis=1)
    laid = rewriter.gather(MLOperand(rewriter, next(maker.operands)), indices, axis=1)
    return rewriter.mul(laid, laid)


def _filters(made: Array, read: Array, window: int, before: int) -> Array:
    """A window's share where a channel that is made has one that is read in its window, else 0."""
    apart = read[np.newaxis] - made[:, np.newaxis] + before
    band = np.where((apart >= 0) & (apart < window), np.float32(1 / window), np.float32(0))
    return band.reshape(*band.shape, 1, 1)


def _pools_channels(after: Node, pooling: Node, before: Node, pad: Node) -> bool:
    """Whether these nodes make means of neighbouring channels, zeros around them."""
    (source,) = pad.operands
    if source.rank != 4 or source.data_type != "float32" or after.output.shape != source.shape:
        return False
    batch, channels, height, width = source.shape
    begins, ends = pad.attrs["beginning_padding"], pad.attrs["ending_padding"]
    window = begins[1] + ends[1] + 1
    plain = {"padding": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1), "layout": "nchw"}
    return (
        channels <= MOST_CHANNELS
        and (pad.attrs["mode"], pad.attrs["value"]) == ("constant", 0)
        and tuple(begins) == (0, begins[1], 0, 0)
        and tuple(ends) == (0, ends[1], 0, 0)
        and before.output.shape == (batch, 1, channels + window - 1, height * width)
        and tuple(pooling.attrs["window_dimensions"]) == (window, 1)
        and all(_plain(pooling.attrs[name]) == value for name, value in plain.items())
    )


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, (list, tuple)) else value
