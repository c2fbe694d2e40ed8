"""wgpu-native through wgpu-py: all uses of its private names."""

from webnn_py.engines.webgpu.runtime.webgpu_api import WebGPU
from webnn_py.engines.webgpu.runtime.wgpu_native import implementation

IMPLEMENTATION: WebGPU = implementation
