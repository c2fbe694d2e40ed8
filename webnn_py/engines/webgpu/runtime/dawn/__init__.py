"""Dawn through wgpudawn: all uses of its private names."""

from webnn_py.engines.webgpu.runtime.dawn import implementation
from webnn_py.engines.webgpu.runtime.webgpu_api import WebGPU

IMPLEMENTATION: WebGPU = implementation
