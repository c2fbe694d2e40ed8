"""Products of quantized matrices in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dtypes import unpack_4bit
from webnn_py.core.gil_yield import checkpoint
from webnn_py.engines.reference.parts import TILE_ELEMENTS

Array = np.ndarray[Any, Any]


def matmul_packed(
    x: Array,
    codes: Array,
    scales: Array,
    zero_points: Array | None,
    block_size: int,
    accuracy: str,
    bits: int,
    zero_point: int,
) -> Array:
    """Multiply by the transpose of dequantized weights, some columns at a time."""
    depth, columns = x.shape[-1], len(codes)
    wide = x.astype(np.float64).reshape(-1, depth)
    made = np.empty((len(wide), columns))
    step = max(1, TILE_ELEMENTS // depth)

    def numbers(stored: Array, count: int) -> Array:
        """Return the first `count` integers of each row, some of which lie two to a byte."""
        rows = stored.reshape(len(stored), -1)
        if bits == 4 and codes.ndim == 3:
            rows = unpack_4bit(rows, "uint4", rows.size * 2).reshape(len(rows), -1)
        return rows[:, :count].astype(np.float64)

    for start in range(0, columns, step):
        checkpoint()
        part = slice(start, start + step)
        zero: Any = zero_point
        if zero_points is not None:
            zero = numbers(zero_points[part], scales.shape[1]).repeat(block_size, 1)[:, :depth]
        factor = scales[part].astype(np.float64).repeat(block_size, 1)[:, :depth]
        weights = (numbers(codes[part], depth) - zero) * factor
        made[:, part] = wide @ weights.T
    return made.reshape(*x.shape[:-1], columns)


def matmul_integer(
    a: Array, b: Array, a_zero_point: Array | None, b_zero_point: Array | None
) -> Array:
    """Multiply exactly in float64, whose sums of such products cannot round; wrap to int32."""

    def shifted(x: Array, zero: Array | None) -> Array:
        return x.astype(np.float64) if zero is None else x - zero.astype(np.float64)

    rows = a_zero_point
    if rows is not None and rows.ndim == 1:
        rows = rows[:, None]
    product: Array = np.matmul(shifted(a, rows), shifted(b, b_zero_point)).astype(np.int64)
    return product.astype(np.int32)
