"""wgpu-native as an implementation of WebGPU (`webgpu_api.WebGPU`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import wgpu

from webnn_py.engines.webgpu.runtime.webgpu_api import SubgroupMatrix
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import (
    CHECKING,
    FREEING,
    OBSERVING,
    RECORDING,
    WAITING,
)
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import (
    BindGroup,
    CommandBuffer,
    DispatchCommands,
    Encoder,
)
from webnn_py.engines.webgpu.runtime.wgpu_native.native import (
    BufferMapping,
    check_alive,
    check_command_buffer_layout,
    check_process,
    free_when_dropped,
    is_lost,
    is_released,
    mapping,
    module_of_ending_loops,
    prepare,
    read_mapped,
    read_small,
    releasing_unless,
    specialize,
    timestamp_period,
    touch,
    unmap,
    write_buffer,
    write_mapped,
)

__all__ = [
    "CHECKING",
    "ENCODES_ON_SUBMIT",
    "FREEING",
    "LIBRARY",
    "NAME",
    "OBSERVING",
    "RECORDING",
    "WAITING",
    "WANTED_FEATURES",
    "BindGroup",
    "BufferMapping",
    "CommandBuffer",
    "DispatchCommands",
    "Encoder",
    "check_alive",
    "check_command_buffer_layout",
    "check_process",
    "enumerate_adapters",
    "free_when_dropped",
    "has_clock",
    "is_lost",
    "is_released",
    "mapping",
    "module_of_ending_loops",
    "prepare",
    "read_mapped",
    "read_small",
    "releasing_unless",
    "request_device",
    "specialize",
    "subgroup_matrices",
    "timestamp_period",
    "touch",
    "unmap",
    "wgsl",
    "write_buffer",
    "write_mapped",
]

LIBRARY: Any = wgpu
NAME = "webgpu"
ENCODES_ON_SUBMIT = False
WANTED_FEATURES: Sequence[str] = ("shader-f16", "shader-int64", "timestamp-query", "subgroup")

_ENABLE = re.compile(r"\benable\s+\w+(\s*,\s*\w+)*\s*,?\s*;")
_SUBGROUPS = re.compile(r",\s*subgroups\b|\bsubgroups\b\s*,?")


_adapters: list[Any] = []


def enumerate_adapters() -> list[Any]:
    """Return all adapters. Only a non-empty result is cached.

    The cache is never emptied: wgpu ends the process if one thread releases an OpenGL adapter while
    another uses one.
    """
    if not _adapters:
        _adapters.extend(LIBRARY.gpu.enumerate_adapters_sync())
    return list(_adapters)


def request_device(adapter: Any, features: list[str], limits: dict[str, int]) -> Any:
    """Request a device."""
    return adapter.request_device_sync(required_features=features, required_limits=limits)


def has_clock(device: Any) -> bool:
    """Return whether a device has timestamps."""
    return "timestamp-query" in device.features


def subgroup_matrices(device: Any) -> tuple[SubgroupMatrix, ...]:
    """Return none: wgpu-native cannot enable its cooperative matrices through its C interface."""
    return ()


def wgsl(code: str) -> str:
    """Return WGSL without `enable subgroups`: wgpu-native has it but refuses the directive."""
    return _ENABLE.sub(_without_subgroups, code)


def _without_subgroups(directive: re.Match[str]) -> str:
    """Blank out `subgroups` in an `enable` directive, without moving other text."""
    rest = _SUBGROUPS.sub(lambda match: " " * len(match[0]), directive[0])
    return rest if re.search(r"\w", rest[len("enable") :]) else " " * len(rest)
