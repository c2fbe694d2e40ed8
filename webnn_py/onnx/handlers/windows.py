"""Layout of the windows of convolutions and pooling, in any number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webnn_py.core.dimensions import is_open
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.tensor import BrokenModelError, Tensor, check_rank, choice, listed

Pads = list[tuple[int, int]]
AUTO_PADS = ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Windows:
    """Layout of windows over an input, one value for each dimension.

    Attributes:
        taps: Number of elements of a window.
        pads: Padding before and after the input, in elements.
        strides: Distance from one window to the next.
        dilations: Distance from one element of a window to the next.
    """

    taps: list[int]
    pads: Pads
    strides: list[int]
    dilations: list[int]

    @property
    def reach(self) -> list[int]:
        """Return the extent of a window along each dimension, dilation included."""
        return [(n - 1) * d + 1 for n, d in zip(self.taps, self.dilations, strict=True)]

    @property
    def is_padded(self) -> bool:
        """Return whether any dimension is padded."""
        return self.pads != [(0, 0)] * len(self.pads)

    def unpadded(self) -> Windows:
        """Return the windows without padding."""
        return Windows(self.taps, [(0, 0)] * len(self.pads), self.strides, self.dilations)

    def widened(self, before: int = 0, after: int = 0) -> Windows:
        """Return the windows with more dimensions, along which each has one element."""
        return Windows(
            [1] * before + self.taps + [1] * after,
            [(0, 0)] * before + self.pads + [(0, 0)] * after,
            [1] * before + self.strides + [1] * after,
            [1] * before + self.dilations + [1] * after,
        )

    def part(self, dimensions: slice) -> Windows:
        """Return the windows along some of the dimensions."""
        return Windows(
            self.taps[dimensions],
            self.pads[dimensions],
            self.strides[dimensions],
            self.dilations[dimensions],
        )

    def counts(self, size: Sequence[int], ceil_mode: int = 0) -> list[int]:
        """Return the number of windows along each dimension.

        With `ceil_mode`, leave out windows that begin in the padding after the input.

        Raises:
            BrokenModelError: A window is longer than the padded input.
        """
        found = []
        for n, reach, (before, after), stride in zip(
            size, self.reach, self.pads, self.strides, strict=True
        ):
            room = n + before + after - reach
            if not is_open([room]) and room < 0:
                raise BrokenModelError(
                    f"its window reaches over {reach} elements, of {n} with {before} and {after} of"
                    " padding"
                )
            count = (-(-room // stride) if ceil_mode else room // stride) + 1
            if ceil_mode and (count - 1) * stride >= n + before:
                count -= 1
            found.append(count)
        return found


def placed(
    x: Tensor,
    taps: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
) -> Windows:
    """Return the windows over an input, from an operator's attributes.

    Raises:
        BrokenModelError: The attributes do not fit each other.
    """
    check_rank(3, 10, x=x)
    size = x.shape[2:]
    steps, spread = steps_of(len(size), strides, dilations)
    taps = listed("kernel_shape", taps, len(size), 1)
    around = padding(auto_pad, pads, size, taps, steps, spread)
    return Windows(taps, around, steps, spread)


def steps_of(
    rank: int, strides: Sequence[int] | None, dilations: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Return strides and dilations, ones by default.

    Raises:
        BrokenModelError: There is not one of each per dimension, or one is below 1.
    """
    return (
        listed("strides", strides or [1] * rank, rank, 1),
        listed("dilations", dilations or [1] * rank, rank, 1),
    )


def edges(rank: int, pads: Sequence[int] | None) -> Pads:
    """Return the padding before and after each dimension, zeros by default.

    Raises:
        BrokenModelError: There are not two values per dimension.
    """
    given = listed("pads", pads or [0] * (2 * rank), 2 * rank)
    return [(given[i], given[i + rank]) for i in range(rank)]


def padding(
    auto_pad: str,
    pads: Sequence[int] | None,
    size: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pads:
    """Return the padding before and after each dimension, from `auto_pad` or `pads`."""
    rank = len(size)
    choice("auto_pad", auto_pad, *AUTO_PADS)
    if auto_pad in ("", "NOTSET"):
        return edges(rank, pads)
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    found = []
    for i in range(rank):
        count = -(-size[i] // strides[i])
        reach = (taps[i] - 1) * dilations[i] + 1
        total = max(0, (count - 1) * strides[i] + reach - size[i])
        less, more = total // 2, total - total // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def overlapped(g: Emitter, x: Any, over: Windows, size: int) -> Any:
    """Sum blocks along one axis: [outer, taps, middle, blocks, inner] to [..., size, inner].

    Blocks of the taps within one stride do not overlap and form a row; with dilations, each tap has
    its own row. Row k belongs k strides, or k dilations, further on than row 0.

    Pad rows of length L by one such step, flatten them, and read them as rows of length L. This
    shifts row k by k steps, so that a sum over the rows adds the overlaps.
    """
    outer, taps, middle, blocks, inner = x.shape
    (stride,), (dilation,) = over.strides, over.dilations
    together = stride if dilation == 1 else 1
    rows = -(-taps // together)
    x = g.pad(x, [0] * 5, [0, rows * together - taps, 0, 0, 0])
    x = g.reshape(x, [outer, rows, together, middle, blocks, inner])
    x = g.pad(x, [0] * 6, [0, 0, stride - together, 0, 0, 0])
    x = g.transpose(x, permutation=[0, 3, 1, 4, 2, 5])
    lead, length = outer * middle, blocks * stride
    step = stride if dilation == 1 else dilation
    x = g.pad(g.reshape(x, [lead, rows, length, inner]), [0] * 4, [0, 0, rows * step, 0])
    length += (rows - 1) * step
    flat = g.reshape(x, [lead, rows * (length + step), inner])
    skewed = g.reshape(
        g.slice(flat, [0, 0, 0], [lead, rows * length, inner]), [lead, rows, length, inner]
    )
    summed = g.reduce_sum(skewed, axes=[1])
    first = over.pads[0][0]
    short = max(0, first + size - length)
    summed = g.pad(summed, [0] * 3, [0, short, 0])
    return g.slice(summed, [0, first, 0], [lead, size, inner])
