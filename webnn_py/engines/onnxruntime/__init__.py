"""The engine that runs graphs with ONNX Runtime on the CPU."""

from __future__ import annotations

from webnn_py.engines.onnxruntime.engine import OnnxRuntimeEngine

__all__ = ["OnnxRuntimeEngine"]
