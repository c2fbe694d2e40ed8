"""Dawn's WGSL compiler, Tint, beside naga: whether it takes the kernels that naga takes.

It needs no driver: Dawn has a backend without one, which has every feature.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_named

WIDE = re.compile(r"\b[iu]64\b|\b(0x)?[0-9a-f]+l[iu]\b")
"""64-bit integers, which naga alone has."""
FEATURES = ("shader-f16", "subgroups", "chromium-experimental-subgroup-matrix")


class Tint:
    """Tint's front end. Its errors are GPUValidationErrors."""

    def __init__(self) -> None:
        dawn: Any = implementation_named("dawn")
        dawn.enumerate_adapters()  # sets the toggles of experimental features
        adapters = dawn.LIBRARY.gpu._enumerate_all_adapters()
        adapter = next(each for each in adapters if each.info["backend_type"] == "Null")
        features = [name for name in FEATURES if name in adapter.features]
        self._device = adapter.request_device_sync(required_features=features)
        self._lock = threading.Lock()  # the device is not safe for threads
        self._seen: set[str] = set()

    def check(self, code: str) -> None:
        """Compile a kernel, unless it was compiled before or has types of naga's own."""
        if code not in self._seen and not WIDE.search(code):
            with self._lock:
                self._device.create_shader_module(code=code)
            self._seen.add(code)


_MAKING = threading.Lock()


def tint() -> Tint:
    """Return the compiler of this process; several threads may ask for it first."""
    with _MAKING:
        return _made()


@functools.cache
def _made() -> Tint:
    return Tint()
