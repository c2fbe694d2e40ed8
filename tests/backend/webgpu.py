"""The implementation of WebGPU that the tests run on, with the parts that they look into."""

from __future__ import annotations

from typing import Any

from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_named

WEBGPU: Any = implementation_named("webgpu")
WAITING = WEBGPU.WAITING
RECORDING = WEBGPU.RECORDING
FREEING = WEBGPU.FREEING
BufferMapping = WEBGPU.BufferMapping
Encoder = WEBGPU.Encoder
CommandBuffer = WEBGPU.CommandBuffer
DispatchCommands = WEBGPU.DispatchCommands
