"""Sliding windows of convolution and pooling along one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webnn_py.core.errors import ValidationError
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.shapes import is_over


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that slide along one dimension.

    Attributes:
        size: Number of elements of the dimension.
        padding: Number of padding elements before the first one.
        taps: Number of elements that one window reads.
        stride: Distance from one window to the next, in elements.
        dilation: Distance from one tap to the next, in elements.
        count: Number of windows.
    """

    size: int
    padding: int
    taps: int
    stride: int
    dilation: int
    count: int

    @property
    def span(self) -> int:
        """Number of elements from the first window's first tap to the last window's last tap."""
        return (self.count - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def plain(self) -> Windows:
        """Return the same windows with stride and dilation 1 where these have no effect."""
        return replace(
            self,
            stride=self.stride if self.count > 1 else 1,
            dilation=self.dilation if self.taps > 1 else 1,
        )

    def cropped(self) -> Windows:
        """Return the same windows without the outer taps that read padding in every window.

        At least one tap remains.
        """
        furthest = (self.count - 1) * self.stride
        first = max(0, -(-(self.padding - furthest) // self.dilation))
        first = min(first, self.padding // self.dilation, self.taps - 1)
        last = min(self.taps - 1, (self.size - 1 + self.padding) // self.dilation)
        left = replace(
            self,
            padding=self.padding - first * self.dilation,
            taps=max(1, last - first + 1),
        )
        return left.plain()


def check_reach(reach: Sequence[int], padding: Sequence[int]) -> None:
    """Check that the padded height and width are below 2^31.

    The specification has no such limit (see spec/deviations.md).

    Args:
        reach: Number of elements along height and width, with padding.
        padding: The option, for the message.

    Raises:
        ValidationError: A dimension is larger.
    """
    for extent in reach:
        if is_over(extent, MAX_DIMENSION):
            raise ValidationError(
                f"windows over {extent} elements along one dimension, padding"
                f" {list(padding)} included; expected at most {MAX_DIMENSION}: take smaller"
                " paddings, strides or dilations"
            )


def placed(
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    counts: Sequence[int],
) -> list[Windows]:
    """Return the windows along height and width; the arguments are the operator's options."""
    return [
        Windows(size[i], padding[2 * i], window[i], strides[i], dilations[i], counts[i])
        for i in (0, 1)
    ]


def sliding(
    size: Sequence[int],
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    counts: Sequence[int],
) -> tuple[Windows, Windows]:
    """Return the windows as `placed` does, with stride and dilation 1 where they have no effect."""
    height, width = placed(size, window, padding, strides, dilations, counts)
    return height.plain(), width.plain()
