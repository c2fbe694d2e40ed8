"""The command line: `python -m webnn_py info` tells what this machine offers."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py._version import __version__

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
    """The version of a package, or None if it cannot be imported."""
    try:
        return str(importlib.import_module(module).__version__)
    except (ImportError, OSError):  # OSError: a native library that it needs is missing
        return None


def adapters() -> list[dict[str, Any]]:
    """The adapters that wgpu finds, each with the features and limits that matter here."""
    if version_of("wgpu") is None:
        return []
    from webnn_py.engines.webgpu.runtime.adapters import all_adapters

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
    """The GPU that a context would be made on, or None if there is none for it."""
    if version_of("wgpu") is None:
        return None
    from webnn_py.engines.webgpu.runtime.adapters import find_adapter

    adapter = find_adapter(power_preference, hardware)
    return None if adapter is None else f"{adapter.info['device']} ({adapter.info['backend_type']})"


def contexts() -> dict[str, str]:
    """What the contexts that one can ask for would run on."""
    return {
        'device_type="cpu"': "NumPy, on the CPU",
        'device_type="gpu"': gpu() or NO_GPU,
        'device_type="gpu", power_preference="low-power"': gpu("low-power") or NO_GPU,
        "accelerated=True": gpu(hardware=True) or "no hardware GPU: the CPU",
    }


def engines() -> dict[str, str]:
    """The engines that can be used here, by name, and what they run on or come from."""
    from webnn_py.engines.registry import installed_engines

    found = installed_engines()
    if gpu() is not None:
        found["webgpu"] = f"wgpu {version_of('wgpu')}"
    return found


def collect() -> dict[str, Any]:
    """All that `info` shows."""
    return {
        "webnn_py": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "engines": engines(),
        "contexts": contexts(),
        "adapters": adapters(),
    }


def rows(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A nested mapping as names and texts."""
    made: list[tuple[str, str]] = []
    for name, value in info.items():
        made += rows(value) if isinstance(value, Mapping) else [(name, _text(value))]
    return made


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "not installed" if value is None else str(value)


def show(title: str, body: Sequence[tuple[str, str]]) -> None:
    """Print a table, with rich where it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        width = max(len(name) for name, _ in body)
        lines = [f"  {name:<{width}}  {value}" for name, value in body]
        print("\n".join([title, *lines, ""]))
        return
    table = Table("", "", title=title, title_justify="left", show_header=False)
    for row in body:
        table.add_row(*row)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m webnn_py", description=__doc__)
    parser.add_argument("--version", action="version", version=f"webnn_py {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="engines, adapters, and what they can do")
    info.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    found = collect()
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    listed = found.pop("adapters")
    groups = {name: found.pop(name) for name in ("engines", "contexts")}
    show("webnn_py", rows(found))
    show("engines that can be used", rows(groups["engines"]))
    show("what ml.create_context_sync(...) runs on", rows(groups["contexts"]))
    for number, adapter in enumerate(listed):
        show(f"adapter {number}", rows(adapter))
    if "webgpu" not in groups["engines"]:
        print("No GPU adapter found that can be used: CPU contexts work, GPU contexts do not.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
