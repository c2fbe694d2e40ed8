"""Batch normalizations before convolutions and poolings, as one scale and shift of each channel.

Behind a concat or a pooling, they have no weights to be folded into. They become a product and a
sum where the engine has no kernel for them, or a convolution of each channel by itself: an engine
that lays out channels in blocks for convolutions has to lay them out as before for any arithmetic;
a convolution stays in the blocks and takes an activation along, one walk through memory for six. As
by `fuse_batch_norm`, what was rounded at each step is rounded once. Those of halves are so wherever
they stand: their weights stay as they are, as halves would lose digits, and scale and shift are
float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.fuse_batch_norm import Affine, Chain, fits, step_of
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

BLOCK = 16
"""Channels in a block, at most: of others, a block has places that nothing fills."""


def scale_channels_by_convolutions(graph: Graph, target: Target) -> Graph:
    """Put a convolution in the place of batch_normalization, and of scales and shifts after it."""

    def convolve(rewriter: Rewriter, source: MLOperand, scale: Array, shift: Array) -> MLOperand:
        return rewriter.conv2d(
            source,
            rewriter.add_constant(scale.reshape(-1, 1, 1, 1), "float32"),
            bias=rewriter.add_constant(shift, "float32"),
            groups=scale.size,
        )

    def is_replaced(node: Node) -> bool:
        return node.output.shape[1] % BLOCK == 0 and not _is_of_halves(node)

    return _rescaled(graph, is_replaced, convolve)


def scale_channels(graph: Graph, target: Target) -> Graph:
    """Put a product and a sum in the place of what the engine has no kernel for.

    Decomposed, a normalization divides each element, or has three numbers for each channel.
    """

    def multiply(rewriter: Rewriter, source: MLOperand, scale: Array, shift: Array) -> MLOperand:
        factor, added = (
            rewriter.add_constant(array.reshape(-1, 1, 1), "float32") for array in (scale, shift)
        )
        scaled = rewriter.add(rewriter.mul(wide(rewriter, source), factor), added)
        return narrow(rewriter, scaled, source.data_type)

    return _rescaled(graph, lambda node: not target.has_kernel(node), multiply)


def _rescaled(
    graph: Graph,
    is_replaced: Callable[[Node], bool],
    rescale: Callable[[Rewriter, MLOperand, Array, Array], MLOperand],
) -> Graph:
    """The graph with something else in the place of normalizations that convolutions read.

    Args:
        graph: The graph.
        is_replaced: Whether a normalization is.
        rescale: Adds what scales and shifts the channels of an operand by arrays of float32.
    """
    chains = _find_chains(graph, is_replaced)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        chain = chains.get(node.outputs[0])
        if chain is None:
            return None
        if not (_is_of_halves(chain.root) or _stays_in_blocks(graph, node.output)):
            return None
        with np.errstate(over="ignore", under="ignore"):
            scale = chain.affine.scale.astype(np.float32)
            shift = chain.affine.shift.astype(np.float32)
        if not (fits(scale) and fits(shift)):
            return None
        (source, *_) = chain.root.operands
        return [rescale(rewriter, rewriter.map[source], scale, shift)]

    return Rewriter(graph).run(rule)


def _find_chains(graph: Graph, is_replaced: Callable[[Node], bool]) -> dict[Value, Chain]:
    """The longest chains, by the last value of each; their roots are the normalizations."""
    chains: dict[Value, Chain] = {}
    for node in graph.nodes:
        before = next((value for value in node.operands if value in chains), None)
        if before is not None and graph.uses[before] == 1:
            chain = chains[before]
        elif _is_of_images(node) and is_replaced(node):
            before, channels = next(node.operands), node.output.shape[1]
            chain = Chain(node, 1, Affine(np.ones(channels), np.zeros(channels)))
        else:
            continue
        step = step_of(graph.constants, node, before, chain)
        if step is not None and node.output.shape == before.shape:
            chains.pop(before, None)
            chains[node.output] = Chain(chain.root, chain.axis, chain.affine.then(step))
    return chains


def _is_of_images(node: Node) -> bool:
    """Whether a node is a normalization of the channels of images, in planes."""
    value = node.outputs[0]
    if node.op != "batch_normalization" or value.rank != 4 or node.attrs["axis"] != 1:
        return False
    return not is_dimension(value.shape[1])


def _is_of_halves(node: Node) -> bool:
    return node.output.data_type == "float16"


def _stays_in_blocks(graph: Graph, value: Value) -> bool:
    """Whether convolutions and poolings alone read a value, as it is or after an activation."""
    readers = graph.readers.get(value, ())
    if value in graph.results or not readers:
        return False
    return all(
        _stays_in_blocks(graph, reader.output)
        if reader.op == "relu"
        else reader.op in ("average_pool2d", "conv2d", "max_pool2d") and reader.inputs[0] is value
        for reader in readers
    )
