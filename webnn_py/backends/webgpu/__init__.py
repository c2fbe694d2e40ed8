"""The WebGPU backend: graphs as WGSL kernels in a wgpu device's queue."""

from __future__ import annotations

from webnn_py.backends.webgpu.engine import WebGPUBackend, open_backend

__all__ = ["WebGPUBackend", "open_backend"]
