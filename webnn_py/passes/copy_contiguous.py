"""Weights whose dimensions lie in another order, copied fast."""

from __future__ import annotations

from functools import partial

import numpy as np

from webnn_py.core.parallel_map import at_once
from webnn_py.ir import Array

BLOCK = 64
"""Places along the last dimension that are copied at once: what is written stays in the cache."""


def contiguous(view: Array, threads: int = 1) -> Array:
    """An array of its own with the contents of a view, such as a transposed one, in C order.

    Three to four times as fast as `copy` where memory is walked across.

    Args:
        view: Any array.
        threads: How many to do it on, at most.
    """
    made = np.empty(view.shape, view.dtype)
    if view.ndim < 2 or view.strides[-1] <= view.itemsize:
        made[...] = view
        return made

    def copy(first: int) -> None:
        made[..., first : first + BLOCK] = view[..., first : first + BLOCK]

    at_once(
        [partial(copy, first) for first in range(0, view.shape[-1], BLOCK)], made.nbytes, threads
    )
    return made
