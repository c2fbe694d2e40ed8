"""`webnn-py info`: list engines, contexts and GPU adapters of this machine."""

from __future__ import annotations

import argparse
import importlib
import platform
from collections.abc import Sequence
from typing import Any

from webnn_py._version import __version__
from webnn_py.cli.printing import print_facts, print_json
from webnn_py.core.errors import MLError
from webnn_py.engines.registry import default_engine, installed_engines

GPU_LIBRARIES = {"webgpu": "wgpu", "dawn": "wgpudawn"}
"""The package of each engine of GPU contexts."""
ALPHA = ("wgpudawn",)
LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
)


def version_of(module: str) -> str | None:
    """Return the version of a package, or None if it cannot be imported."""
    try:
        return str(importlib.import_module(module).__version__)
    except (ImportError, OSError):  # OSError: a native library is missing
        return None


def adapters() -> list[dict[str, Any]]:
    """Return the adapters of each library, with the features and limits this package uses."""
    found = []
    for engine, library in GPU_LIBRARIES.items():
        if version_of("wgpu") is None or version_of(library) is None:
            continue
        from webnn_py.engines.webgpu.runtime.devices.adapters import all_adapters
        from webnn_py.engines.webgpu.runtime.webgpu_api import implementation_named

        features = implementation_named(engine).WANTED_FEATURES
        found += [_adapter(adapter, engine, features) for adapter in all_adapters(engine)]
    return found


def _adapter(adapter: Any, engine: str, features: Sequence[str]) -> dict[str, Any]:
    info = adapter.info
    return {
        "name": info["device"],
        "engine": engine,
        "type": info["adapter_type"],
        "backend": info["backend_type"],
        "driver": info["description"],
        "features": {name: name in adapter.features for name in features},
        "limits": {name: adapter.limits[name] for name in LIMITS},
    }


def gpu(
    power_preference: str = "default", hardware: bool = False, engine: str = "webgpu"
) -> str | None:
    """Return the GPU that a context would use, or None."""
    if version_of("wgpu") is None or version_of(GPU_LIBRARIES[engine]) is None:
        return None
    from webnn_py.engines.webgpu.runtime.devices.adapters import find_adapter

    adapter = find_adapter(power_preference, hardware, engine)
    return None if adapter is None else f"{adapter.info['device']} ({adapter.info['backend_type']})"


def _gpu_or_reason(power_preference: str = "default", engine: str = "webgpu") -> str:
    if version_of(GPU_LIBRARIES[engine]) is None:
        return f"none: {_why_no_gpu(engine)}"
    return gpu(power_preference, engine=engine) or "none: no adapter that can be used"


def _why_no_gpu(engine: str) -> str:
    if version_of("wgpu") is None:
        return "wgpu cannot be imported"
    from webnn_py.engines.webgpu.runtime.devices.adapters import request_device

    try:
        request_device(engine=engine)
    except (MLError, OSError) as error:
        return str(error)
    return "there was no adapter a moment ago"


def contexts() -> dict[str, str]:
    """Return the device or engine that each kind of context would use."""
    return {
        'device_type="cpu"': f"engine {default_engine()}, on the CPU",
        'device_type="gpu"': _gpu_or_reason(),
        'device_type="gpu", power_preference="low-power"': _gpu_or_reason("low-power"),
        'device_type="gpu", engine="dawn"': _gpu_or_reason(engine="dawn"),
        "accelerated=True": gpu(hardware=True) or "no hardware GPU: the CPU",
    }


def engines() -> dict[str, str]:
    """Return the usable engines by name, each with its library."""
    usable = installed_engines()
    for engine, library in GPU_LIBRARIES.items():
        if gpu(engine=engine) is not None:
            alpha = " (alpha)" if library in ALPHA else ""
            usable[engine] = f"{library} {version_of(library)}{alpha}"
    return usable


def collect() -> dict[str, Any]:
    """Return everything that `info` shows."""
    return {
        "webnn_py": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "engines": engines(),
        "contexts": contexts(),
        "adapters": adapters(),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add no options: `info` has none of its own."""


def run(options: argparse.Namespace) -> int:
    """Print the information; return the exit status."""
    found = collect()
    if options.json:
        print_json(found)
        return 0
    listed = found.pop("adapters")
    groups = {name: found.pop(name) for name in ("engines", "contexts")}
    print_facts("webnn_py", found)
    print_facts("engines that can be used", groups["engines"])
    print_facts("what ml.create_context_sync(...) runs on", groups["contexts"])
    for number, adapter in enumerate(listed):
        print_facts(f"adapter {number}", adapter)
    if not set(GPU_LIBRARIES) & set(groups["engines"]):
        print(f"CPU contexts work, GPU contexts do not: {_why_no_gpu('webgpu')}")
    return 0
