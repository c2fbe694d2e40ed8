"""Fast Fourier transforms of the rows of a matrix, in O(n log n) operations.

Sources: Cooley and Tukey 1965, for composite lengths; Bluestein 1970, for large prime factors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.tensor import Array

MAX_RADIX = 128
"""Largest radix, the size of a DFT by one matrix product."""
MAX_DIRECT = 512
"""Largest DFT by one matrix product for lengths without a divisor up to `MAX_RADIX`."""
STAGE_COST = 24.0
"""Estimated overhead of a stage, in multiplications per element."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Rows of complex numbers.

    Attributes:
        real: The real parts, [rows, length].
        imaginary: The imaginary parts, [rows, length]; None if all numbers are real.
    """

    real: Any
    imaginary: Any = None

    def each(self, change: Callable[[Any], Any]) -> Numbers:
        """Return the numbers with `change` applied to the real and the imaginary parts."""
        return Numbers(
            change(self.real), None if self.imaginary is None else change(self.imaginary)
        )


def transform(g: Emitter, x: Numbers, count: int, sign: int, wanted: int) -> Numbers:
    """Emit the unscaled discrete Fourier transform of each row.

    Args:
        g: The emitter.
        x: The rows.
        count: The length of a row.
        sign: -1 for the forward transform, 1 for the inverse.
        wanted: The number of results, from the first one on.

    Returns:
        The results, complex, [rows, wanted].
    """
    _, radix = _plan(count)
    if radix == count:
        return _direct(g, x, count, sign, wanted)
    if not radix:
        return _convolved(g, x, count, sign, wanted)
    return _divided(g, x, count, radix, sign, wanted)


@functools.lru_cache(1 << 12)
def _plan(count: int) -> tuple[float, int]:
    """Estimate the multiplications per element of a row, and choose the radix.

    Returns:
        The cost, and the radix: `count` for one matrix product, a divisor for a Cooley-Tukey step,
        or 0 for Bluestein's algorithm.
    """
    if count <= MAX_RADIX:
        return count + STAGE_COST, count
    found = [
        (radix + STAGE_COST + _plan(count // radix)[0], radix)
        for radix in range(2, MAX_RADIX + 1)
        if not count % radix
    ]
    if found:
        return min(found)
    if count <= MAX_DIRECT:
        return count + STAGE_COST, count
    return 2 * (_plan(_longer(count))[0] + STAGE_COST) * _longer(count) / count, 0


def _longer(count: int) -> int:
    """Return the smallest power of two >= 2 * count - 1, the length of Bluestein's convolution."""
    return 1 << (2 * count - 2).bit_length()


def _turns(numerators: Array, denominator: int, sign: int) -> tuple[Array, Array]:
    """Return twiddle factors: cosines and signed sines of 2π * numerators / denominator."""
    angles = 2 * np.pi * (numerators % denominator) / denominator
    return np.cos(angles), sign * np.sin(angles)


def _afford(g: Emitter, numbers: int, count: int) -> None:
    g.afford(numbers, f"a Fourier transform of {count} numbers")


def _matrices(count: int, sign: int, wanted: int) -> tuple[Array, Array]:
    return _turns(np.outer(np.arange(count), np.arange(wanted)), count, sign)


def _direct(g: Emitter, x: Numbers, count: int, sign: int, wanted: int) -> Numbers:
    """Emit the transform as one product with a DFT matrix for each part of the result."""
    _afford(g, 4 * count * wanted, count)
    cosines, sines = _matrices(count, sign, wanted)
    if x.imaginary is None:
        return Numbers(*(g.matmul(x.real, g.constant(one, x.real)) for one in (cosines, sines)))
    parts = g.concat([x.real, x.imaginary], 1)
    return Numbers(
        g.matmul(parts, g.constant(np.vstack([cosines, -sines]), x.real)),
        g.matmul(parts, g.constant(np.vstack([sines, cosines]), x.real)),
    )


def _divided(g: Emitter, x: Numbers, count: int, radix: int, sign: int, wanted: int) -> Numbers:
    """Emit a Cooley-Tukey step: DFTs of `radix` numbers, twiddle factors, and shorter DFTs."""
    rest = count // radix
    _afford(g, 2 * count + 4 * radix * radix, count)
    rows = x.real.shape[0]
    matrix = x.each(lambda one: g.reshape(one, [rows, radix, rest]))
    cosines, sines = _matrices(radix, sign, radix)
    if matrix.imaginary is None:
        columns = Numbers(
            *(g.matmul(_lead(g, one, matrix.real), matrix.real) for one in (cosines, sines))
        )
    else:
        parts = g.concat([matrix.real, matrix.imaginary], 1)
        columns = Numbers(
            g.matmul(_lead(g, np.hstack([cosines, -sines]), parts), parts),
            g.matmul(_lead(g, np.hstack([sines, cosines]), parts), parts),
        )
    turned = _times(g, columns, *_turns(np.outer(np.arange(radix), np.arange(rest)), count, sign))
    apart = turned.each(lambda one: g.reshape(one, [rows * radix, rest]))
    each = -(-wanted // radix)
    made = transform(g, apart, rest, sign, each)

    def ordered(one: Any) -> Any:
        whole = g.transpose(g.reshape(one, [rows, radix, each]), permutation=[0, 2, 1])
        flat = g.reshape(whole, [rows, each * radix])
        return flat if each * radix == wanted else g.slice(flat, [0, 0], [rows, wanted])

    return made.each(ordered)


def _lead(g: Emitter, matrix: Array, like: Any) -> Any:
    """Return a matrix as a constant of shape [1, m, n], to multiply a batch from the left."""
    return g.constant(matrix[None], like)


def _times(g: Emitter, x: Numbers, cosines: Array, sines: Array) -> Numbers:
    """Multiply each number by a complex constant with parts `cosines` and `sines`."""
    real, imaginary = (g.constant(one, x.real) for one in (cosines, sines))
    if x.imaginary is None:
        return Numbers(g.mul(x.real, real), g.mul(x.real, imaginary))
    return Numbers(
        g.sub(g.mul(x.real, real), g.mul(x.imaginary, imaginary)),
        g.add(g.mul(x.real, imaginary), g.mul(x.imaginary, real)),
    )


def _convolved(g: Emitter, x: Numbers, count: int, sign: int, wanted: int) -> Numbers:
    """Emit Bluestein's algorithm: a convolution with a chirp, by longer transforms."""
    length = _longer(count)
    _afford(g, 2 * (length + 2 * count), count)
    places = np.arange(count)
    # Reduce places² modulo 2 * count, the period, to keep large angles accurate.
    cosines, sines = _turns(places * places % (2 * count), 2 * count, sign)
    chirp = np.zeros(length, np.complex128)
    chirp[:count] = cosines - 1j * sines
    chirp[length - count + 1 :] = chirp[1:count][::-1]
    spectrum = np.fft.fft(chirp) / length
    turned = _times(g, x, cosines, sines)
    padded = turned.each(lambda one: g.pad(one, [0, 0], [0, length - count]))
    product = _times(g, transform(g, padded, length, -1, length), spectrum.real, spectrum.imag)
    made = transform(g, product, length, 1, wanted)
    return _times(g, made, cosines[:wanted], sines[:wanted])
