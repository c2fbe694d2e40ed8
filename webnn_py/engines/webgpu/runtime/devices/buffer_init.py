"""Fill new buffers with constants while other threads run; wgpu-py's own way holds the GIL."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from webnn_py.core import gil_yield
from webnn_py.core.parallel_map import MAX_THREADS
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.staging import Uploads
from webnn_py.engines.webgpu.runtime.fallback import MIN_GIL_RELEASE_BYTES
from webnn_py.ir import Array

MIN_STAGED_BYTES = 1 << 24
"""Contents of at least so many bytes go through small staging buffers. Mapping new memory for all
of them takes longer."""
STAGING_BYTES = 1 << 23
"""Bytes of such a staging buffer."""


def write_and_unmap(gpu: Device, buffer: Any, parts: Iterable[tuple[int, Array]]) -> None:
    """Write into a buffer that was mapped at creation, and unmap it.

    Args:
        gpu: The device.
        buffer: The mapped buffer.
        parts: Offsets in bytes, and the bytes to write there.
    """
    _write_mapped(gpu, buffer, parts)
    buffer.unmap()
    gpu.note_upload(buffer.size)


def _write_mapped(gpu: Device, buffer: Any, parts: Iterable[tuple[int, Array]]) -> None:
    if not gpu.webgpu.WAITING.is_available:
        for start, contents in parts:
            buffer.write_mapped(contents, start)
        return
    memory = np.frombuffer(gpu.webgpu.read_mapped(buffer), np.uint8)
    for start, contents in parts:
        target = memory[start : start + len(contents)]
        if len(contents) < MIN_GIL_RELEASE_BYTES:
            target.data[:] = contents.data
        else:
            np.copyto(target, contents)


class LargeConstants:
    """Uploads of large constants through a few mapped staging buffers, on several threads.

    Args:
        gpu: The device.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._uploads = Uploads(gpu.handle, gpu.life)  # own pool: freed with this object
        threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "webnn-constants", gil_yield.enable)

    def __enter__(self) -> LargeConstants:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown()

    def is_for(self, size: int) -> bool:
        """Return whether to use `write` for `size` bytes rather than mapping at creation."""
        return size >= MIN_STAGED_BYTES and self._uploads.is_available

    def write(self, buffer: Any, contents: Array) -> None:
        """Submit copies of `contents` into a buffer."""
        starts = range(0, len(contents), STAGING_BYTES)
        list(self._pool.map(functools.partial(self._write_piece, buffer, contents), starts))

    def _write_piece(self, buffer: Any, contents: Array, start: int) -> None:
        gpu, piece = self._gpu, contents[start : start + STAGING_BYTES]
        source = self._uploads.take(STAGING_BYTES)
        with gpu.life:
            np.copyto(np.frombuffer(gpu.webgpu.read_mapped(source), np.uint8, len(piece)), piece)
        self._uploads.end_writing([source])
        encoder = gpu.plain_encoder("constants")
        encoder.copy_buffer_to_buffer(source, 0, buffer, start, len(piece))
        gpu.submit(encoder.finish())
        self._uploads.give_back([source])


def padded_bytes(data: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Return the bytes of an array, padded with zeros to `size` bytes."""
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if raw.size == size:
        return raw
    padded = np.zeros(size, np.uint8)
    padded[: raw.size] = raw
    return padded
