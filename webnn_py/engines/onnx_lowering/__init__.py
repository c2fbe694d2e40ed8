"""Lowers a graph to an ONNX model, for the exporter and for engines that run such models."""

from __future__ import annotations

from webnn_py.engines.onnx_lowering import (
    elementwise,
    indexing,
    linalg,
    movement,
    recurrent,
    reduction,
    window,
)
from webnn_py.engines.onnx_lowering.emitter import (
    CODES,
    IR_VERSION,
    OPSET,
    Emitter,
    Lowering,
    NotLowered,
    Tensor,
    lower,
)
from webnn_py.engines.onnx_lowering.model import (
    Lowered,
    Names,
    lower_alone,
    lower_graph,
    numbered,
    why_not_lowered,
)

FAMILIES = (elementwise, indexing, linalg, movement, recurrent, reduction, window)
"""The modules of lowerings; importing them registers these."""

__all__ = [
    "CODES",
    "IR_VERSION",
    "OPSET",
    "Emitter",
    "Lowered",
    "Lowering",
    "Names",
    "NotLowered",
    "Tensor",
    "lower",
    "lower_alone",
    "lower_graph",
    "numbered",
    "why_not_lowered",
]
