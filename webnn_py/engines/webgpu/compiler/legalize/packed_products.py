"""The products by packed weights that have kernels of their own; others are decomposed.

The nodes exist between `legalize` and the kernels only; `op_traits` tells fusion about them.
"""

from __future__ import annotations

from webnn_py.core.dimensions import is_dimension, is_open
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Node, Value
from webnn_py.ops.operand import MLOperand, value_of
from webnn_py.passes.rewrite import Rewriter

PACKED_PRODUCT = "packed_product"
"""Operands and attributes: those of `matmul_packed`."""

WORD_CODES = 8
"""Codes of 4 bits in a word. No block or row ends inside a word."""


def is_packed_product(node: Node, features: Features) -> bool:
    """Whether kernels multiply by the packed weights of a node."""
    if node.op != "matmul_packed" or features.kind == "cpu":
        return False
    x, *others = node.operands
    depth = x.shape[-1]
    if x.rank < 2 or is_dimension(depth) or depth % WORD_CODES:
        return False
    if x.data_type == "float16" and not features.f16:
        return False
    ends = [one for one in (*others, node.output) if not is_open(one.shape)]
    is_whole = all(buffer_bytes(one) <= features.binding_bytes for one in ends)
    return is_whole and node.attrs["block_size"] % WORD_CODES == 0


def keep_packed(rewriter: Rewriter, node: Node, features: Features) -> list[MLOperand] | None:
    """Return a product by packed weights as the compiler's own operator."""
    if not is_packed_product(node, features):
        return None
    inputs = tuple(None if v is None else value_of(rewriter.map[v]) for v in node.inputs)
    output = Value(node.output.data_type, node.output.shape)
    return rewriter.emit(Node(PACKED_PRODUCT, inputs, node.attrs, (output,), node.label))


def flops_of_packed(node: Node) -> int:
    """Return a product's operations; to dequantize takes two for each weight."""
    depth = next(node.operands).shape[-1]
    return 2 * node.output.size * depth + 2 * depth * node.output.shape[-1]
