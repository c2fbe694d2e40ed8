"""How each operator of ONNX is put into a builder, one file a family."""

from webnn_py.onnx.handlers import (
    activation,
    convolution,
    elementwise,
    indexing,
    linalg,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    regions,
    resizing,
    sampling,
    scan,
    slicing,
    sorting,
)
from webnn_py.onnx.registry import HANDLERS, handler_of

__all__ = [
    "HANDLERS",
    "activation",
    "convolution",
    "elementwise",
    "handler_of",
    "indexing",
    "linalg",
    "movement",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reduction",
    "regions",
    "resizing",
    "sampling",
    "scan",
    "slicing",
    "sorting",
]
