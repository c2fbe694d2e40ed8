"""Operators that move elements without computing. Source: WebNN 2026, the section of each name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from webnn_py.core.convert import MLNumber, SignedSize, Size
from webnn_py.core.dimensions import check_divides, differ, undecided
from webnn_py.core.dtypes import ANY, cast_number
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.shapes import (
    MAX_RANK,
    check_axes,
    check_axis,
    check_broadcast_to,
    check_dimensions,
    check_list,
)
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, multi_operator, operator, result
from webnn_py.ops.operand import MLOperand

PaddingMode = Literal["constant", "edge", "reflection"]
MAX_TENSORS = 8192


def split_sizes(size: int, splits: int | Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of a dimension's parts; an integer `splits` makes that many equal parts."""
    return (size // splits,) * splits if isinstance(splits, int) else tuple(splits)


class Movement:
    """Builder methods of reshaping, cutting, joining and permuting."""

    @operator(inputs=Limits(ANY, (1, MAX_RANK)), output="inputs")
    def concat(self, inputs: Sequence[MLOperand], axis: int, *, label: str = "") -> Inferred:
        """Join the inputs along `axis`.

        Args:
            inputs: 1 to 8,192 operands of one data type, and of one shape except along `axis`.

        Returns:
            A tensor whose size along `axis` is the sum of the inputs' sizes.
        """
        first, *rest = inputs
        if len(inputs) > MAX_TENSORS:
            raise ValidationError(f"{len(inputs)} inputs, expected at most {MAX_TENSORS}")
        check_axis(axis, first.rank)
        shape = list(first.shape)
        for i, other in enumerate(rest, 1):
            others = (*other.shape[:axis], first.shape[axis], *other.shape[axis + 1 :])
            if other.data_type != first.data_type or differ(others, first.shape):
                raise ValidationError(
                    f"operand 'inputs[{i}]': {other.data_type} {list(other.shape)}, expected"
                    f" {first.data_type} {list(first.shape)} but for axis {axis}"
                    f"{undecided(others, first.shape)}"
                )
            shape[axis] += other.shape[axis]
        return result(Descriptor(first.data_type, tuple(shape)))

    @operator(input=Limits(ANY))
    def expand(self, input: MLOperand, new_shape: Sequence[Size], *, label: str = "") -> Inferred:
        """Broadcast the input to `new_shape`.

        Args:
            input: Its shape broadcasts to `new_shape`.
            new_shape: The output's shape.

        Returns:
            A tensor of shape `new_shape`.
        """
        check_broadcast_to(input.shape, new_shape, "input")
        return result(Descriptor(input.data_type, tuple(new_shape)))

    @operator(input=Limits(ANY))
    def pad(
        self,
        input: MLOperand,
        beginning_padding: Sequence[Size],
        ending_padding: Sequence[Size],
        *,
        mode: PaddingMode = "constant",
        value: MLNumber = 0,
        label: str = "",
    ) -> Inferred:
        """Add elements before and after the input along each dimension.

        Args:
            beginning_padding: Number of elements to add before, for each dimension.
            ending_padding: Number of elements to add after, for each dimension.
            mode: "constant" adds `value`, "edge" repeats the border, "reflection" mirrors at it.
            value: The number for mode "constant", cast to the input's data type.

        Returns:
            A tensor of the input's shape plus both paddings.

        Raises:
            ValidationError: A reflection padding is not smaller than its dimension.
        """
        check_list(beginning_padding, input.rank, "beginning_padding")
        check_list(ending_padding, input.rank, "ending_padding")
        pads = list(zip(input.shape, beginning_padding, ending_padding, strict=True))
        if mode == "reflection" and not all(a < size and b < size for size, a, b in pads):
            raise ValidationError(
                f"reflection padding {list(beginning_padding)}, {list(ending_padding)} must be"
                f" smaller than the shape {list(input.shape)}"
            )
        shape = tuple(size + low + high for size, low, high in pads)
        number = cast_number(value, input.data_type)
        return result(Descriptor(input.data_type, shape), value=number)

    @operator(input=Limits(ANY), section="reshape-method")
    def reshape(self, input: MLOperand, new_shape: Sequence[Size], *, label: str = "") -> Inferred:
        """Change the shape and keep the elements in their row-major order.

        Args:
            new_shape: The output's shape, with as many elements as the input.

        Returns:
            A tensor of shape `new_shape`.
        """
        check_dimensions(new_shape, input.data_type)
        if math.prod(new_shape) != input.size:
            raise ValidationError(
                f"new_shape {list(new_shape)} has {math.prod(new_shape)} elements,"
                f" expected {input.size} as the input's {list(input.shape)}"
                f"{undecided(math.prod(new_shape), input.size)}"
            )
        return result(Descriptor(input.data_type, tuple(new_shape)))

    @operator(input=Limits(ANY), section="reverse-method")
    def reverse(
        self, input: MLOperand, *, axes: Sequence[int] | None = None, label: str = ""
    ) -> Inferred:
        """Reverse the order of the elements along `axes`.

        Args:
            axes: The dimensions, counted from 0, each once; default: all.

        Returns:
            A tensor of the input's shape.
        """
        used = tuple(range(input.rank)) if axes is None else tuple(axes)
        check_axes(used, input.rank)
        return result(Descriptor(input.data_type, input.shape), axes=used)

    @operator(input=Limits(ANY))
    def slice(
        self,
        input: MLOperand,
        starts: Sequence[Size],
        sizes: Sequence[Size],
        *,
        strides: Sequence[int] | None = None,
        label: str = "",
    ) -> Inferred:
        """Cut out a window of `sizes` elements from `starts` and take every `strides`-th element.

        Args:
            starts: First element of the window, for each dimension.
            sizes: Number of elements that the window spans, for each dimension; at least 1, and
                within the input.
            strides: Step, for each dimension, at least 1; default: all 1.

        Returns:
            A tensor of shape ceil(sizes / strides).
        """
        steps = (1,) * input.rank if strides is None else tuple(strides)
        check_list(starts, input.rank, "starts")
        check_list(sizes, input.rank, "sizes", minimum=1)
        check_list(steps, input.rank, "strides", minimum=1)
        for start, size, dimension in zip(starts, sizes, input.shape, strict=True):
            if not start + size <= dimension:
                raise ValidationError(
                    f"starts {list(starts)} + sizes {list(sizes)} leave the shape"
                    f" {list(input.shape)}"
                )
        shape = tuple(-(-size // step) for size, step in zip(sizes, steps, strict=True))
        return result(Descriptor(input.data_type, shape), strides=steps)

    @multi_operator(
        input=Limits(ANY, (1, MAX_RANK)),
        outputs={"outputs": (1, MAX_RANK)},
    )
    def split(
        self, input: MLOperand, splits: int | Sequence[Size], *, axis: int = 0, label: str = ""
    ) -> Inferred:
        """Split the input along `axis` into equal parts or into parts of specified sizes.

        Args:
            splits: Number of equal parts, a divisor of the dimension; or the parts' sizes, whose
                sum is the dimension.

        Returns:
            A list of the parts, each of the input's shape except along `axis`.
        """
        check_axis(axis, input.rank)
        size = input.shape[axis]
        count = splits if isinstance(splits, int) else len(splits)
        if not 0 < count <= MAX_TENSORS:
            raise ValidationError(f"splits: got {count} parts, expected 1 to {MAX_TENSORS}")
        if isinstance(splits, int):
            check_divides(splits, size, f"splits: got {splits}, expected a divisor of {size}")
        sizes = split_sizes(size, splits)
        if 0 in sizes or sum(sizes) != size:
            raise ValidationError(
                f"splits: got {shown(list(sizes))}, expected sizes from 1 with the sum {size}"
                f"{undecided(sum(sizes), size)}"
            )
        before, after = input.shape[:axis], input.shape[axis + 1 :]
        return result(*(Descriptor(input.data_type, (*before, n, *after)) for n in sizes))

    @operator(input=Limits(ANY))
    def tile(self, input: MLOperand, repetitions: Sequence[Size], *, label: str = "") -> Inferred:
        """Repeat the whole input along each dimension.

        Args:
            repetitions: Number of copies, at least 1, for each dimension.

        Returns:
            A tensor of the input's shape times `repetitions`.
        """
        check_list(repetitions, input.rank, "repetitions", minimum=1)
        shape = tuple(n * times for n, times in zip(input.shape, repetitions, strict=True))
        return result(Descriptor(input.data_type, shape))

    @operator(input=Limits(ANY))
    def transpose(
        self, input: MLOperand, *, permutation: Sequence[int] | None = None, label: str = ""
    ) -> Inferred:
        """Permute the dimensions: the output's dimension i is the input's permutation[i].

        Args:
            permutation: Each dimension, counted from 0, once; default: the reversed order.

        Returns:
            A tensor of the input's dimensions in their new order.
        """
        order = tuple(reversed(range(input.rank))) if permutation is None else tuple(permutation)
        check_list(order, input.rank, "permutation")
        check_axes(order, input.rank, "permutation")
        shape = tuple(input.shape[axis] for axis in order)
        return result(Descriptor(input.data_type, shape), permutation=order)

    @operator(input=Limits(ANY, (2, MAX_RANK)))
    def triangular(
        self, input: MLOperand, *, upper: bool = True, diagonal: SignedSize = 0, label: str = ""
    ) -> Inferred:
        """Keep the upper or lower triangle of the last two dimensions and set the rest to 0.

        Args:
            upper: Keep the upper triangle; False: the lower one.
            diagonal: The outermost diagonal of the triangle, counted from the main diagonal (0)
                towards the upper right.

        Returns:
            A tensor of the input's shape.
        """
        return result(Descriptor(input.data_type, input.shape))
