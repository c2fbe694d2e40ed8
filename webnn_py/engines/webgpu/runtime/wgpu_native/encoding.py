"""The encoders of `webgpu_h` for wgpu-native, as far as wgpu-py's names allow (`RECORDING`)."""

from __future__ import annotations

from typing import Any

from webnn_py.engines.webgpu.runtime.webgpu_h import encoding
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import RECORDING

_SAFE, _LIB, _FFI = native.c_interface() if RECORDING.is_available else (None, None, None)
_C: Any = _FFI and encoding.CInterface(_SAFE, _LIB, _FFI, releasing=_LIB)

DispatchCommands = encoding.DispatchCommands.bound(_C, recording=RECORDING)
BindGroup = encoding.BindGroup.bound(_C)
ComputePass = encoding.ComputePass.bound(_C)
CommandBuffer = encoding.CommandBuffer.bound(_C)
Encoder = encoding.Encoder.bound(
    _C,
    compute_pass=ComputePass,
    command_buffer=CommandBuffer,
    free_when_dropped=staticmethod(native.free_when_dropped),
)
