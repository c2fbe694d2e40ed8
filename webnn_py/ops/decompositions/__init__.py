"""Composite operators in terms of others: importing this registers all of them.

They stand apart from the declarations, because they need all of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from webnn_py.ops.decompositions import (  # noqa: F401  (they register themselves)
    linalg,
    movement,
    normalization,
    quantization,
    recurrent,
    sorting,
)
from webnn_py.ops.decompositions.registry import FUNCTIONS

DECOMPOSITIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(FUNCTIONS)
"""What makes the result of a composite operator, by the operator's name."""
