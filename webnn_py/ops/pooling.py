"""Pooling over windows. Source: WebNN 2026, "Pooling operations"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from webnn_py.core.convert import Size
from webnn_py.core.dimensions import is_open, undecided
from webnn_py.core.dtypes import ANY, FLOATS
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import check_list
from webnn_py.ir import Descriptor
from webnn_py.ops.convolution import (
    InputLayout,
    check_covered,
    check_sliding,
    check_window,
    dims,
    window_sizes,
)
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand

Rounding = Literal["floor", "ceil"]


def _pool(
    input: MLOperand,
    window_dimensions: Sequence[int] | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_shape_rounding: str,
    output_sizes: Sequence[int] | None,
) -> Inferred:
    batches, channels, height, width = dims(input.shape, layout, "nchw")
    window = (height, width) if window_dimensions is None else tuple(window_dimensions)
    check_list(window, 2, "window_dimensions", minimum=1)
    check_window(padding, strides, dilations)
    floors, ceils = window_sizes((height, width), window, padding, strides, dilations)
    sizes = floors if output_shape_rounding == "floor" else ceils
    if output_sizes is not None:
        check_list(output_sizes, 2, "output_sizes", minimum=1)
        sizes = (output_sizes[0], output_sizes[1])
        if sizes not in (floors, ceils):
            raise ValidationError(
                f"option 'output_sizes': got {list(sizes)}, expected {list(floors)} (floor)"
                f" or {list(ceils)} (ceil){undecided(sizes, floors)}"
            )

    def remedy() -> str:
        otherwise, _ = window_sizes(input.shape[1:3], window, padding, strides, dilations)
        fits = not is_open(otherwise) and min(otherwise) >= 1
        return "; it would fit with layout='nhwc'" if fits else ""

    check_covered(sizes, (height, width), window, padding, dilations, remedy)
    check_sliding((height, width), window, padding, strides, dilations, sizes)
    shape = dims((batches, channels, *sizes), "nchw", layout)
    return result(Descriptor(input.data_type, shape), window_dimensions=window)


class Pooling:
    """Builder methods of pooling; all three take the same options.

    Options:
        window_dimensions: Height and width of the window; default: those of the input.
        padding: [top, bottom, left, right]; the results ignore padded elements.
        strides: Step of the window: [height, width].
        dilations: Distance between the elements of a window: [height, width].
        output_shape_rounding: Rounding of the output's height and width. "floor" drops a
            window that exceeds the padded input, "ceil" keeps it.
        output_sizes: Height and width of the output; overrides the rounding.

    Returns:
        [n, c, h, w] in `layout`; height and width are each (size + padding - (window - 1) *
        dilation - 1) / stride + 1, rounded.

    Raises:
        ValidationError: A window is larger than the padded input, or `output_sizes` equal
            neither the sizes rounded down nor those rounded up.
    """

    @operator(input=Limits(FLOATS, 4), section="pool2d")
    def average_pool2d(
        self,
        input: MLOperand,
        *,
        window_dimensions: Sequence[Size] | None = None,
        padding: Sequence[Size] = (0, 0, 0, 0),
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        layout: InputLayout = "nchw",
        output_shape_rounding: Rounding = "floor",
        output_sizes: Sequence[Size] | None = None,
        label: str = "",
    ) -> Inferred:
        """Compute the mean of the elements in each window, without padding."""
        return _pool(**_options(locals()))

    @operator(input=Limits(FLOATS, 4), section="pool2d")
    def l2_pool2d(
        self,
        input: MLOperand,
        *,
        window_dimensions: Sequence[Size] | None = None,
        padding: Sequence[Size] = (0, 0, 0, 0),
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        layout: InputLayout = "nchw",
        output_shape_rounding: Rounding = "floor",
        output_sizes: Sequence[Size] | None = None,
        label: str = "",
    ) -> Inferred:
        """Compute the square root of the sum of squares in each window."""
        return _pool(**_options(locals()))

    @operator(input=Limits(ANY, 4), section="pool2d")
    def max_pool2d(
        self,
        input: MLOperand,
        *,
        window_dimensions: Sequence[Size] | None = None,
        padding: Sequence[Size] = (0, 0, 0, 0),
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        layout: InputLayout = "nchw",
        output_shape_rounding: Rounding = "floor",
        output_sizes: Sequence[Size] | None = None,
        label: str = "",
    ) -> Inferred:
        """Return the greatest element of each window."""
        return _pool(**_options(locals()))


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in ("self", "label")}
