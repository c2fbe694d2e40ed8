"""A Vulkan driver whose calls fail when they are told to, in front of the one that tests use."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "FAULTY_DRIVER"
"""The variable of the environment that tells where the built driver is."""

OUT_OF_MEMORY, DEVICE_LOST = -2, -4
"""What a call returns, as vulkan_core.h has it."""
LOOKS = ("vkGetSemaphoreCounterValue", "vkGetSemaphoreCounterValueKHR", "vkGetFenceStatus")
"""The calls by which one finds out how far a device is."""


def missing() -> str | None:
    """Why there can be no such driver here, if so."""
    if shutil.which("cc") is None:
        return "there is no C compiler"
    if not os.environ.get("VK_DRIVER_FILES"):
        return "VK_DRIVER_FILES does not name the driver to stand in front of"
    return None


def build(folder: Path) -> dict[str, str]:
    """Build it; the changes of the environment with which a process has it."""
    described = Path(os.environ["VK_DRIVER_FILES"].split(os.pathsep)[0])
    driver = json.loads(described.read_text(encoding="utf-8"))
    real = driver["ICD"]["library_path"]
    library, description = folder / "libfaulty.so", folder / "faulty.json"
    command = ["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    driver["ICD"]["library_path"] = str(library)
    description.write_text(json.dumps(driver), encoding="utf-8")
    return {
        LIBRARY: str(library),
        "FAULTY_DRIVER_OF": str(described.parent / real) if "/" in real else real,
        "VK_DRIVER_FILES": str(description),
    }


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ[LIBRARY])


def fail(result: int, *names: str) -> None:
    """Have calls of the newest device return a result from now on; 0 for what they really return.

    Args:
        result: What they return.
        names: Of the calls.
    """
    for name in names:
        _library().fail(name.encode(), result)


def failures(*names: str) -> int:
    """Return how many calls of these names have failed so far."""
    return sum(_library().failures(name.encode()) for name in names)
