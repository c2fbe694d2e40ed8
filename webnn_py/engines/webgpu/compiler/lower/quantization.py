"""Linear quantization, exact in every data type."""

from __future__ import annotations

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.code.affine import repeated_map
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.engines.webgpu.program.storage import literal
from webnn_py.ir import Node, Value


def block_element(body: Body, blocks: Value, whole: Value, index: Index) -> str:
    """Load the element of `blocks` that belongs to an element of the whole tensor."""
    times = [size // count for size, count in zip(whole.shape, blocks.shape, strict=True)]
    return body.load(blocks, repeated_map(blocks.shape, [1] * whole.rank, times).at(index))


@lowering("dequantize_linear", fuses=True)
def dequantize_linear(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit (input - zero_point) * scale."""
    operand, scale, zero_point = node.operands
    compute = body.builder.storage(operand).compute
    element, zero = body.load(operand, index), block_element(body, zero_point, operand, index)
    difference = f"wn_difference_{compute}({element}, {zero})"
    if DTYPES[operand.data_type].bits <= 8:
        difference = f"f32(i32({element}) - i32({zero}))"
    return f"{difference} * {block_element(body, scale, operand, index)}"


@lowering("quantize_linear", fuses=True)
def quantize_linear(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit round(input / scale) + zero_point, saturated to the data type's range."""
    operand, scale, zero_point = node.operands
    element, factor = body.load(operand, index), block_element(body, scale, operand, index)
    zero = block_element(body, zero_point, operand, index)
    known = body.builder.scalar(scale)
    inverse = literal(1 / known, "f32") if known else f"1.0 / {factor}"
    compute = body.builder.storage(zero_point).compute
    info = DTYPES[zero_point.data_type]
    if info.bits == 32:
        rounded = body.let(f"wn_rounded_quotient({element}, {factor}, {inverse})", "q")
        return f"wn_quantized_{compute}({rounded}, {zero})"
    low, high = (literal(bound, "i32") for bound in (info.min, info.max))
    made = body.code(f"{element}, {factor}, {inverse}, i32({zero}), {low}, {high}")
    return made if compute == "i32" else f"u32({made})"
