"""Convolutions. Source: WebNN 2026, "conv2d" and "convTranspose2d"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from webnn_py.core.convert import Size
from webnn_py.core.dimensions import check_divides, is_open, undecided
from webnn_py.core.dtypes import FLOATS
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import Shape, check_list, conv_output
from webnn_py.ir import Descriptor
from webnn_py.ops import remedies
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand
from webnn_py.ops.windows import check_reach, placed

InputLayout = Literal["nchw", "nhwc"]
Conv2dFilterLayout = Literal["oihw", "hwio", "ohwi", "ihwo"]
ConvTranspose2dFilterLayout = Literal["iohw", "hwoi", "ohwi"]


def dims(shape: Sequence[int], layout: str, wanted: str) -> tuple[int, ...]:
    """Reorder `shape` from the order of `layout` to that of `wanted`."""
    return tuple(shape[layout.index(letter)] for letter in wanted)


def check_window(padding: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> None:
    """Check lengths and lowest values of the options that convolutions and pooling share."""
    check_list(padding, 4, "padding")
    check_list(strides, 2, "strides", minimum=1)
    check_list(dilations, 2, "dilations", minimum=1)


def check_bias(bias: MLOperand | None, channels: int) -> None:
    """Check that a bias has one number for each output channel."""
    if bias is not None and bias.shape != (channels,):
        raise ValidationError(
            f"operand 'bias': shape {list(bias.shape)}, expected [{channels}] (output channels)"
            f"{undecided(bias.shape, (channels,))}"
        )


def _conv2d_fits(
    input: MLOperand, filter: MLOperand, groups: int, input_layout: str, filter_layout: str
) -> bool:
    """Whether the channels of input and filter fit each other in a convolution."""
    out, channels_in = dims(filter.shape, filter_layout, "oi")
    channels = input.shape[input_layout.index("c")]
    return channels == channels_in * groups and out % groups == 0


def _conv_transpose2d_fits(
    input: MLOperand, filter: MLOperand, input_layout: str, filter_layout: str
) -> bool:
    """Whether the channels of input and filter fit each other in a transposed convolution."""
    channels = input.shape[input_layout.index("c")]
    return channels == filter.shape[filter_layout.index("i")]


def _groups(input: MLOperand, filter: MLOperand, input_layout: str, filter_layout: str) -> str:
    """Advise the number of groups with which the channels would fit; "" if there is none."""
    channels = input.shape[input_layout.index("c")]
    out, channels_in = dims(filter.shape, filter_layout, "oi")
    if is_open((channels, out, channels_in)):
        return ""
    groups, rest = divmod(channels, channels_in)
    return "" if rest or out % max(groups, 1) or groups < 1 else f"; they would with {groups=}"


def check_covered(
    sizes: Sequence[int],
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    remedy: Callable[[], str] = str,
) -> None:
    """Raise a ValidationError if a window is larger than the padded input."""
    if not all(count >= 1 for count in sizes):
        dilated = "" if set(dilations) == {1} else f" with dilations {list(dilations)}"
        padded = f" with padding {list(padding)}" if any(padding) else ""
        raise ValidationError(
            f"a window of {window[0]} x {window[1]}{dilated} is larger than the input of"
            f" {size[0]} x {size[1]}{padded}{remedy()}"
        )


def window_sizes(
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Shape, Shape]:
    """Return the output's height and width, first rounded down, then rounded up."""
    height = conv_output(size[0], window[0], (padding[0], padding[1]), strides[0], dilations[0])
    width = conv_output(size[1], window[1], (padding[2], padding[3]), strides[1], dilations[1])
    return (height[0], width[0]), (height[1], width[1])


def check_sliding(
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    counts: Sequence[int],
) -> None:
    """Check that the padded input and the windows stay below the limit of `check_reach`."""
    check_reach([n + sum(padding[2 * i : 2 * i + 2]) for i, n in enumerate(size)], padding)
    windows = placed(size, window, padding, strides, dilations, counts)
    check_reach([along.span for along in windows], padding)


