"""Operators along one axis. Source: WebNN 2026, "argMin/argMax" and "cumulativeSum".

WebNN has no sorting; `arg_top_k` is an extension, see D48 in spec/deviations.md.
"""

from __future__ import annotations

from webnn_py.core.convert import Size
from webnn_py.core.dtypes import ANY, DTYPES, MLOperandDataType
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK, check_axis, is_over, reduced
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand
from webnn_py.ops.reduction import SUMMED

POSITIONS = ("int32", "int64")


def _position(
    input: MLOperand, axis: int, keep_dimensions: bool, output_data_type: MLOperandDataType
) -> Inferred:
    check_axis(axis, input.rank)
    if output_data_type not in POSITIONS:
        raise ValidationError(
            f"option 'output_data_type': got {output_data_type!r}, expected one of"
            f" {', '.join(POSITIONS)}"
        )
    if is_over(input.shape[axis], int(DTYPES[output_data_type].max)):
        raise ValidationError(
            f"axis {axis} has {input.shape[axis]} elements, more than {output_data_type} counts"
        )
    return result(Descriptor(output_data_type, reduced(input.shape, [axis], keep_dimensions)))


class Scan:
    """Builder methods of operators along one axis."""

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        output=POSITIONS,
        output_rank=(0, MAX_RANK),
        section="argminmax",
    )
    def arg_max(
        self,
        input: MLOperand,
        axis: int,
        *,
        keep_dimensions: bool = False,
        output_data_type: MLOperandDataType = "int32",
        label: str = "",
    ) -> Inferred:
        """Return the position of the greatest element along `axis`, the first of equal ones.

        Args:
            output_data_type: Data type of the positions; it must count all elements of `axis`.

        Returns:
            A tensor of the input's shape without `axis`, or with size 1 in its place if
            `keep_dimensions`.
        """
        return _position(input, axis, keep_dimensions, output_data_type)

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        output=POSITIONS,
        output_rank=(0, MAX_RANK),
        section="argminmax",
    )
    def arg_min(
        self,
        input: MLOperand,
        axis: int,
        *,
        keep_dimensions: bool = False,
        output_data_type: MLOperandDataType = "int32",
        label: str = "",
    ) -> Inferred:
        """Return the position of the least element along `axis`, the first of equal ones.

        Args:
            output_data_type: Data type of the positions; it must count all elements of `axis`.

        Returns:
            A tensor of the input's shape without `axis`, or with size 1 in its place if
            `keep_dimensions`.
        """
        return _position(input, axis, keep_dimensions, output_data_type)

    @operator(
        input=Limits(ANY, (1, MAX_RANK)),
        output=("int64",),
        output_rank=(1, MAX_RANK),
        extension=True,
    )
    def arg_top_k(
        self,
        input: MLOperand,
        axis: int,
        k: Size,
        *,
        largest: bool = True,
        label: str = "",
    ) -> Inferred:
        """Return the positions of the k greatest elements along `axis`, the greatest first.

        Equal elements come in their order. `gather_elements` turns the positions into elements.
        If a row contains NaN, its positions are undefined.

        Args:
            k: Number of positions, from 1 to the size of the dimension.
            largest: Return the greatest elements; False: the least, the least first.

        Returns:
            An int64 tensor of the input's shape with size k along `axis`.
        """
        check_axis(axis, input.rank)
        size = input.shape[axis]
        if not (k >= 1 and k <= size):
            raise ValidationError(f"option 'k': got {k}, expected 1 to {size}, as axis {axis} has")
        shape = [k if i == axis else n for i, n in enumerate(input.shape)]
        return result(Descriptor("int64", tuple(shape)))

    @operator(input=Limits(SUMMED, (1, MAX_RANK)))
    def cumulative_sum(
        self,
        input: MLOperand,
        axis: int,
        *,
        exclusive: bool = False,
        reversed: bool = False,
        label: str = "",
    ) -> Inferred:
        """Compute running sums along `axis`, each element included in its own sum.

        [1, 2, 3, 4] gives [1, 3, 6, 10]; with `exclusive` [0, 1, 3, 6]; with `reversed`
        [10, 9, 7, 4].

        Args:
            exclusive: Leave each element out of its own sum.
            reversed: Sum from the end.

        Returns:
            A tensor of the input's shape.
        """
        check_axis(axis, input.rank)
        return result(Descriptor(input.data_type, input.shape))
