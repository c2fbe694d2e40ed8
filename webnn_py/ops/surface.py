"""What decompositions share: every operator's method without importing its family, and casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from webnn_py.ops.operand import MLOperand, NodeBuilder

if TYPE_CHECKING:
    from webnn_py.ops.all import Operators


def surface(emitter: NodeBuilder) -> Operators:
    """The emitter, typed with every operator's method."""
    return cast("Operators", emitter)


def wide(emitter: NodeBuilder, operand: MLOperand) -> MLOperand:
    """As float32, so that intermediate results neither lose bits nor overflow."""
    return narrow(emitter, operand, "float32")


def narrow(emitter: NodeBuilder, operand: MLOperand, data_type: str) -> MLOperand:
    """As `data_type`."""
    if operand.data_type == data_type:
        return operand
    return surface(emitter).cast(operand, data_type)  # type: ignore[arg-type]
