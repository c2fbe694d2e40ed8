"""Quantized weights of 8 bits or fewer that a product of few rows dequantizes as it reads them.

Such a product is bound by reading its weights. Dequantizing them before takes nine times the
traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.lower.quantization import block_element
from webnn_py.ir import Node, Value

MAX_FUSED_ROWS = 8
"""Rows up to which a product is bound by reading B, and reads each element once."""


def reads_dequantized(reader: Node, value: Value) -> bool:
    """Whether a node is a product of few rows by the matrix `value`."""
    if reader.op != "matmul" or reader.inputs[1] is not value or reader.inputs[0] is value:
        return False
    left = reader.inputs[0]
    assert left is not None
    return value.rank == 2 and left.size <= MAX_FUSED_ROWS * left.shape[-1]


def dequantize_node(
    value: Value, producers: Mapping[Value, Node], is_stored: Callable[[Value], bool]
) -> Node | None:
    """Return the node that dequantizes the weights that a value views; None if there is none."""
    while not is_stored(value):
        node = producers[value]
        if node.op == "dequantize_linear":
            codes = next(node.operands)
            return node if DTYPES[codes.data_type].bits <= 8 and is_stored(codes) else None
        if node.op not in ("reshape", "transpose"):
            return None
        value = next(node.operands)
    return None


def add_vec4_loader(builder: KernelBuilder, name: str, node: Node) -> bool:
    """Add a function that dequantizes the four weights from index `i`, a multiple of 4, on.

    Returns:
        False, without a function, unless the four lie in one word.
    """
    codes, scale, zero_point = node.operands
    if not builder.places.in_runs(codes, 4):
        return False
    body, at = Body(builder), symbol("i")

    def per_weight(blocks: Value, kind: str) -> str:
        """Return the vec4 of block values; one load where the four share their block."""
        parts = 1 if codes.shape[-1] // blocks.shape[-1] % 4 == 0 else 4
        loaded = (block_element(body, blocks, codes, at + part) for part in range(parts))
        return f"vec4<{kind}>({', '.join(f'{kind}({one})' for one in loaded)})"

    place = builder.places.at(codes, at).enclosed
    word = body.let(builder.element(codes)(f"{place} >> 2u"), "word")
    if builder.storage(codes).compute == "u32":
        shifted = f"(vec4<u32>({word}) >> vec4<u32>(0u, 8u, 16u, 24u))"
        integers = f"vec4<i32>({shifted} & vec4<u32>(255u))"
    else:
        shifted = f"(vec4<u32>({word}) << vec4<u32>(24u, 16u, 8u, 0u))"
        integers = f"(bitcast<vec4<i32>>({shifted}) >> vec4<u32>(24u))"
    zeros, factors = per_weight(zero_point, "i32"), per_weight(scale, "f32")
    body.line(f"return vec4<f32>({integers} - {zeros}) * {factors};")
    builder.function(name, "i: u32", "vec4<f32>", body)
    return True
