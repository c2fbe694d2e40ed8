"""Where windows of convolutions and pooling stand, in any number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.onnx.tensor import refuse

Pads = list[tuple[int, int]]


def placed(
    size: Sequence[int],
    window: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
) -> tuple[Pads, list[int], list[int]]:
    """The padding, strides and dilations that the attributes of an operator say."""
    steps, spread = (list(given or [1] * len(size)) for given in (strides, dilations))
    return padding(auto_pad, pads, size, window, steps, spread), steps, spread


def padding(
    auto_pad: str,
    pads: Sequence[int] | None,
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pads:
    """The padding before and after each dimension."""
    rank = len(size)
    if auto_pad in ("", "NOTSET"):
        given = list(pads) if pads else [0] * (2 * rank)
        return [(given[i], given[i + rank]) for i in range(rank)]
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        refuse(f"auto_pad {auto_pad!r} is not known")
    found = []
    for i in range(rank):
        count = -(-size[i] // strides[i])
        reach = (window[i] - 1) * dilations[i] + 1
        total = max(0, (count - 1) * strides[i] + reach - size[i])
        less, more = total // 2, total - total // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def counts(
    size: Sequence[int],
    window: Sequence[int],
    pads: Pads,
    strides: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: int = 0,
) -> list[int]:
    """How many windows there are along each dimension; none begins in the padding after it."""
    found = []
    for n, w, (before, after), stride, dilation in zip(
        size, window, pads, strides, dilations, strict=True
    ):
        room = n + before + after - (w - 1) * dilation - 1
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= n + before:
            count -= 1
        found.append(count)
    return found
