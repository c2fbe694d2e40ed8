"""New buffers filled with constants, while other threads run: wgpu-py would let none."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from webnn_py.core import gil_yield
from webnn_py.core.parallel_map import MOST_THREADS
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.staging import Uploads
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import WAITING
from webnn_py.ir import Array

LARGE = 1 << 24
"""Bytes from which contents are copied piece by piece: to make all of their memory takes longer."""
PIECE = 1 << 23
"""Bytes."""


def write_made(gpu: Device, buffer: Any, parts: Iterable[tuple[int, Array]]) -> None:
    """Write bytes at places of a buffer that was mapped as it was made, and unmap it."""
    _write_mapped(buffer, parts)
    buffer.unmap()
    gpu.uploaded(buffer.size)


def _write_mapped(buffer: Any, parts: Iterable[tuple[int, Array]]) -> None:
    if not WAITING.is_available:
        for start, contents in parts:
            buffer.write_mapped(contents, start)
        return
    memory = np.frombuffer(native.read_mapped(buffer), np.uint8)
    for start, contents in parts:
        target = memory[start : start + len(contents)]
        if len(contents) < native.MIN_GIL_RELEASE_BYTES:
            target.data[:] = contents.data
        else:
            np.copyto(target, contents)


class LargeConstants:
    """Copies large contents to a device, by way of a few buffers that the host writes.

    Args:
        gpu: The device.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._uploads = Uploads(gpu.handle, gpu.life)  # whose buffers go with this
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "webnn-constants", gil_yield.enable)

    def __enter__(self) -> LargeConstants:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown()

    def takes(self, size: int) -> bool:
        """Whether to `write` so many bytes; else a buffer is mapped as it is made."""
        return size >= LARGE and self._uploads.there

    def write(self, buffer: Any, contents: Array) -> None:
        """Have bytes copied into a buffer before what is submitted next."""
        starts = range(0, len(contents), PIECE)
        list(self._pool.map(functools.partial(self._write_piece, buffer, contents), starts))

    def _write_piece(self, buffer: Any, contents: Array, start: int) -> None:
        gpu, piece = self._gpu, contents[start : start + PIECE]
        source = self._uploads.take(PIECE)
        with gpu.life:
            np.copyto(np.frombuffer(native.read_mapped(source), np.uint8, len(piece)), piece)
        self._uploads.end_writing([source])
        encoder = gpu.plain_encoder("constants")
        encoder.copy_buffer_to_buffer(source, 0, buffer, start, len(piece))
        gpu.submit(encoder.finish())
        self._uploads.give_back([source])


def padded_bytes(data: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The bytes of an array, with zeros up to `size`."""
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if raw.size == size:
        return raw
    wide = np.zeros(size, np.uint8)
    wide[: raw.size] = raw
    return wide
