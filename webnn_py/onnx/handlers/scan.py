"""What runs along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import Tensor


@handles("CumSum")
def cumulative_sum(
    g: Emitter, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Any:
    """Sums of all elements up to each one."""
    at = x.axis(axis.integers("axis")[0])
    return g.cumulative_sum(x, at, exclusive=bool(exclusive), reversed=bool(reverse))


@handles("CumProd")
def cumulative_product(
    g: Emitter, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0
) -> Any:
    """Products of all elements up to each one, in a round for each doubling of the reach."""
    at = x.axis(axis.integers("axis")[0])
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
    """Moved along an axis, ones put in before."""
    ones = g.constant(np.ones([by if i == axis else n for i, n in enumerate(x.shape)]), x)
    if by >= x.shape[axis]:
        return g.constant(np.ones(x.shape), x)
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
    """The discrete Fourier transform, by products with matrices of sines and cosines."""
    at = -2 if axis is None else axis.integers("axis")[0]
    length = None if dft_length is None else dft_length.integers("dft_length")[0]
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
    """Before opset 20."""
    length = None if dft_length is None else dft_length.integers("dft_length")[0]
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
    """Fourier transforms of frames of a signal, each times a window."""
    (step,) = frame_step.integers("frame_step")
    if frame_length is not None:
        (length,) = frame_length.integers("frame_length")
    elif window is not None:
        length = window.shape[0]
    else:
        length = signal.shape[1]
    count = (signal.shape[1] - length) // step + 1
    starts = g.mul(g.places(count, 0, 2), g.size(step))
    places = g.add(starts, g.array(np.arange(length)))
    wide = signal if signal.rank == 3 else g.reshape(signal, [*signal.shape, 1])
    frames = g.gather(wide, places, axis=1)
    if window is not None:
        frames = g.mul(frames, g.reshape(window, [length, 1]))
    return _transformed(g, frames, None, 2, 0, onesided)


def _transformed(
    g: Emitter, x: Any, length: int | None, axis: int, inverse: int, onesided: int
) -> Any:
    at = x.axis(axis)
    size = x.shape[at]
    count = size if length is None else length
    if inverse and onesided:
        return _real(g, x, 2 * (size - 1) if length is None else length, at)
    used = min(size, count)
    if used < size:
        x = g.slice(x, [0] * x.rank, [used if i == at else n for i, n in enumerate(x.shape)])
    is_complex = x.shape[-1] == 2
    results = count // 2 + 1 if onesided else count
    angles = 2 * np.pi * (np.outer(np.arange(used), np.arange(results)) % count) / count
    sign = 1 if inverse else -1
    scale = 1 / count if inverse else 1
    cosines, sines = np.cos(angles) * scale, sign * np.sin(angles) * scale
    order = [i for i in range(x.rank - 1) if i != at] + [x.rank - 1, at]
    rows = g.transpose(x, permutation=order)
    lead = list(rows.shape[:-2])
    flat = g.reshape(rows, [math.prod(lead), rows.shape[-2] * used])
    if is_complex:
        matrix = np.block([[cosines, sines], [-sines, cosines]])
    else:
        matrix = np.hstack([cosines, sines])
    made = g.matmul(flat, g.constant(matrix, x))
    parted = g.reshape(made, [*lead, 2, results])
    back = list(range(len(lead)))
    back.insert(at, len(lead) + 1)
    return g.transpose(parted, permutation=[*back, len(lead)])


def _real(g: Emitter, x: Any, count: int, axis: int) -> Any:
    """Real numbers from one half of a symmetric spectrum."""
    used = min(x.shape[axis], count // 2 + 1)
    x = g.slice(x, [0] * x.rank, [used if i == axis else n for i, n in enumerate(x.shape)])
    places = np.arange(used)
    twice = np.where((places == 0) | (2 * places == count), 1, 2) / count
    angles = 2 * np.pi * (np.outer(places, np.arange(count)) % count) / count
    matrix = np.vstack([np.cos(angles) * twice[:, None], -np.sin(angles) * twice[:, None]])
    order = [i for i in range(x.rank - 1) if i != axis] + [x.rank - 1, axis]
    rows = g.transpose(x, permutation=order)
    lead = list(rows.shape[:-2])
    made = g.matmul(g.reshape(rows, [math.prod(lead), 2 * used]), g.constant(matrix, x))
    back = list(range(len(lead)))
    back.insert(axis, len(lead))
    return g.transpose(g.reshape(made, [*lead, count, 1]), permutation=[*back, len(lead) + 1])
