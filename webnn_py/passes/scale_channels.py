"""Passes that replace batch normalizations by one scale and one shift of each channel.

They handle normalizations that `fuse_batch_norm` cannot fold, because no product is before them or
the data type is float16. One pass builds a product and a sum. The other builds a depthwise
convolution: an engine with the NCHWc layout leaves that layout for other arithmetic, and fuses an
activation with the convolution, so one pass through memory replaces six.

As in `fuse_batch_norm`, results are rounded once instead of at each step. Scale and shift are
float32, also for float16 images.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Array, Graph, Node, Value
from webnn_py.ops.decompositions.casts import narrow, wide
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.fuse_batch_norm import Affine, Chain, fits_float32, step_of
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

BLOCK_CHANNELS = 16
"""Most channels in a block of the NCHWc layout; other channel counts leave blocks part empty."""


def scale_channels_by_convolutions(graph: Graph, target: Target) -> Graph:
    """Replace batch_normalization, with scales and shifts behind it, by a depthwise convolution.

    Requires: float32, whole blocks of channels, and only convolutions and poolings as readers.
    """

    def convolve(rewriter: Rewriter, source: MLOperand, scale: Array, shift: Array) -> MLOperand:
        return rewriter.conv2d(
            source,
            rewriter.add_constant(scale.reshape(-1, 1, 1, 1), "float32"),
            bias=rewriter.add_constant(shift, "float32"),
            groups=scale.size,
        )

    def is_replaced(node: Node) -> bool:
        return node.output.shape[1] % BLOCK_CHANNELS == 0 and not _is_float16(node)

    return _rescale(graph, is_replaced, convolve)


def scale_channels(graph: Graph, target: Target) -> Graph:
    """Replace batch_normalization without a kernel by a product and a sum.

    Its decomposition would divide each element, or need three numbers for each channel.
    """

    def multiply(rewriter: Rewriter, source: MLOperand, scale: Array, shift: Array) -> MLOperand:
        factor, added = (
            rewriter.add_constant(array.reshape(-1, 1, 1), "float32") for array in (scale, shift)
        )
        scaled = rewriter.add(rewriter.mul(wide(rewriter, source), factor), added)
        return narrow(rewriter, scaled, source.data_type)

    return _rescale(graph, lambda node: not target.has_kernel(node), multiply)


def _rescale(
    graph: Graph,
    is_replaced: Callable[[Node], bool],
    rescale: Callable[[Rewriter, MLOperand, Array, Array], MLOperand],
) -> Graph:
    """Replace normalizations of float16, and those that only convolutions and poolings read.

    Args:
        graph: The graph.
        is_replaced: Whether to replace a normalization.
        rescale: Builds the scale and shift of an operand's channels by two float32 arrays.
    """
    chains = _find_chains(graph, is_replaced)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        chain = chains.get(node.outputs[0])
        if chain is None:
            return None
        if not (_is_float16(chain.root) or _stays_in_blocks(graph, node.output)):
            return None
        with np.errstate(over="ignore", under="ignore"):
            scale = chain.affine.scale.astype(np.float32)
            shift = chain.affine.shift.astype(np.float32)
        if not (fits_float32(scale) and fits_float32(shift)):
            return None
        (source, *_) = chain.root.operands
        return [rescale(rewriter, rewriter.map[source], scale, shift)]

    return Rewriter(graph).run(rule)


def _find_chains(graph: Graph, is_replaced: Callable[[Node], bool]) -> dict[Value, Chain]:
    """Return the longest chains, whose roots are normalizations, by the last value of each."""
    chains: dict[Value, Chain] = {}
    for node in graph.nodes:
        before = next((value for value in node.operands if value in chains), None)
        if before is not None and graph.uses[before] == 1:
            chain = chains[before]
        elif _normalizes_images(node) and is_replaced(node):
            before, channels = next(node.operands), node.output.shape[1]
            chain = Chain(node, 1, Affine(np.ones(channels), np.zeros(channels)))
        else:
            continue
        step = step_of(graph.constants, node, before, chain)
        if step is not None and node.output.shape == before.shape:
            chains.pop(before, None)
            chains[node.output] = Chain(chain.root, chain.axis, chain.affine.then(step))
    return chains


def _normalizes_images(node: Node) -> bool:
    """Whether a node is a batch normalization of the channels of NCHW images."""
    value = node.outputs[0]
    if node.op != "batch_normalization" or value.rank != 4 or node.attrs["axis"] != 1:
        return False
    return not is_dimension(value.shape[1])


def _is_float16(node: Node) -> bool:
    return node.output.data_type == "float16"


def _stays_in_blocks(graph: Graph, value: Value) -> bool:
    """Whether only convolutions and poolings read a value, directly or behind relu."""
    readers = graph.readers.get(value, ())
    if value in graph.results or not readers:
        return False
    return all(
        _stays_in_blocks(graph, reader.output)
        if reader.op == "relu"
        else reader.op in ("average_pool2d", "conv2d", "max_pool2d") and reader.inputs[0] is value
        for reader in readers
    )
