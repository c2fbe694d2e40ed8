"""Channels are put together or shuffled behind what makes images smaller, not before it.

A concat before a pooling copies more than one behind it; so does a shuffle of channels before a
convolution of each channel by itself, whose filters are shuffled back in its place.
"""

from __future__ import annotations

import math

import numpy as np

from webnn_py.core.dimensions import is_open
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.rewrite import Rewriter, as_list
from webnn_py.passes.target import Target

POOLINGS = ("average_pool2d", "l2_pool2d", "max_pool2d")


def rearrange_later(graph: Graph, target: Target) -> Graph:
    """Swap concat with poolings behind it, and shuffles with convolutions of each channel."""

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        if node.op in POOLINGS:
            return _pooled_parts(rewriter, node)
        if node.op == "conv2d":
            return _shuffled_results(rewriter, node, target)
        return None

    return Rewriter(graph).run(rule)


def _makes_smaller(node: Node, source: Value) -> bool:
    """Whether a node alone reads what it makes less of; known sizes only."""
    sizes = (*source.shape, *node.output.shape)
    return not is_open(sizes) and math.prod(node.output.shape) < math.prod(source.shape)


def _pooled_parts(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
    (source,) = node.operands
    concat = rewriter.graph.producers.get(source)
    axis = node.attrs["layout"].index("c")
    if (
        concat is None
        or concat.op != "concat"
        or concat.attrs["axis"] != axis
        or rewriter.graph.uses[source] > 1
        or not _makes_smaller(node, source)
    ):
        return None
    parts = [
        as_list(rewriter.apply_again(node, {source: rewriter.map[part]}))[0]
        for part in concat.operands
    ]
    return [rewriter.concat(parts, axis)]


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
