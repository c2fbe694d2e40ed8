"""Casts that add no node if the operand already has the data type."""

from __future__ import annotations

from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.ops.graph_builder import GraphBuilder
from webnn_py.ops.operand import MLOperand


def wide(g: GraphBuilder, operand: MLOperand) -> MLOperand:
    """Cast to float32, so that intermediate results neither lose bits nor overflow."""
    return narrow(g, operand, "float32")


def narrow(g: GraphBuilder, operand: MLOperand, data_type: MLOperandDataType) -> MLOperand:
    """Cast to `data_type`."""
    return operand if operand.data_type == data_type else g.cast(operand, data_type)
