"""Windows along one dimension: how far they reach, and what of them makes a difference."""

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
        size: Elements of the dimension.
        padding: Elements put before the first one.
        taps: Elements that one window looks at.
        stride: From one window to the next.
        dilation: From one tap to the next.
        count: Windows.
    """

    size: int
    padding: int
    taps: int
    stride: int
    dilation: int
    count: int

    @property
    def span(self) -> int:
        """Elements from the first one of the first window to the last one of the last."""
        return (self.count - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def plain(self) -> Windows:
        """The same windows, without a stride or dilation that nothing follows from."""
        return replace(
            self,
            stride=self.stride if self.count > 1 else 1,
            dilation=self.dilation if self.taps > 1 else 1,
        )

    def cropped(self) -> Windows:
        """The same windows, without taps before and behind that never meet the tensor.

        One tap is left of windows that lie in padding as a whole.
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
    """What windows slide over can be counted in 31 bits, padding included.

    Args:
        reach: Elements along height and width, the padding included.
        padding: The option, for the message.

    Raises:
        ValidationError: It has more, a departure from the texts (spec/deviations.md).
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
    """The windows of a convolution or pooling, along height and width; arguments as its options."""
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
    """As `placed`, without a stride or dilation that nothing follows from."""
    height, width = placed(size, window, padding, strides, dilations, counts)
    return height.plain(), width.plain()
