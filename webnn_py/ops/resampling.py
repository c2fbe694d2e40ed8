"""Resampling of two dimensions. Source: WebNN 2026, "resample2d"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from webnn_py.core.convert import Size
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.core.shapes import check_axes, check_list
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand

InterpolationMode = Literal["nearest-neighbor", "linear"]


def resampled(
    shape: Sequence[int],
    scales: Sequence[float],
    sizes: Sequence[int] | None,
    axes: Sequence[int],
) -> tuple[int, ...]:
    """Return the shape after resampling: `sizes` along `axes`, or old sizes times `scales`."""
    new = list(shape)
    for i, axis in enumerate(axes):
        above, below = scales[i].as_integer_ratio()
        new[axis] = shape[axis] * above // below if sizes is None else sizes[i]
    return tuple(new)


def _single(scales: Sequence[float]) -> tuple[float, ...]:
    """Round the numbers to float32, the option's type in the IDL."""
    with np.errstate(over="ignore"):
        return tuple(float(np.float32(scale)) for scale in scales)


class Resampling:
    """Builder methods of resampling."""

    @operator(input=Limits(("float32", "float16", "uint8", "int8"), 4), section="resample2d-method")
    def resample2d(
        self,
        input: MLOperand,
        *,
        mode: InterpolationMode = "nearest-neighbor",
        scales: Sequence[float] = (1.0, 1.0),
        sizes: Sequence[Size] | None = None,
        axes: Sequence[int] = (2, 3),
        label: str = "",
    ) -> Inferred:
        """Resize the input along two axes; pixel centres lie at half-pixel positions.

        Args:
            mode: "nearest-neighbor" takes the nearest element, the earlier of two at one distance.
                "linear" interpolates between four and rounds integers, halves to the even one.
            scales: Factors for the two axes, as float32; the new sizes are rounded down.
            sizes: New sizes of the two axes; overrides `scales`.
            axes: The two axes.

        Returns:
            A tensor of the input's shape, except along the two axes.
        """
        factors = _single(scales)
        if len(factors) != 2 or not all(0 < factor < math.inf for factor in factors):
            raise ValidationError(
                f"option 'scales': got {shown(list(scales))}, expected 2 positive float32 numbers"
            )
        if sizes is not None:
            check_list(sizes, 2, "sizes", minimum=1)
        check_list(axes, 2, "axes")
        check_axes(axes, input.rank)
        shape = resampled(input.shape, factors, sizes, axes)
        return result(Descriptor(input.data_type, shape), scales=factors)
