"""Devices, and what an adapter has not, or takes minutes for: such tests are skipped there."""

from __future__ import annotations

from typing import Any

import pytest
import wgpu


def new_device(**wanted: Any) -> Any:
    """A device of the adapter that contexts take, safe for threads; Dawn's adapters make one."""
    from webnn_py.engines.webgpu.runtime.devices.adapters import find_adapter

    adapter = find_adapter()
    needed = {"implicit-device-synchronization"} & set(adapter.features)
    features = [*wanted.pop("required_features", ()), *needed]
    return adapter.request_device_sync(required_features=features, **wanted)


def need_wgpu_native() -> None:
    """Skip a test of what is private in wgpu, or done in its way."""
    if "wgpudawn" in wgpu.GPUDevice.__module__:
        pytest.skip("wgpu is Dawn here")


def need_limits(device: Any, **wanted: int) -> None:
    """Skip a test where a device has more than was asked for: Dawn gives WebGPU's defaults."""
    for name, limit in wanted.items():
        if device.limits[name.replace("_", "-")] != limit:
            pytest.skip(f"this device has a larger {name}")


def need_halves(device: Any) -> None:
    """Skip a test on devices without float16 in shaders."""
    if "shader-f16" not in device.features:
        pytest.skip("the adapter has no shader-f16")


def need_quick_compiler(device: Any, what: str = "the branches of unrolled windows") -> None:
    """Skip a test of what takes the driver's compiler minutes."""
    if "SwiftShader" in device.adapter.summary:
        pytest.skip(f"SwiftShader takes minutes to compile {what}")
