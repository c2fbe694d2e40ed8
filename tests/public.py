"""Data types and operators by name, as users find them."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from webnn_py import MLContext, MLOperandDataType, ml

DATA_TYPES: tuple[str, ...] = typing.get_args(MLOperandDataType)
WHOLE_BYTES = tuple(name for name in DATA_TYPES if name not in ("int4", "uint4"))
"""Data types whose elements take whole bytes, as all but those of packed constants do."""


def limits_of(data_type: str) -> tuple[float, float]:
    """Return the lowest and the highest number of a data type of whole bytes."""
    kind = np.dtype(data_type).kind
    info: Any = (np.finfo if kind == "f" else np.iinfo)(data_type)
    return info.min, info.max


def _operators(context: MLContext) -> list[str]:
    limits = context.op_support_limits()
    others = ("preferred_input_layout", "max_tensor_byte_length", "input", "constant", "output")
    return sorted(name for name in limits if name not in others)


with ml.create_context_sync(device_type="cpu") as _context:
    DEFAULT_ENGINE = _context.engine
    """The engine of a CPU context for which none is given."""
with ml.create_context_sync(engine="reference") as _context:
    OPERATORS = _operators(_context)
    OPERANDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
        name: {
            operand: tuple(limits["data_types"])
            for operand, limits in _context.op_support_limits()[name].items()
            if not operand.startswith("output")
        }
        for name in OPERATORS
    }
    """Data types of each operand of an operator."""
REDUCTIONS = [name for name in OPERATORS if name.startswith("reduce_")]
