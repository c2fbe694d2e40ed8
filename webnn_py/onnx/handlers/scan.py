"""Cumulative operators and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.handlers.fourier import Numbers, transform
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, at_least, check_rank, narrowing


@handles("CumSum")
def cumulative_sum(
    g: Emitter, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Any:
    """Sum all elements up to each one along an axis."""
    at = x.axis(axis.integer("axis"))
    return g.cumulative_sum(x, at, exclusive=bool(exclusive), reversed=bool(reverse))


@handles("CumProd")
def cumulative_product(
    g: Emitter, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Any:
    """Multiply all elements up to each one, in rounds that double the reach.

    Source: Hillis and Steele, "Data Parallel Algorithms", 1986.
    """
    at = x.axis(axis.integer("axis"))
    made = g.reverse(x, axes=[at]) if reverse else x
    if exclusive:
        made = _shifted(g, made, at, 1)
    reach = 1
    while reach < x.shape[at]:
        made = g.mul(made, _shifted(g, made, at, reach))
        reach *= 2
    if reverse:
        return g.reverse(made, axes=[at])
    return g.identity(made) if made is x else made


def _shifted(g: Emitter, x: Any, axis: int, by: int) -> Any:
    """Shift elements along an axis and fill the start with ones."""
    one, count = g.constant(1, x), min(by, x.shape[axis])
    ones = g.expand(one, [count if i == axis else n for i, n in enumerate(x.shape)])
    if count == x.shape[axis]:
        return ones
    rest = [n - by if i == axis else n for i, n in enumerate(x.shape)]
    return g.concat([ones, g.slice(x, [0] * x.rank, rest)], axis)


@handles("DFT", since=20)
def dft(
    g: Emitter,
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Any:
    """Compute the discrete Fourier transform (DFT)."""
    at = -2 if axis is None else axis.integer("axis")
    length = None if dft_length is None else dft_length.integer("dft_length")
    return _transformed(g, x, length, at, inverse, onesided)


@handles("DFT")
def dft_17(
    g: Emitter,
    x: Tensor,
    dft_length: Tensor | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> Any:
    """Handle DFT before opset 20."""
    length = None if dft_length is None else dft_length.integer("dft_length")
    return _transformed(g, x, length, axis, inverse, onesided)


@handles("STFT")
def stft(
    g: Emitter,
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Any:
    """Compute the short-time Fourier transform: frames of a signal times a window, then a DFT."""
    step = at_least("frame_step", frame_step.integer("frame_step"), 1)
    check_rank(2, 3, signal=signal)
    check_rank(1, window=window)
    if frame_length is not None:
        length = at_least("frame_length", frame_length.integer("frame_length"), 1)
    elif window is not None:
        length = window.shape[0]
    else:
        length = signal.shape[1]
    with narrowing():
        fits = 1 <= length <= signal.shape[1]
    if step < 1 or not fits:
        raise BrokenModelError(
            f"its frame_step is {step} and its frame_length {length}, of {signal.shape[1]} samples"
        )
    count = (signal.shape[1] - length) // step + 1
    starts = g.mul(g.places(count, 0, 2), g.size(step))
    places = g.add(starts, g.places(length, 1, 2))
    wide = signal if signal.rank == 3 else g.reshape(signal, [*signal.shape, 1])
    frames = g.gather(wide, places, axis=1)
    if window is not None:
        frames = g.mul(frames, g.reshape(window, [length, 1]))
    return _transformed(g, frames, None, 2, 0, onesided)


def _transformed(
    g: Emitter, x: Any, length: int | None, axis: int, inverse: int, onesided: int
) -> Any:
    """Compute the DFT along an axis of [..., 1 or 2], real and imaginary parts last."""
    at, parts = x.axis(axis), x.shape[-1]
    if at == x.rank - 1 or parts not in (1, 2):
        raise BrokenModelError(
            f"its input is {list(x.shape)} and its axis {axis}, expected 1 or 2 parts of numbers"
            " along the last axis, and another axis"
        )
    to_real = bool(inverse and onesided)
    size = x.shape[at]
    count = length if length is not None else 2 * (size - 1) if to_real else size
    if count < 1:
        raise BrokenModelError(f"its dft_length is {count}, expected at least 1")
    order = [i for i in range(x.rank - 1) if i != at]
    lead = [x.shape[i] for i in order]
    rows = g.transpose(g.to(x, "float32"), permutation=[x.rank - 1, *order, at])
    rows = g.reshape(rows, [parts, math.prod(lead), size])
    spectrum = Numbers(*(_half(g, rows, i) for i in range(parts)))
    if to_real:
        made = [transform(g, _mirrored(g, spectrum, count), count, 1, count).real]
    else:
        wanted = count // 2 + 1 if onesided else count
        cut = spectrum.each(lambda one: _fitted(g, one, count))
        found = transform(g, cut, count, 1 if inverse else -1, wanted)
        made = [found.real, found.imaginary]
    if inverse:
        made = [g.mul(one, 1 / count) for one in made]
    shape = [*lead, made[0].shape[1]]
    whole = [g.reshape(one, [*shape, 1]) for one in made]
    joined = g.concat(whole, len(shape)) if len(whole) > 1 else whole[0]
    back = list(range(len(lead)))
    back.insert(at, len(lead))
    return g.to(g.transpose(joined, permutation=[*back, len(lead) + 1]), x.data_type)


def _half(g: Emitter, rows: Any, part: int) -> Any:
    _, count, size = rows.shape
    return g.reshape(g.slice(rows, [part, 0, 0], [1, count, size]), [count, size])


def _fitted(g: Emitter, x: Any, count: int) -> Any:
    """Cut each row to `count` numbers, or pad it with zeros."""
    rows, size = x.shape
    if size > count:
        return g.slice(x, [0, 0], [rows, count])
    return g.pad(x, [0, 0], [0, count - size]) if size < count else x


def _mirrored(g: Emitter, half: Numbers, count: int) -> Numbers:
    """Return the whole spectrum of a real signal: append the conjugate of the first half."""
    kept = half.each(lambda one: _fitted(g, one, count // 2 + 1))
    tail = (count - 1) // 2
    if not tail:
        return kept

    def turned(one: Any) -> Any:
        return g.reverse(g.slice(one, [0, 1], [one.shape[0], tail]), axes=[1])

    real = g.concat([kept.real, turned(kept.real)], 1)
    if kept.imaginary is None:
        return Numbers(real)
    return Numbers(real, g.concat([kept.imaginary, g.neg(turned(kept.imaginary))], 1))
