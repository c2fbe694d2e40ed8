"""Data types and operators by name, as users find them."""

from __future__ import annotations

import typing

from webnn_py import MLContext, MLOperandDataType, ml

DATA_TYPES: tuple[str, ...] = typing.get_args(MLOperandDataType)
WHOLE_BYTES = tuple(name for name in DATA_TYPES if name not in ("int4", "uint4"))
"""Data types whose elements take whole bytes, as all but those of packed constants do."""


def _operators(context: MLContext) -> list[str]:
    limits = context.op_support_limits()
    others = ("preferred_input_layout", "max_tensor_byte_length", "input", "constant", "output")
    return sorted(name for name in limits if name not in others)


with ml.create_context_sync(engine="reference") as _context:
    OPERATORS = _operators(_context)
