"""Linear quantization. Source: WebNN 2026, "quantizeLinear" and "dequantizeLinear".

int4, uint4 and dynamic quantization are extensions, see D8 and D50 in spec/deviations.md.
"""

from __future__ import annotations

from webnn_py.core.dimensions import check_divides, undecided
from webnn_py.core.dtypes import FLOATS, PACKED_4BIT
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, multi_operator, operator, result
from webnn_py.ops.operand import MLOperand

QUANTIZED = ("uint8", "int8", "uint32", "int32", *PACKED_4BIT)


def _check_blocks(input: MLOperand, scale: MLOperand, zero_point: MLOperand) -> None:
    """Check that scale and zero point have one shape, whose dimensions divide the input's."""
    if scale.rank != input.rank:
        raise ValidationError(
            f"operand 'scale': rank {scale.rank} of shape {list(scale.shape)}, expected"
            f" {input.rank} as the input's {list(input.shape)}"
        )
    if zero_point.shape != scale.shape:
        raise ValidationError(
            f"operand 'zero_point': shape {list(zero_point.shape)}, expected the scale's"
            f" {list(scale.shape)}{undecided(zero_point.shape, scale.shape)}"
        )
    wrong = (
        f"operand 'scale': shape {list(scale.shape)}, expected dimensions that divide the"
        f" input's {list(input.shape)}"
    )
    for size, blocks in zip(input.shape, scale.shape, strict=True):
        check_divides(blocks, size, wrong)


class Quantization:
    """Builder methods of linear quantization.

    Options:
        scale: A tensor of the input's rank, each of whose dimensions divides the input's. Size
            1 is one number for all elements along it, the input's size one for each element,
            and another size one for each block.
        zero_point: A tensor of the shape of `scale`.

    Returns:
        A tensor of the input's shape.
    """

    @operator(
        input=Limits(QUANTIZED),
        scale=Limits(FLOATS),
        zero_point=Limits("input"),
        output="scale",
    )
    def dequantize_linear(
        self, input: MLOperand, scale: MLOperand, zero_point: MLOperand, *, label: str = ""
    ) -> Inferred:
        """Compute (input - zero_point) * scale."""
        _check_blocks(input, scale, zero_point)
        return result(Descriptor(scale.data_type, input.shape))

    @operator(
        input=Limits(FLOATS),
        scale=Limits("input"),
        zero_point=Limits(QUANTIZED),
        output="zero_point",
    )
    def quantize_linear(
        self, input: MLOperand, scale: MLOperand, zero_point: MLOperand, *, label: str = ""
    ) -> Inferred:
        """Compute round(input / scale) + zero_point, clamped to the type's range.

        Halves round to the even integer.
        """
        _check_blocks(input, scale, zero_point)
        return result(Descriptor(zero_point.data_type, input.shape))

    @multi_operator(
        input=Limits(("float32",)),
        outputs={"output0": (0, MAX_RANK), "output1": 0, "output2": 0},
        types={"output0": "uint8", "output1": "float32", "output2": "uint8"},
        extension=True,
    )
    def dynamic_quantize_linear(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Quantize to uint8 by the range of the input's elements, extended to include 0.

        Returns:
            The codes, of the input's shape; their scale and zero point, both scalars.
        """
        scale, zero_point = Descriptor("float32", ()), Descriptor("uint8", ())
        return result(Descriptor("uint8", input.shape), scale, zero_point)
