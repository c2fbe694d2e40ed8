"""Nodes that ONNX Runtime's CPU kernels compute differently from WebNN, and replacements for them.

Accepted differences: float16 is computed in float32 and rounded at the outputs, so intermediate
results do not overflow. The far tail of gelu is off by 1e-7, and x * sigmoid(x) by x * 2e-7.
Maxima and minima may ignore NaN. A linear interpolation propagates infinities of weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.core.dtypes import FLOATS, PACKED_4BIT
from webnn_py.engines.onnx_lowering import Emitter, Lowering, Tensor
from webnn_py.engines.onnx_lowering.composites import lower_decomposed
from webnn_py.engines.onnx_lowering.linalg import (
    matmul_n_bits,
    quantize_linear,
    simplified_layer_normalization,
)
from webnn_py.engines.onnx_lowering.recurrent import dynamic_quantize_lstm
from webnn_py.engines.onnx_lowering.reduction import reduced
from webnn_py.engines.onnxruntime.attention import attention, rotary_embedding
from webnn_py.engines.onnxruntime.kernels import has_exact_int8_products
from webnn_py.ir import Graph, Node

PACKED = frozenset(PACKED_4BIT)

INEXACT = {
    # It adds x * scale / deviation and bias - mean * scale / deviation, which may cancel.
    "batch_normalization": FLOATS,
    # Large numbers lose bits, and sums saturate instead of wrapping.
    **dict.fromkeys(("reduce_l1", "reduce_product", "reduce_sum_square"), ("int32", "int64")),
    # It may choose the wrong one of two numbers whose upper 32 bits differ.
    **dict.fromkeys(("reduce_max", "reduce_min"), ("int64",)),
}
"""Data types of the first operand for which an operator is not exact."""


def is_exact(node: Node) -> bool:
    """Whether ONNX Runtime computes a node as WebNN specifies.

    4-bit integers are refused except in dequantize_linear: ONNX Runtime packs two in a byte, and
    only constants can be packed.
    """
    types = [value.data_type for value in (*node.operands, *node.outputs)]
    if node.op == "matmul_integer" and types[1] == "int8" and not has_exact_int8_products():
        return False
    has_4_bits = not PACKED.isdisjoint(types) and node.op != "dequantize_linear"
    return types[0] not in INEXACT.get(node.op, ()) and not has_4_bits


def _sigmoid(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write 1 / (1 + exp(-x)): ONNX Runtime's Sigmoid has an absolute error of 1e-7."""
    return e.op("Reciprocal", e.op("Add", e.op("Exp", e.op("Neg", x)), e.like(1, x)))


def swishes(graph: Graph) -> Mapping[Node, Lowering]:
    """Return lowerings to Sigmoid for sigmoids that only occur in x * sigmoid(x).

    The product's error is x * 2e-7. ONNX Runtime fuses both nodes into one and stays in the NCHWc
    layout; as five nodes they took a fifth of a detector's run.
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
    """Write Sign; ONNX Runtime's reads 32 bits of int64 and returns 0 for float16 NaN."""
    if x.data_type == "int64":
        return e.greater(e.smaller(x, e.like(1, x)), e.like(-1, x))
    wide = e.cast(x, "float32") if x.data_type == "float16" else x
    return e.cast(e.op("Sign", wide), x.data_type)


def _quantize_linear(
    e: Emitter, node: Node, x: Tensor, scale: Tensor, zero: Tensor
) -> Tensor | list[Tensor]:
    """Write QuantizeLinear in float32: float16 infinities would become the least integer."""
    return quantize_linear(e, node, e.cast(x, "float32"), e.cast(scale, "float32"), zero)


def _reduce_sum(e: Emitter, node: Node, x: Tensor) -> Tensor:
    """Write integer sums as CumSum, which is exact, while ReduceSum loses bits and saturates."""
    if x.data_type not in ("int32", "int64"):
        return reduced(e, node, "ReduceSum", x)
    axes = node.attrs["axes"]
    for axis in axes:
        whole = e.op("CumSum", x, e.constant(axis), reverse=1)
        x = e.op("Slice", whole, e.constant([0]), e.constant([1]), e.constant([axis]))
    if node.attrs["keep_dimensions"] or not axes:
        return x if axes else e.op("Identity", x)
    return e.op("Squeeze", x, e.constant(sorted(axes)))


def _scatter_rows(e: Emitter, node: Node, *operands: Tensor) -> list[Tensor]:
    """Write the decomposition; `attentions` replaces it for the caches of an attention."""
    return lower_decomposed(e, node, operands)


INSTEAD: dict[str, Lowering] = {
    "lstm_packed": dynamic_quantize_lstm,
    "matmul_packed": matmul_n_bits,
    "quantize_linear": _quantize_linear,
    "reduce_sum": _reduce_sum,
    "rms_normalization": simplified_layer_normalization,
    "rotary_embedding": rotary_embedding,
    "scaled_dot_product_attention": attention,
    "scatter_rows": _scatter_rows,
    "sigmoid": _sigmoid,
    "sign": _sign,
}
"""Lowerings to ONNX Runtime's own operators, and for what it computes differently."""
