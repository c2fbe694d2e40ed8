"""What `load` and `add_to` are made of; imported with them, as it needs onnx."""

from __future__ import annotations

from collections.abc import Mapping

from webnn_py.api.builder import MLGraphBuilder
from webnn_py.onnx.importer import Importer
from webnn_py.onnx.model import Model
from webnn_py.onnx.tensor import Tensor
from webnn_py.ops.operand import MLOperand

__all__ = ["Importer", "Model", "outputs"]


def outputs(builder: MLGraphBuilder, found: Mapping[str, Tensor]) -> dict[str, MLOperand]:
    """What to build: a copy of each result that is an input or a constant of the graph."""
    made = {}
    for name, tensor in found.items():
        assert tensor.operand is not None
        made[name] = builder.identity(tensor.operand) if tensor.is_leaf else tensor.operand
    return made
