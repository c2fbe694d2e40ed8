"""NumPy functions of the operators whose declaration has none, by family.

Each takes the operands and attributes by the names of the operator's declaration and returns the
output, in any data type that holds it; the engine converts it. Floats are computed in float64,
and sums of contiguous arrays: their order, and so the last bit, depends on how memory is laid out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webnn_py.engines.reference import (
    indexing,
    linalg,
    movement,
    normalization,
    quantization,
    recurrent,
    resampling,
    scan,
    window,
)

_FAMILIES = (
    indexing,
    linalg,
    movement,
    normalization,
    quantization,
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
