"""What ONNX Runtime's CPU kernels compute otherwise than WebNN says, though ONNX would do.

What stays: float16 is computed in float32 and rounded where a result leaves the session, so that
what overflows between two nodes may be finite here; the far tail of gelu is right to 1e-7, and
x * sigmoid(x) to x * 2e-7; NaN among numbers may be passed over where the greatest or least of them
is looked for; and infinities count in a linear interpolation whose weight for them is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.dtypes import FLOATS, PACKED_4BIT
from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.engines.onnx_lowering.linalg import quantize_linear
from webnn_py.engines.onnx_lowering.reduction import reduced
from webnn_py.ir import Graph, Node

PACKED = frozenset(PACKED_4BIT)

INEXACT = {
    # It multiplies x by scale / deviation and adds bias - mean * scale / deviation, which cancel.
    "batch_normalization": FLOATS,
    # Large numbers lose bits, and sums out of range saturate.
    **dict.fromkeys(("reduce_l1", "reduce_product", "reduce_sum_square"), ("int32", "int64")),
    # Of two numbers whose upper halves differ it may take the wrong one.
    **dict.fromkeys(("reduce_max", "reduce_min"), ("int64",)),
}
"""By operator, for which data types of its first operand."""


def is_exact(node: Node) -> bool:
    """Whether ONNX Runtime can be trusted with a node.

    What has 4 bits has one element a byte here, and two of them there: constants alone are packed.
    """
    types = [value.data_type for value in (*node.operands, *node.outputs)]
    has_4_bits = not PACKED.isdisjoint(types) and node.op != "dequantize_linear"
    return types[0] not in INEXACT.get(node.op, ()) and not has_4_bits


def _sigmoid(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """ONNX Runtime's is right to 1e-7; far from 0 that is no digit at all."""
    return e.op("Reciprocal", e.op("Add", e.op("Exp", e.op("Neg", x)), e.like(1, x)))


def swishes(graph: Graph) -> Mapping[Node, Lowering]:
    """Lowerings of sigmoids that nothing reads but x * sigmoid(x), as ONNX Runtime's own.

    These are right to 2e-7, and so is the product, as a part of x. Both are one node to it, which
    leaves channels in their blocks: as five nodes they took a fifth of a detector's run.
    """
    return {
        node: lambda e, node, x: e.op("Sigmoid", x)
        for node in graph.nodes
        if node.op == "sigmoid"
        and node.output not in graph.results
        and all(
            reader.op == "mul" and {*reader.inputs} == {*node.inputs, node.output}
            for reader in graph.readers.get(node.output, ())
        )
    }


def _sign(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """ONNX Runtime's looks at half the bits of int64, and takes NaN of float16 for 0."""
    if x.data_type == "int64":
        return e.greater(e.smaller(x, e.like(1, x)), e.like(-1, x))
    wide = e.cast(x, "float32") if x.data_type == "float16" else x
    return e.cast(e.op("Sign", wide), x.data_type)


def _quantize_linear(
    e: Emitter, node: Node, x: Tensor, scale: Tensor, zero: Tensor
) -> Tensor | list[Tensor]:
    """ONNX Runtime's takes infinities of float16 for the least integer."""
    return quantize_linear(e, node, e.cast(x, "float32"), e.cast(scale, "float32"), zero)


def _reduce_sum(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """ONNX Runtime's loses bits of large integers, and saturates; its running sums do not."""
    if x.data_type not in ("int32", "int64"):
        return reduced(e, node, "ReduceSum", x)
    axes = node.attrs["axes"]
    for axis in axes:
        whole = e.op("CumSum", x, e.constant(axis), reverse=1)
        x = e.op("Slice", whole, e.constant([0]), e.constant([1]), e.constant([axis]))
    if node.attrs["keep_dimensions"] or not axes:
        return x if axes else e.op("Identity", x)
    return e.op("Squeeze", x, e.constant(sorted(axes)))


INSTEAD: dict[str, Lowering] = {
    "quantize_linear": _quantize_linear,
    "reduce_sum": _reduce_sum,
    "sigmoid": _sigmoid,
    "sign": _sign,
}
"""What is composed, though ONNX has an operator for it."""
