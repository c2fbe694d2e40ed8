"""Whether a buffer or texture is fit for a submission."""

from __future__ import annotations

from typing import Any

import wgpu

from webnn_py.core.errors import ContextLostError, DataError
from webnn_py.engines.webgpu.runtime.wgpu_native import native


def check_usable(resource: Any, what: str) -> None:
    """Raise a DataError if a submission that uses a buffer or texture would not be valid.

    wgpu-native ends the process over such a submission, so this is found out before.
    """
    if isinstance(resource, wgpu.GPUBuffer) and resource.map_state != "unmapped":
        raise DataError(f"{what}: the GPUBuffer is mapped")
    if native.is_released(resource):
        raise DataError(f"{what}: the {type(resource).__name__} is released")
    try:
        if isinstance(resource, wgpu.GPUBuffer):
            native.touch(resource)
        else:
            texture = resource.texture if isinstance(resource, wgpu.GPUTextureView) else resource
            texture.create_view()
    except wgpu.GPUError as error:
        error.with_traceback(None)  # wgpu-py's frames would keep it, and it them and their callers
        if "destroyed" in str(error):
            raise DataError(f"{what}: the {type(resource).__name__} is destroyed") from None
        if "device is lost" in str(error):
            raise ContextLostError(f"{what}: the GPUDevice is lost") from None
