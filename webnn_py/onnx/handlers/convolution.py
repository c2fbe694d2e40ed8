"""Handlers of Conv and ConvTranspose in one, two and three dimensions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.windows import (
    AUTO_PADS,
    Windows,
    overlapped,
    padding,
    placed,
    steps_of,
)
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import (
    BrokenModelError,
    Tensor,
    at_least,
    check_rank,
    choice,
    listed,
    refuse,
)

MAX_TAPS = 1024
"""Largest depth of a 3-D filter; each plane becomes a 2-D convolution."""


def convolved(g: Emitter, x: Any, w: Any, b: Any, over: Windows, group: int) -> Any:
    """Emit a convolution of 1 to 3 dimensions by 2-D convolutions.

    Args:
        g: The emitter.
        x: The input, [batch, channels, *size].
        w: The filter, [output channels, channels / group, *window].
        b: The bias, [output channels], or None.
        over: Padding, strides and dilations.
        group: The number of groups of channels.
    """
    rank = x.rank - 2
    if rank == 1:
        wide_x, wide_w = (g.reshape(one, [*one.shape[:2], 1, one.shape[2]]) for one in (x, w))
        made = convolved(g, wide_x, wide_w, b, over.widened(before=1), group)
        return g.reshape(made, [*made.shape[:2], made.shape[3]])
    if rank == 2:
        options = {} if b is None else {"bias": b}
        return g.conv2d(
            x,
            w,
            padding=[*over.pads[0], *over.pads[1]],
            strides=over.strides,
            dilations=over.dilations,
            groups=group,
            **options,
        )
    if rank != 3:
        refuse(f"a convolution of {rank} dimensions")
    stride, dilation = over.strides[0], over.dilations[0]
    low, high = over.pads[0]
    if low or high:
        x = g.pad(x, [0, 0, low, 0, 0], [0, 0, high, 0, 0])
    depth = (x.shape[2] - over.reach[0]) // stride + 1
    n, c, _, h, width = x.shape
    terms = []
    _check_taps(w.shape[2])
    for tap in range(w.shape[2]):
        span = (depth - 1) * stride + 1
        part = g.slice(
            x,
            [0, 0, tap * dilation, 0, 0],
            [n, c, span, h, width],
            strides=[1, 1, stride, 1, 1],
        )
        flat = g.reshape(g.transpose(part, permutation=[0, 2, 1, 3, 4]), [n * depth, c, h, width])
        one = g.slice(w, [0, 0, tap, 0, 0], [*w.shape[:2], 1, *w.shape[3:]])
        filter = g.reshape(one, [*w.shape[:2], *w.shape[3:]])
        bias = b if tap == 0 else None
        terms.append(convolved(g, flat, filter, bias, over.part(slice(1, None)), group))
    total = functools.reduce(g.add, terms)
    parted = g.reshape(total, [n, depth, *total.shape[1:]])
    return g.transpose(parted, permutation=[0, 2, 1, 3, 4])


def _check_taps(count: Any) -> None:
    if count > MAX_TAPS:
        refuse(f"a filter of {count} planes, expected at most {MAX_TAPS}")


def _check_operands(
    kernel_shape: list[int] | None, x: Tensor, w: Tensor, b: Tensor | None, group: int
) -> None:
    check_rank(3, 10, x=x)
    check_rank(x.rank, w=w)
    check_rank(1, b=b)
    at_least("group", group, 1)
    if kernel_shape and kernel_shape != list(w.shape[2:]):
        raise BrokenModelError(f"its kernel_shape is {kernel_shape}, its filter {list(w.shape)}")


@handles("Conv")
def conv(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Emit Conv: a convolution of 1 to 3 dimensions."""
    _check_operands(kernel_shape, x, w, b, group)
    over = placed(x, w.shape[2:], auto_pad, pads, strides, dilations)
    return convolved(g, x, w, b, over, group)


