"""The engine that runs graphs with OpenVINO on the CPU."""

from __future__ import annotations

from webnn_py.engines.openvino.engine import OpenVinoEngine

__all__ = ["OpenVinoEngine"]
