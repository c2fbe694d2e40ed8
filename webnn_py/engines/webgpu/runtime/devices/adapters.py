"""The adapters of this machine: which there are, which to use, and a device of one."""

from __future__ import annotations

import functools
import gc
import os
import threading
from typing import Any

import wgpu

from webnn_py.core.errors import NotSupportedError, OperationError
from webnn_py.engines.webgpu.runtime.wgpu_native.native import check_process

WANTED_FEATURES = ("shader-f16", "shader-int64", "timestamp-query", "subgroup")

_OPENING = threading.Lock()
"""Drivers, NVIDIA's among them, crash when several threads look for adapters at once."""
_FOUND: list[Any] = []


def all_adapters() -> list[Any]:
    """The adapters that wgpu finds, looked for until there are some.

    They are kept: wgpu ends the process when it releases those of OpenGL on one thread while
    another uses theirs.
    """
    check_process()
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ["XDG_RUNTIME_DIR"] = os.environ.get("TMPDIR", "/tmp")
    with _OPENING:
        if not _FOUND:
            _FOUND.extend(wgpu.gpu.enumerate_adapters_sync())
        return list(_FOUND)


def find_adapter(power_preference: str = "default", hardware: bool = False) -> Any:
    """The adapter to use, or None; Vulkan, Metal or D3D12 before OpenGL, hardware before software.

    The variable WEBNN_ADAPTER, part of an adapter's name, overrides the choice.
    """
    adapters = all_adapters()
    wanted = os.environ.get("WEBNN_ADAPTER", "").lower()
    if wanted:
        adapters = [a for a in adapters if wanted in a.summary.lower()]
    usable = [a for a in adapters if a.info["backend_type"] != "OpenGL"]
    if hardware:
        usable = [a for a in usable if is_hardware(a)]
    order = ["DiscreteGPU", "IntegratedGPU"]
    if power_preference == "low-power":
        order.reverse()

    def rank(adapter: Any) -> int:
        kind = adapter.info["adapter_type"]
        return order.index(kind) if kind in order else len(order) + (kind == "CPU")

    return min(usable, key=rank, default=None)


def is_hardware(adapter: Any) -> bool:
    """Whether an adapter is a GPU rather than a program that plays one."""
    return bool(adapter.info["adapter_type"] != "CPU")


def request_device(power_preference: str = "default", hardware: bool = False) -> Any:
    """A device of the best adapter, with all that the adapter offers.

    Raises:
        NotSupportedError: There is no adapter.
        OperationError: Its driver gives none.
    """
    adapter = find_adapter(power_preference, hardware)
    if adapter is None:
        kind = "hardware " if hardware else ""
        raise NotSupportedError(
            f"no {kind}GPU adapter: install a Vulkan driver (Debian without a GPU:"
            " mesa-vulkan-drivers), or use device_type='cpu'"
        )
    features = [name for name in WANTED_FEATURES if name in adapter.features]
    request = functools.partial(
        adapter.request_device_sync,
        required_features=features,
        required_limits=_known_limits(adapter.limits),
    )
    with _OPENING:
        try:
            return request()
        except RuntimeError:  # drivers have so many at once, of which some wait for the collector
            gc.collect()
        try:
            return request()
        except RuntimeError as error:
            raise OperationError(
                f"{adapter.summary} gives no device: {error}; there may be too many at once:"
                " destroy contexts, and let go of what belongs to them"
            ) from error


def _known_limits(limits: Any) -> dict[str, int]:
    """The adapter's limits without those that wgpu reports as unlimited or unknown."""
    names = (
        "max-buffer-size",
        "max-storage-buffer-binding-size",
        "max-storage-buffers-per-shader-stage",
        "max-compute-workgroup-storage-size",
        "max-compute-invocations-per-workgroup",
        "max-compute-workgroup-size-x",
        "max-compute-workgroup-size-y",
        "max-compute-workgroups-per-dimension",
    )
    return {name: limits[name] for name in names}