@handles("ConvTranspose")
def conv_transpose(
    g: Emitter,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Emit ConvTranspose: a transposed convolution without padding, cropped to its output."""
    _check_operands(kernel_shape, x, w, b, group)
    channels = x.shape[1]
    if isinstance(channels, int) and channels % group:  # valid in WebNN, but no engine computes it
        raise BrokenModelError(f"its {channels} input channels do not divide into {group} groups")
    rank = x.rank - 2
    steps, spread = steps_of(rank, strides, dilations)
    more = listed("output_padding", output_padding or [0] * rank, rank, 0)
    choice("auto_pad", auto_pad, *AUTO_PADS)
    size, window = x.shape[2:], w.shape[2:]
    whole = [
        (size[i] - 1) * steps[i] + (window[i] - 1) * spread[i] + 1 + more[i] for i in range(rank)
    ]
    target = listed("output_shape", output_shape[-rank:], rank, 1) if output_shape else None
    if target is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        target = [size[i] * steps[i] for i in range(rank)]
    if target is not None:
        total = [max(0, whole[i] - target[i]) for i in range(rank)]
        lower = auto_pad != "SAME_UPPER"
        begin = [t - t // 2 if lower else t // 2 for t in total]
        around = list(zip(begin, [t - x for t, x in zip(total, begin, strict=True)], strict=True))
    else:
        kind = "VALID" if auto_pad == "VALID" else "NOTSET"
        around = padding(kind, pads, size, window, steps, spread)
    full = _spread(g, x, w, steps, spread, group)
    cut = [max(0, low) for low, _ in around]
    sizes = target or [whole[i] - sum(around[i]) for i in range(rank)]
    lead = list(full.shape[:2])
    # Output padding and negative padding extend beyond the filter's reach with zeros.
    short = [max(0, cut[i] + sizes[i] - full.shape[2 + i]) for i in range(rank)]
    front = [max(0, -low) for low, _ in around]
    short = [max(0, s - f) for s, f in zip(short, front, strict=True)]
    if any(short) or any(front):
        full = g.pad(full, [0, 0, *front], [0, 0, *short])
    made = full
    if sizes != list(full.shape[2:]):
        made = g.slice(full, [0, 0, *cut], [*lead, *sizes])
    if b is None:
        return made
    return g.add(made, g.reshape(b, [1, b.shape[0], *[1] * rank]))


def _spread(
    g: Emitter, x: Any, w: Any, strides: Sequence[int], dilations: Sequence[int], group: int
) -> Any:
    """Emit a transposed convolution of 1 to 3 dimensions without padding."""
    rank = x.rank - 2
    if rank == 1:
        wide_x, wide_w = (g.reshape(one, [*one.shape[:2], 1, one.shape[2]]) for one in (x, w))
        made = _spread(g, wide_x, wide_w, [1, *strides], [1, *dilations], group)
        return g.reshape(made, [*made.shape[:2], made.shape[3]])
    if rank == 2:
        return g.conv_transpose2d(
            x, w, strides=list(strides), dilations=list(dilations), groups=group
        )
    if rank != 3:
        refuse(f"a transposed convolution of {rank} dimensions")
    n, c, depth, h, width = x.shape
    total = (depth - 1) * strides[0] + (w.shape[2] - 1) * dilations[0] + 1
    flat = g.reshape(g.transpose(x, permutation=[0, 2, 1, 3, 4]), [n * depth, c, h, width])
    terms = []
    _check_taps(w.shape[2])
    for tap in range(w.shape[2]):
        one = g.slice(w, [0, 0, tap, 0, 0], [*w.shape[:2], 1, *w.shape[3:]])
        filter = g.reshape(one, [*w.shape[:2], *w.shape[3:]])
        made = _spread(g, flat, filter, strides[1:], dilations[1:], group)
        rows = g.reshape(made, [n, depth, *made.shape[1:]])
        terms.append(g.reshape(rows, [n, 1, 1, depth, math.prod(made.shape[1:])]))
    blocks = g.concat(terms, 1) if len(terms) > 1 else terms[0]
    over = Windows([w.shape[2]], [(0, 0)], [strides[0]], [dilations[0]])
    whole = g.reshape(overlapped(g, blocks, over, total), [n, total, *made.shape[1:]])
    return g.transpose(whole, permutation=[0, 2, 1, 3, 4])
