"""`webnn-py info`: list engines, contexts and GPU adapters of this machine."""

from __future__ import annotations

import argparse
import importlib
import platform
from typing import Any

from webnn_py._version import __version__
from webnn_py.cli.printing import print_facts, print_json
from webnn_py.engines.registry import default_engine, installed_engines

FEATURES = ("shader-f16", "shader-int64", "subgroup", "timestamp-query")
LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
)
NO_GPU = "none: a NotSupportedError"


def version_of(module: str) -> str | None:
    """Return the version of a package, or None if it cannot be imported."""
    try:
        return str(importlib.import_module(module).__version__)
    except (ImportError, OSError):  # OSError: a native library is missing
        return None


def adapters() -> list[dict[str, Any]]:
    """Return the adapters that wgpu finds, with the features and limits this package uses."""
    if version_of("wgpu") is None:
        return []
    from webnn_py.engines.webgpu.runtime.devices.adapters import all_adapters

    return [_adapter(adapter) for adapter in all_adapters()]


def _adapter(adapter: Any) -> dict[str, Any]:
    info = adapter.info
    return {
        "name": info["device"],
        "type": info["adapter_type"],
        "backend": info["backend_type"],
        "driver": info["description"],
        "features": {name: name in adapter.features for name in FEATURES},
        "limits": {name: adapter.limits[name] for name in LIMITS},
    }


def gpu(power_preference: str = "default", hardware: bool = False) -> str | None:
    """Return the GPU that a context would use, or None."""
    if version_of("wgpu") is None:
        return None
    from webnn_py.engines.webgpu.runtime.devices.adapters import find_adapter

    adapter = find_adapter(power_preference, hardware)
    return None if adapter is None else f"{adapter.info['device']} ({adapter.info['backend_type']})"


def contexts() -> dict[str, str]:
    """Return the device or engine that each kind of context would use."""
    return {
        'device_type="cpu"': f"engine {default_engine()}, on the CPU",
        'device_type="gpu"': gpu() or NO_GPU,
        'device_type="gpu", power_preference="low-power"': gpu("low-power") or NO_GPU,
        "accelerated=True": gpu(hardware=True) or "no hardware GPU: the CPU",
    }


def engines() -> dict[str, str]:
    """Return the usable engines by name, each with its library."""
    usable = installed_engines()
    if gpu() is not None:
        usable["webgpu"] = f"wgpu {version_of('wgpu')}"
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
    if "webgpu" not in groups["engines"]:
        print("No GPU adapter found that can be used: CPU contexts work, GPU contexts do not.")
    return 0
