"""Adapters: enumerate them, choose one, and request a device."""

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

_DRIVER_LOCK = threading.Lock()
"""Some drivers, such as NVIDIA's, crash if several threads enumerate adapters at once."""
_FOUND: list[Any] = []


def all_adapters() -> list[Any]:
    """Return the adapters that wgpu finds. Only a non-empty result is cached.

    The cache is never emptied: wgpu ends the process if one thread releases an OpenGL adapter while
    another uses one.
    """
    check_process()
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ["XDG_RUNTIME_DIR"] = os.environ.get("TMPDIR", "/tmp")
    with _DRIVER_LOCK:
        if not _FOUND:
            _FOUND.extend(wgpu.gpu.enumerate_adapters_sync())
        return list(_FOUND)


def find_adapter(power_preference: str = "default", hardware: bool = False) -> Any:
    """Return the best adapter, or None. OpenGL never qualifies; hardware precedes software.

    The environment variable WEBNN_ADAPTER, part of an adapter's name, restricts the choice.

    Args:
        power_preference: "low-power" prefers an integrated GPU; otherwise a discrete one is.
        hardware: Accept no software adapter.
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
    """Return whether an adapter is a GPU rather than a software implementation."""
    return bool(adapter.info["adapter_type"] != "CPU")


def request_device(power_preference: str = "default", hardware: bool = False) -> Any:
    """Request a device from the best adapter, with the adapter's features and limits.

    Args:
        power_preference: As of `find_adapter`.
        hardware: Accept no software adapter.

    Raises:
        NotSupportedError: There is no adapter.
        OperationError: The driver refuses a device.
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
        required_limits=_finite_limits(adapter.limits),
    )
    with _DRIVER_LOCK:
        try:
            return request()
        except RuntimeError:  # too many devices at once, of which some may be garbage
            gc.collect()
        try:
            return request()
        except RuntimeError as error:
            raise OperationError(
                f"{adapter.summary} gives no device: {error}; there may be too many at once:"
                " destroy contexts and drop what belongs to them"
            ) from error


def _finite_limits(limits: Any) -> dict[str, int]:
    """Return the adapter's limits without those that wgpu reports as unlimited or unknown."""
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
