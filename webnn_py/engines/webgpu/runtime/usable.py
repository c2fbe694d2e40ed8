"""Whether a buffer or texture is fit for a submission."""

from __future__ import annotations

from typing import Any

import wgpu
from wgpu.backends.wgpu_native._api import libf

from webnn_py.core.errors import ContextLostError, DataError


def check_usable(resource: Any, what: str) -> None:
    """Raise a DataError if a submission that uses a buffer or texture would not be valid.

    wgpu-native ends the process over such a submission, so this is found out before.
    """
    if isinstance(resource, wgpu.GPUBuffer) and resource.map_state != "unmapped":
        raise DataError(f"{what}: the GPUBuffer is mapped")
    if resource._internal is None:
        raise DataError(f"{what}: the {type(resource).__name__} is released")
    try:
        if isinstance(resource, wgpu.GPUBuffer):
            # The one call that looks at any buffer, whatever its usage, and changes none.
            libf.wgpuBufferUnmap(resource._internal)
        else:
            texture = resource.texture if isinstance(resource, wgpu.GPUTextureView) else resource
            texture.create_view()
    except wgpu.GPUError as error:
        if "destroyed" in str(error):
            raise DataError(f"{what}: the {type(resource).__name__} is destroyed") from None
        if "device is lost" in str(error):
            raise ContextLostError(f"{what}: the GPUDevice is lost") from None
