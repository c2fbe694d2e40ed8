"""Matrix products in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from webnn_py.engines.reference.parts import TILE_ELEMENTS, parts

Array = np.ndarray[Any, Any]


def matmul(a: Array, b: Array) -> Array:
    """Multiply matrices in the last two dimensions."""

    def multiply(a: Array, b: Array) -> Array:
        product: Array = np.matmul(a.astype(np.float64, order="C"), b.astype(np.float64, order="C"))
        return product

    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if not batch or math.prod(shape) <= TILE_ELEMENTS:
        return multiply(a, b)
    a, b = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    result = np.empty(shape, a.dtype)
    for place in parts(shape, [len(batch), len(batch) + 1]):
        result[place] = multiply(a[place[:-2]], b[place[:-2]])
    return result


def gemm(
    a: Array,
    b: Array,
    c: Array | None,
    alpha: float,
    beta: float,
    a_transpose: bool,
    b_transpose: bool,
) -> Array:
    """Compute alpha * A x B + beta * C."""
    product = alpha * matmul(a.T if a_transpose else a, b.T if b_transpose else b)
    return product if c is None else product + beta * c.astype(np.float64)
