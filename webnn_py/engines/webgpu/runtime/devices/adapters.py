"""Adapters: enumerate them, choose one, and request a device."""

from __future__ import annotations

import functools
import gc
import os
import threading
from typing import Any

from webnn_py.core.errors import NotSupportedError, OperationError
from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_named

_DRIVER_LOCK = threading.Lock()
"""Some drivers, such as NVIDIA's, crash if several threads enumerate adapters at once."""


def all_adapters(engine: str = "webgpu") -> list[Any]:
    """Return the adapters that an engine's library finds."""
    webgpu = implementation_named(engine)
    webgpu.check_process()
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ["XDG_RUNTIME_DIR"] = os.environ.get("TMPDIR", "/tmp")
    with _DRIVER_LOCK:
        return webgpu.enumerate_adapters()


def find_adapter(
    power_preference: str = "default", hardware: bool = False, engine: str = "webgpu"
) -> Any:
    """Return the best adapter, or None. OpenGL never qualifies; hardware precedes software.

    The environment variable WEBNN_ADAPTER, part of an adapter's name, restricts the choice.

    Args:
        power_preference: "low-power" prefers an integrated GPU; otherwise a discrete one is.
        hardware: Accept no software adapter.
        engine: The engine whose library enumerates the adapters.
    """
    usable = [a for a in all_adapters(engine) if not _obstacle(a, hardware)]
    order = ["DiscreteGPU", "IntegratedGPU"]
    if power_preference == "low-power":
        order.reverse()

    def rank(adapter: Any) -> int:
        kind = adapter.info["adapter_type"]
        return order.index(kind) if kind in order else len(order) + (kind == "CPU")

    return min(usable, key=rank, default=None)


def _obstacle(adapter: Any, hardware: bool) -> str:
    """Return why an adapter does not qualify; "" if it does."""
    wanted = os.environ.get("WEBNN_ADAPTER", "")
    if wanted.lower() not in adapter.summary.lower():
        return f"WEBNN_ADAPTER={wanted} excludes it"
    if adapter.info["backend_type"] == "OpenGL":
        return "OpenGL lacks what kernels need"
    return "it is software" if hardware and not is_hardware(adapter) else ""


def is_hardware(adapter: Any) -> bool:
    """Return whether an adapter is a GPU rather than a software implementation."""
    return bool(adapter.info["adapter_type"] != "CPU")


def request_device(
    power_preference: str = "default", hardware: bool = False, engine: str = "webgpu"
) -> Any:
    """Request a device from the best adapter, with the adapter's features and limits.

    Args:
        power_preference: As of `find_adapter`.
        hardware: Accept no software adapter.
        engine: As of `find_adapter`.

    Raises:
        NotSupportedError: There is no adapter, or the engine's library is not installed.
        OperationError: The driver refuses a device.
    """
    adapter = find_adapter(power_preference, hardware, engine)
    if adapter is None:
        raise NotSupportedError(_why_no_adapter(hardware, engine))
    return open_device(adapter, engine)


def _why_no_adapter(hardware: bool, engine: str) -> str:
    """Return the message for a machine without a suitable adapter; it names the others."""
    obstacles = {_title(adapter): _obstacle(adapter, hardware) for adapter in all_adapters(engine)}
    if engine != "webgpu":  # its library lists no adapter that it refuses
        refused = f"engine {engine!r} refuses it, as its warning on standard error explains"
        for adapter in all_adapters():
            obstacle = _obstacle(adapter, hardware) or refused
            obstacles.setdefault(_title(adapter), obstacle)
    kind = "hardware " if hardware else ""
    listed = "".join(f"{title}: {obstacle}; " for title, obstacle in obstacles.items())
    other = "" if engine == "webgpu" else "engine='webgpu' or "
    return (
        f"no {kind}GPU adapter: {listed}install a Vulkan driver (Debian without a GPU:"
        f" mesa-vulkan-drivers), or use {other}device_type='cpu'"
    )


def _title(adapter: Any) -> str:
    return f"{adapter.info['device']} ({adapter.info['backend_type']})"


def open_device(adapter: Any, engine: str = "webgpu") -> Any:
    """Request a device from an adapter of an engine's library, with its features and limits.

    Raises:
        OperationError: The driver refuses a device.
    """
    webgpu = implementation_named(engine)
    features = [name for name in webgpu.WANTED_FEATURES if name in adapter.features]
    request = functools.partial(
        webgpu.request_device, adapter, features, _finite_limits(adapter.limits)
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
