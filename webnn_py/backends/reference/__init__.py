"""The reference backend: NumPy, the living definition of each operator."""

from __future__ import annotations

from webnn_py.backends.reference.engine import ReferenceBackend, evaluate

__all__ = ["ReferenceBackend", "evaluate"]
