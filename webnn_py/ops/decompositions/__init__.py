"""Decompositions of composite operators into other operators.

Importing this package registers all of them. They need every declaration, so they are apart from
the modules that declare operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from webnn_py.ops.decompositions import (  # noqa: F401  (they register themselves)
    attention,
    indexing,
    linalg,
    movement,
    normalization,
    quantization,
    quantized_products,
    recurrent,
    sorting,
)
from webnn_py.ops.decompositions.registry import FUNCTIONS

DECOMPOSITIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(FUNCTIONS)
"""Function that builds a composite operator from others, by the operator's name."""
