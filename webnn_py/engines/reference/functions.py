"""The NumPy functions of operators that are neither elementwise nor reductions.

Each function takes the operands and attributes by name. It may return the output in any data type
that can represent it; the engine converts it. Floats are computed in float64. Sums are over
contiguous arrays, because NumPy's order of summation depends on the memory layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webnn_py.engines.reference import (
    attention,
    indexing,
    linalg,
    movement,
    normalization,
    quantization,
    quantized_products,
    recurrent,
    resampling,
    scan,
    window,
)

_FAMILIES = (
    attention,
    indexing,
    linalg,
    movement,
    normalization,
    quantization,
    quantized_products,
    recurrent,
    resampling,
    scan,
    window,
)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for family in _FAMILIES
    for name, function in vars(family).items()
    if not name.startswith("_") and getattr(function, "__module__", "") == family.__name__
}
