"""Pass that moves operators which shrink images before a concat, a shuffle or a 1 x 1 convolution.

A concat copies less if the pooling comes first. A channel shuffle copies less if a depthwise
convolution comes first, with its filters in the unshuffled order. A 1 x 1 convolution of means
equals the mean of the convolution, except for rounding.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.convolution import dims
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

POOLINGS = ("average_pool2d", "l2_pool2d", "max_pool2d")


def pool_before_concat(graph: Graph, target: Target) -> Graph:
    """Swap poolings with the concat or 1 x 1 conv2d before, and depthwise conv2d with shuffles."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op in POOLINGS:
            return _pool_first(rewriter, node)
        if node.op == "conv2d":
            return _shuffle_last(rewriter, node, target)
        return None

    return Rewriter(graph).run(rule)


def _makes_smaller(node: Node, source: Value) -> bool:
    """Whether a node's output has fewer elements than its input; False if sizes are open."""
    sizes = (*source.shape, *node.output.shape)
    return not is_open(sizes) and math.prod(node.output.shape) < math.prod(source.shape)


def _pool_first(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """Pool the operands of the concat or 1 x 1 convolution before a pooling."""
    (source,) = node.operands
    before = rewriter.graph.producers.get(source)
    layout = node.attrs["layout"]
    if before is None or rewriter.graph.uses[source] > 1 or not _makes_smaller(node, source):
        return None

    def pooled(value: Value) -> MLOperand:
        (made,) = rewriter.apply_again(node, {source: rewriter.map[value]})
        return made

    if before.op == "concat" and before.attrs["axis"] == layout.index("c"):
        return [rewriter.concat(list(map(pooled, before.operands)), before.attrs["axis"])]
    if node.op != "average_pool2d" or before.op != "conv2d" or not _is_pointwise(before):
        return None
    images, *others = before.operands
    if before.attrs["input_layout"] != layout or images.data_type != "float32":
        return None
    operands = {images: pooled(images), **{value: rewriter.map[value] for value in others}}
    return rewriter.apply_again(before, operands)


def _is_pointwise(node: Node) -> bool:
    """Whether a convolution is 1 x 1 with stride 1 and without padding."""
    images, filters, *_ = node.operands
    attrs = node.attrs
    window = dims(filters.shape, attrs["filter_layout"], "hw")
    return (
        tuple(window) == (1, 1)
        and dims(images.shape, attrs["input_layout"], "hw")
        == dims(node.output.shape, attrs["input_layout"], "hw")
        and not any(attrs["padding"])
    )


def _shuffle_last(rewriter: Rewriter, node: Node, target: Target) -> list[MLOperand] | None:
    """Move the channel shuffle before a depthwise convolution behind it."""
    source, weights, *bias = node.operands
    if not (_is_depthwise(node) and _makes_smaller(node, source)):
        return None
    steps = _match_shuffle(rewriter.graph, source)
    arrays = [rewriter.array_of(rewriter.map[value]) for value in (weights, *bias)]
    if steps is None or any(array is None for array in arrays):
        return None
    split, transpose = steps
    order = np.arange(source.shape[1]).reshape(split.output.shape[1:-2])
    order = order.transpose([axis - 1 for axis in transpose.attrs["permutation"][1:-2]]).reshape(-1)
    what = "channels back", order.tobytes()
    made = target.derive(what, arrays, lambda: tuple(_unshuffle(array, order) for array in arrays))
    constants = dict(zip((weights, *bias), made, strict=True))
    operands = {v: rewriter.add_constant(array, "float32") for v, array in constants.items()}
    (before,) = split.operands
    (smaller,) = rewriter.apply_again(node, {source: rewriter.map[before], **operands})
    images = node.output.shape[-2:]
    parts = rewriter.reshape(smaller, [*split.output.shape[:-2], *images])
    transposed = rewriter.transpose(parts, permutation=transpose.attrs["permutation"])
    return [rewriter.reshape(transposed, node.output.shape)]


def _is_depthwise(node: Node) -> bool:
    """Whether a convolution has one filter and one output channel for each input channel."""
    attrs, (source, weights, *_) = node.attrs, node.operands
    layouts = attrs["input_layout"], attrs["filter_layout"]
    return (
        source.data_type == "float32"
        and layouts == ("nchw", "oihw")
        and attrs["groups"] == source.shape[1] == weights.shape[0]
    )


def _match_shuffle(graph: Graph, value: Value) -> tuple[Node, Node] | None:
    """Match a channel shuffle; return its first reshape and its transpose, or None."""
    found: list[Node] = []
    for op in ("reshape", "transpose", "reshape"):
        node = graph.producers.get(value)
        if node is None or node.op != op or graph.uses[value] > 1:
            return None
        found.append(node)
        (value,) = node.operands
    after, transpose, split = found
    parts, order = split.output.shape, transpose.attrs["permutation"]
    batch, channels, *images = value.shape
    fixed = [0, len(parts) - 2, len(parts) - 1]
    if (
        after.output.shape != value.shape
        or (parts[0], *parts[-2:]) != (batch, *images)
        or math.prod(parts[1:-2]) != channels
        or [order[axis] for axis in fixed] != fixed
    ):
        return None
    return split, transpose


def _unshuffle(array: Array, order: Array) -> Array:
    """Return the array whose elements in `order` are those of `array`."""
    made = np.empty_like(array)
    made[order] = array
    return made
