"""Upload of a graph's constants to a device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.core.dtypes import DTYPES
from webnn_py.core.gil_yield import checkpoint
from webnn_py.core.parallel_map import MAX_THREADS, parallel_map
from webnn_py.engines.webgpu.program.storage import aligned, buffer_bytes, host_dtype
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, Contents
from webnn_py.engines.webgpu.runtime.devices.buffer_init import (
    LargeConstants,
    padded_bytes,
    write_and_unmap,
)
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.ir import Array, Value

SHARED_BUFFER_WEIGHT_BYTES = 1 << 14
"""Constants up to this size share one buffer, as each buffer takes 0.1 ms to make."""
MIN_PARALLEL_WEIGHT_BYTES = 1 << 19
"""Average size of constants above which several threads upload them. Smaller ones would wait longer
for the driver's locks than they take."""


def place_constants(
    gpu: Device, constants: Sequence[Value], arrays: Mapping[Value, Array]
) -> dict[Value, Binding]:
    """Upload the constants that are not on the device yet.

    Args:
        gpu: The device.
        constants: The constants that kernels read.
        arrays: Contents by constant; may hold others, too.

    Returns:
        The binding of each constant.

    Raises:
        OperationError: The device has no memory left.
    """
    small = [v for v in constants if buffer_bytes(v) <= SHARED_BUFFER_WEIGHT_BYTES]
    values = [v for v in constants if buffer_bytes(v) > SHARED_BUFFER_WEIGHT_BYTES]
    size = sum(map(buffer_bytes, values))
    threads = MAX_THREADS if size >= len(values) * MIN_PARALLEL_WEIGHT_BYTES else 1
    groups = [[value] for value in values] + ([small] if small else [])
    placed: dict[Value, Binding] = {}
    with LargeConstants(gpu) as large:
        works = [functools.partial(_place, gpu, group, arrays, large) for group in groups]
        for places in parallel_map(works, size, threads):
            placed |= places
    return placed


def _place(
    gpu: Device, values: Sequence[Value], arrays: Mapping[Value, Array], large: LargeConstants
) -> dict[Value, Binding]:
    """Place constants in one buffer."""
    checkpoint()
    sizes = [buffer_bytes(value) for value in values]
    starts = list(itertools.accumulate(map(aligned, sizes[:-1]), initial=0))
    contents = [(arrays[value], value.data_type) for value in values]
    upload = functools.partial(_upload, gpu, contents, starts, sizes, large)
    buffer = gpu.weights.get(contents, upload)
    return {
        value: Binding(buffer, start, size)
        for value, start, size in zip(values, starts, sizes, strict=True)
    }


def _upload(
    gpu: Device,
    contents: Sequence[Contents],
    starts: Sequence[int],
    sizes: Sequence[int],
    large: LargeConstants,
) -> Any:
    total = starts[-1] + sizes[-1]
    is_large = len(sizes) == 1 and large.is_for(total)
    with device_errors(f"uploading constants of {total} bytes"), gpu.life:
        buffer = gpu.buffer(total, STORAGE | COPIES, "constants", mapped=not is_large)
        arrays = (
            array.astype(DTYPES[host_dtype(kind)].numpy, copy=False) for array, kind in contents
        )
        parts = (padded_bytes(*one) for one in zip(arrays, sizes, strict=True))
        if is_large:
            large.write(buffer, *parts)
        else:
            write_and_unmap(gpu, buffer, zip(starts, parts, strict=True))
    return buffer
