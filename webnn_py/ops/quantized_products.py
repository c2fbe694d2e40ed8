"""Products of quantized matrices, which are extensions; see D50 in spec/deviations.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from webnn_py.core.convert import Size
from webnn_py.core.dimensions import undecided
from webnn_py.core.dtypes import DTYPES, FLOATS, PACKED_4BIT
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK, broadcast, check_broadcast_to
from webnn_py.ir import Descriptor
from webnn_py.ops.convolution import Conv2dFilterLayout, InputLayout, convolved_shape, dims
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand

BYTES = ("int8", "uint8")
Accuracy = Literal["float32", "float16", "int8"]


def _bits(codes: MLOperand, block_size: int) -> int:
    """Return the bits of a code: 4 or 8."""
    has_two = codes.rank == 3 and codes.shape[2] * 2 == block_size
    return 4 if has_two or codes.data_type in PACKED_4BIT else 8


def _check(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValidationError(
            f"operand {name!r}: shape {list(shape)}, expected {list(expected)}"
            f"{undecided(shape, expected)}"
        )


def _check_codes(codes: MLOperand, depth: int, blocks: int, block_size: int) -> None:
    """Check the shape of the codes: [n, k], or [n, blocks, bytes] with all bits of a block."""
    columns = codes.shape[0]
    if codes.rank == 2:
        return _check("codes", codes.shape, (columns, depth))
    if codes.data_type != "uint8":
        raise ValidationError(
            f"operand 'codes': {codes.data_type} of rank 3, expected uint8: the bytes of a block"
        )
    counts = {block_size: "8 bits"} | ({} if block_size % 2 else {block_size // 2: "4 bits"})
    if codes.shape[2] not in counts:
        expected = " or ".join(f"{count} ({bits})" for count, bits in counts.items())
        raise ValidationError(
            f"operand 'codes': {codes.shape[2]} bytes a block, expected {expected} for a block size"
            f" of {block_size}{''.join(undecided(codes.shape[2], count) for count in counts)}"
        )
    _check("codes", codes.shape, (columns, blocks, codes.shape[2]))


def _check_zero_point(name: str, zero: MLOperand | None, of: MLOperand, axis: int) -> None:
    """Check a zero point: one number, or one for each position along an axis of a matrix.

    Args:
        name: The operand's name.
        zero: The operand.
        of: The matrices that it belongs to.
        axis: -2 for a zero point of each row, -1 of each column.
    """
    if zero is None:
        return
    along = of.shape[axis]
    if zero.rank != 1:
        form = (along, 1) if axis == -2 else (1, along)
        check_broadcast_to(zero.shape, (*of.shape[:-2], *form), name)
    elif zero.shape[0] not in (1, along):
        raise ValidationError(
            f"operand {name!r}: shape {list(zero.shape)}, expected [{along}] or [1]"
            f"{undecided(zero.shape[0], along) or undecided(zero.shape[0], 1)}"
        )


class QuantizedProducts:
    """Builder methods of products of quantized matrices."""

    @operator(
        x=Limits(FLOATS, (1, MAX_RANK)),
        codes=Limits((*PACKED_4BIT, *BYTES), (2, 3)),
        scales=Limits("x", 2),
        zero_points=Limits("codes", 2),
        output="x",
        extension=True,
    )
    def matmul_packed(
        self,
        x: MLOperand,
        codes: MLOperand,
        scales: MLOperand,
        zero_points: MLOperand | None = None,
        *,
        block_size: int = 32,
        accuracy: Accuracy = "float32",
        label: str = "",
    ) -> Inferred:
        """Multiply by the transpose of quantized weights [n, k]: [..., k] -> [..., n].

        A weight is (code - zero point) * scale. Each `block_size` neighboring weights of a row
        have a scale and a zero point of their own; the last block of a row may be shorter.

        Args:
            x: [..., k].
            codes: [n, k] of 4-bit or 8-bit integers; or, as ONNX Runtime's MatMulNBits has them,
                uint8 [n, blocks, bytes], where a block is `block_size` bytes, or half as many with
                two unsigned 4-bit codes each, the first one in the low bits.
            scales: [n, blocks], where `blocks` is k / block_size, rounded up.
            zero_points: [n, blocks], of the data type of `codes`; [n, blocks / 2, rounded up] where
                a byte of `codes` holds two. Default: 0 for signed codes, 8 for unsigned codes of
                4 bits, 128 for unsigned codes of 8 bits.
            block_size: Number of weights that share a scale.
            accuracy: Least accurate data type in which an engine may multiply; with "int8" it may
                quantize `x`, too, block by block.

        Returns:
            [..., n].
        """
        depth = x.shape[-1]
        if block_size < 1:
            raise ValidationError(f"option 'block_size': got {block_size}, expected at least 1")
        blocks = -(-depth // block_size)
        _check_codes(codes, depth, blocks, block_size)
        columns, bits = codes.shape[0], _bits(codes, block_size)
        _check("scales", scales.shape, (columns, blocks))
        if zero_points is not None:
            in_one = 2 if bits == 4 and codes.rank == 3 else 1
            _check("zero_points", zero_points.shape, (columns, -(-blocks // in_one)))
        zero_point = 1 << (bits - 1) if DTYPES[codes.data_type].kind == "u" else 0
        output = Descriptor(x.data_type, (*x.shape[:-1], columns))
        return result(output, bits=bits, zero_point=zero_point)

    @operator(
        a=Limits(BYTES, (2, MAX_RANK)),
        b=Limits(BYTES, (2, MAX_RANK)),
        a_zero_point=Limits("a"),
        b_zero_point=Limits("b"),
        output=("int32",),
        extension=True,
    )
    def matmul_integer(
        self,
        a: MLOperand,
        b: MLOperand,
        *,
        a_zero_point: MLOperand | None = None,
        b_zero_point: MLOperand | None = None,
        label: str = "",
    ) -> Inferred:
        """Multiply matrices of 8-bit integers exactly: [..., m, k] x [..., k, n] -> [..., m, n].

        Sums wrap beyond 32 bits.

        Args:
            a: [..., m, k]; its leading dimensions broadcast with those of `b`.
            b: [..., k, n].
            a_zero_point: Subtracted from `a` first: a scalar, [m] for a number for each row, or
                [..., m, 1].
            b_zero_point: Subtracted from `b` first: a scalar, [n] for a number for each column, or
                [..., 1, n].

        Returns:
            [..., m, n], int32.
        """
        if a.shape[-1] != b.shape[-2]:
            raise ValidationError(
                f"columns of a {list(a.shape)} and rows of b {list(b.shape)} differ"
                f"{undecided(a.shape[-1], b.shape[-2])}"
            )
        _check_zero_point("a_zero_point", a_zero_point, a, -2)
        _check_zero_point("b_zero_point", b_zero_point, b, -1)
        batch = broadcast(a.shape[:-2], b.shape[:-2], ("a's batch", "b's batch"))
        return result(Descriptor("int32", (*batch, a.shape[-2], b.shape[-1])))

    @operator(
        input=Limits(BYTES, 4),
        filter=Limits(BYTES, 4),
        input_zero_point=Limits("input"),
        filter_zero_point=Limits("filter"),
        output=("int32",),
        extension=True,
    )
    def conv2d_integer(
        self,
        input: MLOperand,
        filter: MLOperand,
        *,
        input_zero_point: MLOperand | None = None,
        filter_zero_point: MLOperand | None = None,
        padding: Sequence[Size] = (0, 0, 0, 0),
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        groups: int = 1,
        input_layout: InputLayout = "nchw",
        filter_layout: Conv2dFilterLayout = "oihw",
        label: str = "",
    ) -> Inferred:
        """Convolve 8-bit integers exactly; zero points are subtracted first.

        Padding equals the input's zero point, so it adds nothing. Sums wrap beyond 32 bits.

        Args:
            input: A tensor in the order of `input_layout`.
            filter: A tensor in the order of `filter_layout`.
            input_zero_point: One number.
            filter_zero_point: One number, or [o], one for each output channel.
            padding: Rows and columns around the input: [top, bottom, left, right].
            strides: As for `conv2d`.
            dilations: As for `conv2d`.
            groups: As for `conv2d`.
            input_layout: Order of the input's and output's dimensions.
            filter_layout: Order of the filter's dimensions.

        Returns:
            [n, o, h, w] in `input_layout`, int32.
        """
        options = padding, strides, dilations, groups, input_layout, filter_layout
        shape = convolved_shape(input, filter, *options)
        (out,) = dims(filter.shape, filter_layout, "o")
        for name, zero, sizes in (
            ("input_zero_point", input_zero_point, (1,)),
            ("filter_zero_point", filter_zero_point, (1, out)),
        ):
            if zero is not None and (zero.rank > 1 or zero.size not in sizes):
                raise ValidationError(
                    f"operand {name!r}: shape {list(zero.shape)}, expected a scalar or"
                    f" {' or '.join(f'[{size}]' for size in sizes)}{undecided(zero.size, out)}"
                )
        return result(Descriptor("int32", shape))
