"""Matrix products in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def matmul(a: Array, b: Array) -> Array:
    """Matrix product of the last two dimensions."""
    product: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return product


def gemm(
    a: Array,
    b: Array,
    c: Array | None,
    alpha: float,
    beta: float,
    a_transpose: bool,
    b_transpose: bool,
) -> Array:
    """Alpha * A x B + beta * C."""
    product = alpha * matmul(a.T if a_transpose else a, b.T if b_transpose else b)
    return product if c is None else product + beta * c.astype(np.float64)
