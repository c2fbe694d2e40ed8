"""Implementation of `MLContext.op_support_limits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.api.session import Session
from webnn_py.core.dtypes import ANY
from webnn_py.ops.declare import REGISTRY


def support_limits(session: Session) -> dict[str, Any]:
    """Return data types and ranks by operator and operand, as `MLContext.op_support_limits`."""
    bounds = session.compiler.limits()
    anything = _tensor_limits(ANY, 0, bounds.max_rank)
    operators: dict[str, Any] = {}
    for op in REGISTRY.values():
        types = session.compiler.supported_types[op]
        members = {
            name: _tensor_limits(types[name], *limits.rank_range)
            for name, limits in op.limits.items()
        }
        for name, ranks in op.output_ranks.items():
            allowed = op.types_of_outputs.get(name, types["output"])
            members[name] = _tensor_limits(allowed, *ranks)
        operators[op.name] = members
    return {
        "preferred_input_layout": "nchw",
        "max_tensor_byte_length": bounds.max_tensor_bytes,
        "input": anything,
        "constant": anything,
        "output": anything,
    } | operators


def _tensor_limits(types: Sequence[str], low: int, high: int) -> dict[str, Any]:
    return {"data_types": list(types), "rank_range": {"min": low, "max": high}}
