"""Weights of 8 bits or fewer that a product of few rows unpacks as it reads them.

Such a product is bound by reading them. To unpack them before takes nine times the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.lower.quantization import block_element
from webnn_py.ir import Node, Value

FEW_ROWS = 8
"""Up to so many rows a product is bound by reading B, each element of which it reads once."""


def unpacks(reader: Node, value: Value) -> bool:
    """Whether a node is a product of few rows by a matrix."""
    if reader.op != "matmul" or reader.inputs[1] is not value or reader.inputs[0] is value:
        return False
    left = reader.inputs[0]
    assert left is not None
    return value.rank == 2 and left.size <= FEW_ROWS * left.shape[-1]


def unpacked_weights(
    value: Value, producers: Mapping[Value, Node], is_stored: Callable[[Value], bool]
) -> Node | None:
    """The node that unpacks what a value is a view of; None if it is no such view."""
    while not is_stored(value):
        node = producers[value]
        if node.op == "dequantize_linear":
            codes = next(node.operands)
            return node if DTYPES[codes.data_type].bits <= 8 and is_stored(codes) else None
        if node.op not in ("reshape", "transpose"):
            return None
        value = next(node.operands)
    return None


def unpacks_fours(builder: KernelBuilder, name: str, node: Node) -> bool:
    """Add a function of the place `i`, a multiple of 4, of the four weights in one word.

    Returns:
        Whether there is one: all lie so.
    """
    codes, scale, zero_point = node.operands
    if not builder.places.in_runs(codes, 4):
        return False
    body, at = Body(builder), symbol("i")

    def fours(blocks: Value, kind: str) -> str:
        """Those of their blocks, which are one where the innermost ones are in fours."""
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
    zeros, factors = fours(zero_point, "i32"), fours(scale, "f32")
    body.line(f"return vec4<f32>({integers} - {zeros}) * {factors};")
    builder.function(name, "i: u32", "vec4<f32>", body)
    return True