def transposed_sizes(
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """Return the output height and width of a transposed convolution without output padding."""
    return tuple(
        (size[i] - 1) * strides[i]
        + (window[i] - 1) * dilations[i]
        + 1
        - padding[2 * i]
        - padding[2 * i + 1]
        for i in (0, 1)
    )


def convolved_shape(
    input: MLOperand,
    filter: MLOperand,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: InputLayout,
    filter_layout: Conv2dFilterLayout,
) -> Shape:
    """Check the operands and options of a convolution, and return its output's shape."""
    check_window(padding, strides, dilations)
    batches, channels, height, width = dims(input.shape, input_layout, "nchw")
    out, channels_in, *window = dims(filter.shape, filter_layout, "oihw")
    if channels != channels_in * groups:
        fits = functools.partial(_conv2d_fits, input, filter, max(groups, 1))
        inputs = remedies.given_first(input_layout, get_args(InputLayout))
        filters = remedies.given_first(filter_layout, get_args(Conv2dFilterLayout))
        remedy = (
            remedies.layouts(fits, input_layout=inputs, filter_layout=(filter_layout,))
            or _groups(input, filter, input_layout, filter_layout)
            or remedies.layouts(fits, input_layout=inputs, filter_layout=filters)
        )
        raise ValidationError(
            f"{channels} input channels in {groups} groups do not fit the filter's"
            f" {channels_in} input channels (shapes {list(input.shape)} {input_layout},"
            f" {list(filter.shape)} {filter_layout})"
            f"{undecided(channels, channels_in * groups) or remedy}"
        )
    check_divides(groups, out, f"{out} output channels do not divide into {groups} groups")
    counts, _ = window_sizes((height, width), window, padding, strides, dilations)
    check_covered(counts, (height, width), window, padding, dilations)
    check_sliding((height, width), window, padding, strides, dilations, counts)
    return dims((batches, out, *counts), "nchw", input_layout)


class Convolution:
    """Builder methods of convolutions."""

    @operator(input=Limits(FLOATS, 4), filter=Limits("input", 4), bias=Limits("input", 1))
    def conv2d(
        self,
        input: MLOperand,
        filter: MLOperand,
        *,
        bias: MLOperand | None = None,
        padding: Sequence[Size] = (0, 0, 0, 0),
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        groups: int = 1,
        input_layout: InputLayout = "nchw",
        filter_layout: Conv2dFilterLayout = "oihw",
        label: str = "",
    ) -> Inferred:
        """Convolve [n, c, h, w] with a filter of [o, c / groups, kh, kw].

        A GPU may skip padding, so infinite and NaN filter taps need not turn its zeros into NaN.

        Args:
            input: A tensor in the order of `input_layout`.
            filter: A tensor in the order of `filter_layout`.
            bias: One number for each output channel.
            padding: Rows and columns of zeros around the input: [top, bottom, left, right].
            strides: Step of the window: [height, width].
            dilations: Distance between filter taps: [height, width].
            groups: Number of independent groups of input and output channels.
            input_layout: Order of the input's and output's dimensions.
            filter_layout: Order of the filter's dimensions.

        Returns:
            [n, o, h, w] in `input_layout`; height and width are each
            (size + padding - (taps - 1) * dilation - 1) / stride + 1, rounded down.

        Raises:
            ValidationError: Channels of input, filter, bias and groups do not fit each other, or
                the window is larger than the padded input.
        """
        options = padding, strides, dilations, groups, input_layout, filter_layout
        shape = convolved_shape(input, filter, *options)
        check_bias(bias, *dims(filter.shape, filter_layout, "o"))
        return result(Descriptor(input.data_type, shape))

    @operator(input=Limits(FLOATS, 4), filter=Limits("input", 4), bias=Limits("input", 1))
    def conv_transpose2d(
        self,
        input: MLOperand,
        filter: MLOperand,
        *,
        bias: MLOperand | None = None,
        padding: Sequence[Size] = (0, 0, 0, 0),
        strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1),
        output_padding: Sequence[Size] = (0, 0),
        output_sizes: Sequence[Size] | None = None,
        groups: int = 1,
        input_layout: InputLayout = "nchw",
        filter_layout: ConvTranspose2dFilterLayout = "iohw",
        label: str = "",
    ) -> Inferred:
        """Compute the transposed convolution of [n, c, h, w] with a filter [c, o / groups, kh, kw].

        Args:
            input: A tensor in the order of `input_layout`.
            filter: A tensor in the order of `filter_layout`.
            bias: One number for each output channel.
            padding: Rows and columns to cut off the output: [top, bottom, left, right].
            strides: Distance of neighbouring input elements in the output: [height, width].
            dilations: Distance between filter taps: [height, width].
            output_padding: Rows and columns to add at the bottom and the right, fewer than the
                stride.
            output_sizes: Height and width of the output; overrides `output_padding`.
            groups: Number of independent groups of input and output channels. If it does not divide
                the input channels, the graph is valid, as in the specification, but no engine
                computes it (OperationError).
            input_layout: Order of the input's and output's dimensions.
            filter_layout: Order of the filter's dimensions.

        Returns:
            [n, o, h, w] in `input_layout`; height and width are each (size - 1) * stride +
            (taps - 1) * dilation + 1 - padding + output padding.

        Raises:
            ValidationError: Channels of input, filter, bias and groups do not fit each other, the
                output is empty, or the output padding is not smaller than the stride.
        """
        check_window(padding, strides, dilations)
        check_list(output_padding, 2, "output_padding")
        batches, channels, *size = dims(input.shape, input_layout, "nchw")
        channels_in, out, *window = dims(filter.shape, filter_layout, "iohw")
        if channels != channels_in:
            remedy = remedies.layouts(
                functools.partial(_conv_transpose2d_fits, input, filter),
                input_layout=remedies.given_first(input_layout, get_args(InputLayout)),
                filter_layout=remedies.given_first(
                    filter_layout, get_args(ConvTranspose2dFilterLayout)
                ),
            )
            raise ValidationError(
                f"{channels} input channels (shape {list(input.shape)} {input_layout}) do not fit"
                f" the filter's {channels_in} (shape {list(filter.shape)} {filter_layout})"
                f"{undecided(channels, channels_in) or remedy}"
            )
        if groups == 0:
            raise ValidationError("option 'groups': got 0, expected at least 1")
        check_bias(bias, out * groups)
        least = transposed_sizes(size, window, padding, strides, dilations)
        sizes = tuple(n + extra for n, extra in zip(least, output_padding, strict=True))
        if output_sizes is not None:
            check_list(output_sizes, 2, "output_sizes")
            sizes = tuple(output_sizes)
        for got, low, stride in zip(sizes, least, strides, strict=True):
            if not low <= got < low + stride:
                name = "output_padding" if output_sizes is None else "output_sizes"
                raise ValidationError(
                    f"option {name!r}: an output of {list(sizes)}, expected from {list(least)} to"
                    f" less than a stride {list(strides)} more"
                )
        if not all(size >= 1 for size in sizes):
            raise ValidationError(
                f"padding {list(padding)} leaves nothing of the output: {list(sizes)}"
            )
        # Each input element is spread over one window of the output.
        windows = placed(sizes, window, padding, strides, dilations, size)
        check_reach([along.span for along in windows], padding)
        check_reach([n + sum(padding[2 * i : 2 * i + 2]) for i, n in enumerate(sizes)], padding)
        shape = dims((batches, out * groups, *sizes), "nchw", input_layout)
        return result(Descriptor(input.data_type, shape))
