"""What makes images smaller comes before what would copy or multiply all of them.

A concat before a pooling copies more than one behind it; so does a shuffle of channels before a
convolution of each channel by itself, whose filters are shuffled back in its place. Means of
products with the same weights everywhere are products of means; these are rounded elsewhere.
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


def shrink_images_first(graph: Graph, target: Target) -> Graph:
    """Swap poolings with concat or conv2d before them, and conv2d of each channel with shuffles."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op in POOLINGS:
            return _pooled_first(rewriter, node)
        if node.op == "conv2d":
            return _shuffled_results(rewriter, node, target)
        return None

    return Rewriter(graph).run(rule)


def _makes_smaller(node: Node, source: Value) -> bool:
    """Whether a node makes less of what it reads, as far as sizes are known."""
    sizes = (*source.shape, *node.output.shape)
    return not is_open(sizes) and math.prod(node.output.shape) < math.prod(source.shape)


def _pooled_first(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    """A pooling of what a concat or a convolution of one element is made of."""
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
    if node.op != "average_pool2d" or before.op != "conv2d" or not _is_of_one_element(before):
        return None
    images, *others = before.operands
    if before.attrs["input_layout"] != layout or images.data_type != "float32":
        return None
    operands = {images: pooled(images), **{value: rewriter.map[value] for value in others}}
    return rewriter.apply_again(before, operands)


def _is_of_one_element(node: Node) -> bool:
    """Whether a convolution makes each place of its result of the same place alone."""
    images, filters, *_ = node.operands
    attrs = node.attrs
    window = dims(filters.shape, attrs["filter_layout"], "hw")
    return (
        tuple(window) == (1, 1)
        and dims(images.shape, attrs["input_layout"], "hw")
        == dims(node.output.shape, attrs["input_layout"], "hw")
        and not any(attrs["padding"])
    )


def _shuffled_results(rewriter: Rewriter, node: Node, target: Target) -> list[MLOperand] | None:
    source, weights, *bias = node.operands
    if not (_is_of_each_channel(node) and _makes_smaller(node, source)):
        return None
    steps = _shuffle(rewriter.graph, source)
    arrays = [rewriter.array_of(rewriter.map[value]) for value in (weights, *bias)]
    if steps is None or any(array is None for array in arrays):
        return None
    apart, turned = steps
    order = np.arange(source.shape[1]).reshape(apart.output.shape[1:-2])
    order = order.transpose([axis - 1 for axis in turned.attrs["permutation"][1:-2]]).reshape(-1)
    what = "channels back", order.tobytes()
    made = target.derive(what, arrays, lambda: tuple(_put(array, order) for array in arrays))
    given = dict(zip((weights, *bias), made, strict=True))
    operands = {value: rewriter.add_constant(array, "float32") for value, array in given.items()}
    (before,) = apart.operands
    (smaller,) = rewriter.apply_again(node, {source: rewriter.map[before], **operands})
    images = node.output.shape[-2:]
    parts = rewriter.reshape(smaller, [*apart.output.shape[:-2], *images])
    turned_parts = rewriter.transpose(parts, permutation=turned.attrs["permutation"])
    return [rewriter.reshape(turned_parts, node.output.shape)]


def _is_of_each_channel(node: Node) -> bool:
    """Whether a convolution has one filter for each channel, and that one result."""
    attrs, (source, weights, *_) = node.attrs, node.operands
    layouts = attrs["input_layout"], attrs["filter_layout"]
    return (
        source.data_type == "float32"
        and layouts == ("nchw", "oihw")
        and attrs["groups"] == source.shape[1] == weights.shape[0]
    )


def _shuffle(graph: Graph, value: Value) -> tuple[Node, Node] | None:
    """The reshape and the transpose that with another reshape shuffle channels alone."""
    found: list[Node] = []
    for op in ("reshape", "transpose", "reshape"):
        node = graph.producers.get(value)
        if node is None or node.op != op or graph.uses[value] > 1:
            return None
        found.append(node)
        (value,) = node.operands
    after, turned, apart = found
    parts, order = apart.output.shape, turned.attrs["permutation"]
    batch, channels, *images = value.shape
    kept = [0, len(parts) - 2, len(parts) - 1]
    if (
        after.output.shape != value.shape
        or (parts[0], *parts[-2:]) != (batch, *images)
        or math.prod(parts[1:-2]) != channels
        or [order[axis] for axis in kept] != kept
    ):
        return None
    return apart, turned


def _put(array: Array, places: Array) -> Array:
    """What is at each place of the result, by what its place in the array was."""
    made = np.empty_like(array)
    made[places] = array
    return made
