"""The reference engine: NumPy, the living definition of each operator."""

from __future__ import annotations

from webnn_py.engines.reference.engine import ReferenceEngine, evaluate

__all__ = ["ReferenceEngine", "evaluate"]
