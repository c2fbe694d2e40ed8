"""Batch normalizations before convolutions and poolings, as convolutions of each channel by itself.

Behind a concat or a pooling, they have no weights to be folded into. An engine that lays out
channels in blocks for convolutions has to lay them out as before for any arithmetic; a convolution
stays in the blocks and takes an activation along, one walk through memory for six. As by
`fuse_batch_norm`, what was rounded at each step is rounded once.
"""

from __future__ import annotations

import numpy as np

from webnn_py.core.dimensions import is_dimension
from webnn_py.ir import Graph, Node, Value
from webnn_py.ops.operand import MLOperand
from webnn_py.passes.fuse_batch_norm import Affine, Chain, fits, step_of
from webnn_py.passes.rewrite import Rewriter
from webnn_py.passes.target import Target

BLOCK = 16
"""Channels in a block, at most: of others, a block has places that nothing fills."""


def scale_channels_by_convolutions(graph: Graph, target: Target) -> Graph:
    """Put a convolution in the place of batch_normalization, and of scales and shifts after it."""
    chains = _find_chains(graph)

    def rule(rewriter: Rewriter, node: Node) -> list[MLOperand] | None:
        chain = chains.get(node.outputs[0])
        if chain is None or not _stays_in_blocks(graph, node.output):
            return None
        with np.errstate(over="ignore", under="ignore"):
            weights = chain.affine.scale.astype(np.float32)
            bias = chain.affine.shift.astype(np.float32)
        if not (fits(weights) and fits(bias)):
            return None
        (source, *_) = chain.root.operands
        made = rewriter.conv2d(
            rewriter.map[source],
            rewriter.add_constant(weights.reshape(-1, 1, 1, 1), "float32"),
            bias=rewriter.add_constant(bias, "float32"),
            groups=chain.channels,
        )
        return [made]

    return Rewriter(graph).run(rule)


def _find_chains(graph: Graph) -> dict[Value, Chain]:
    """The longest chains, by the last value of each; their roots are the normalizations."""
    chains: dict[Value, Chain] = {}
    for node in graph.nodes:
        before = next((value for value in node.operands if value in chains), None)
        if before is not None and graph.uses[before] == 1:
            chain = chains[before]
        elif node.op == "batch_normalization" and _is_of_blocks(node):
            before, channels = next(node.operands), node.output.shape[1]
            chain = Chain(node, 1, Affine(np.ones(channels), np.zeros(channels)))
        else:
            continue
        step = step_of(graph.constants, node, before, chain)
        if step is not None and node.output.shape == before.shape:
            chains.pop(before, None)
            chains[node.output] = Chain(chain.root, chain.axis, chain.affine.then(step))
    return chains


def _is_of_blocks(node: Node) -> bool:
    """Whether a normalization is one of channels that fill blocks, in images."""
    value = node.output
    if value.rank != 4 or value.data_type != "float32" or node.attrs["axis"] != 1:
        return False
    channels = value.shape[1]
    return not is_dimension(channels) and channels % BLOCK == 0


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
