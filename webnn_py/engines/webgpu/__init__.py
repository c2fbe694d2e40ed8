"""The WebGPU engine: a compiler that needs no device, and a runtime on a wgpu device."""
