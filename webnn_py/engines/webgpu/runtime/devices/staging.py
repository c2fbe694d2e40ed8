"""Host-device transfers through pools of mappable staging buffers: `Uploads` and `Staging`."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import wgpu

from webnn_py.core.completion import Cancellation
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import Life
from webnn_py.engines.webgpu.runtime.devices.errors import told
from webnn_py.engines.webgpu.runtime.poll_backoff import NEAR_SECONDS, LatencyEstimate, pause
from webnn_py.engines.webgpu.runtime.webgpu_api import BufferMapping, implementation_of
from webnn_py.ir import Array
from webnn_py.memory.allocation import copy_array
from webnn_py.memory.host_arrays import SLOW_COPY_BYTES
from webnn_py.ordering.operation import Run

MAX_POOL_BYTES = 256 << 20
"""Bytes of free buffers that each pool keeps."""


class _Pool:
    """A memory pool of buffers with one usage, by size.

    Args:
        device: The GPUDevice.
        usage: Flags of wgpu.BufferUsage.
        purpose: The purpose of the buffers, for messages.
    """

    def __init__(self, device: Any, usage: int, purpose: str) -> None:
        self._device = device
        self._usage = usage
        self._purpose = purpose
        self._free: dict[int, list[Any]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def has(self, sizes: Iterable[int]) -> bool:
        """Return whether the pool holds free buffers of these sizes."""
        wanted = Counter(map(_capacity, sizes))
        with self._lock:
            return all(len(self._free.get(size, ())) >= count for size, count in wanted.items())

    def take(self, size: int) -> Any:
        """Remove a free buffer of at least `size` bytes from the pool; None if there is none."""
        capacity = _capacity(size)
        with self._lock:
            free = self._free.get(capacity)
            if not free:
                return None
            self._kept -= capacity
            return free.pop()

    def get(self, size: int) -> Any:
        """Return a free or new unmapped buffer of at least `size` bytes."""
        return self.take(size) or self.make(size)

    def make(self, size: int, mapped: bool = False) -> Any:
        """Make a buffer of at least `size` bytes, mapped for writing if `mapped`."""
        capacity = _capacity(size)
        try:
            return self._device.create_buffer(
                size=capacity, usage=self._usage, label="staging", mapped_at_creation=mapped
            )
        except Exception as error:
            raise told(error, f"allocating {capacity} bytes to {self._purpose}") from error

    def give_back(self, buffer: Any) -> None:
        """Return a buffer to the pool. It must be unmapped, and its commands must have ended."""
        size = buffer.size
        with self._lock:
            if self._kept + size <= MAX_POOL_BYTES:
                self._kept += size
                self._free.setdefault(size, []).append(buffer)

    def clear(self) -> None:
        """Drop all free buffers."""
        with self._lock:
            self._free.clear()
            self._kept = 0


def _view(memory: Any, array: Array) -> Array:
    """View the first bytes of `memory` with the data type and shape of `array`."""
    view: Array = np.frombuffer(memory, array.dtype, array.size)
    return view.reshape(array.shape)


@functools.lru_cache
def _capacity(size: int) -> int:
    return max(256, 1 << (size - 1).bit_length()) if size < 1 << 20 else size


class Uploads:
    """Upload buffers: written by the host, copied by commands that may be recorded before.

    Args:
        device: The GPUDevice.
        life: The device's lifetime.
    """

    def __init__(self, device: Any, life: Life) -> None:
        self._device = device
        self._webgpu = implementation_of(device)
        self._life = life
        self._large: weakref.ref[Any] | None = None
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        self._pool = _Pool(device, usage, "upload from")

    @property
    def is_available(self) -> bool:
        """Return whether upload buffers can be used; else write through the device's queue."""
        return self._webgpu.WAITING.is_available

    def have(self, sizes: Iterable[int]) -> bool:
        """Return whether the pool holds free buffers of these sizes."""
        return self._pool.has(sizes)

    def take(self, size: int) -> Any:
        """Return a buffer of at least `size` bytes, mapped for writing."""
        source = self._pool.take(size)
        if source is None:
            return self._pool.make(size, mapped=True)
        self._webgpu.mapping(self._device, source, True).wait()
        return source

    def write(self, contents: Iterable[tuple[Any, Array]]) -> None:
        """Write C-contiguous arrays into mapped buffers of `take`."""
        with self._life:
            for source, array in contents:
                if array.nbytes < SLOW_COPY_BYTES:
                    self._webgpu.write_mapped(source, array)
                else:
                    copy_array(_view(self._webgpu.read_mapped(source), array), array)

    def are_for(self, user: Any) -> bool:
        """Claim the right to write large contents, which one user has at a time.

        Returns:
            Whether `user` has it, until `leave` or until `user` is freed.
        """
        owner = self._large and self._large()
        if owner is None:
            self._large = weakref.ref(user)
        return owner is None or owner is user

    def leave(self, user: Any) -> None:
        """Give up the right of `are_for`."""
        if self._large is not None and self._large() is user:
            self._large = None

    def copy(self, encoder: Any, copies: Iterable[tuple[Any, tuple[Any, int]]]) -> None:
        """Record copies from upload buffers into buffers; each target has a size in bytes."""
        for source, (target, size) in copies:
            encoder.copy_buffer_to_buffer(source, 0, target, 0, size)

    def end_writing(self, sources: Iterable[Any]) -> None:
        """Unmap the buffers, before the copies are submitted."""
        with self._life:
            for source in sources:
                self._webgpu.unmap(source)

    def give_back(self, sources: Iterable[Any]) -> None:
        """Return the buffers to the pool, after the copies have run."""
        for source in sources:
            self._pool.give_back(source)

    def clear(self) -> None:
        """Drop all free buffers."""
        self._pool.clear()


class Ending:
    """The expected end of submitted work, which is polled.

    Args:
        mapping: The mapping of a buffer that the work writes.
        latency: The estimate for such work.
        begun_at: When the work was submitted; seconds.

    Attributes:
        expected_at: When it is expected; seconds.
    """

    def __init__(self, mapping: BufferMapping, latency: LatencyEstimate, begun_at: float) -> None:
        self._mapping = mapping
        self._latency = latency
        self._begun_at = begun_at
        self.expected_at = begun_at + latency.seconds
        self._looked = self._seen = False

    @property
    def left(self) -> float:
        """Return the expected seconds left."""
        return self.expected_at - time.monotonic()

    def look(self) -> bool:
        """Poll, and return whether the work has ended."""
        if not self._seen and self._mapping.look():
            self._seen = True
            # Nobody looked before: it was over some time ago.
            self._learn(0.0 if self._looked else NEAR_SECONDS / 4)
        self._looked = True
        return self._seen

    def come_near(self) -> None:
        """Wait until shortly before the expected end, or until the work has ended."""
        while self.left > NEAR_SECONDS and not self.look():
            pause(time.monotonic() - self._begun_at, self._latency.seconds)

    def wait(self) -> None:
        """Wait until the work has ended; raise the errors of `BufferMapping.wait`."""
        seen = self.look()
        self._mapping.wait(self.expected_at - time.monotonic())
        if not seen:
            self._learn()

    def _learn(self, late: float = 0.0) -> None:
        self._latency.learn(time.monotonic() - self._begun_at - late)


class Staging:
    """Readback buffers: written by commands, read by the host.

    Args:
        device: The GPUDevice.
        life: The device's lifetime.
    """

    def __init__(self, device: Any, life: Life) -> None:
        self._device = device
        self._webgpu = implementation_of(device)
        self._life = life
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self._pool = _Pool(device, usage, "read back")
        self._begun = False

    def begin(self) -> None:
        """Allocate a first buffer early, which takes some drivers 20 ms."""
        if not self._begun:
            self._begun = True
            self._pool.give_back(self._pool.make(4))

    def has(self, size: int) -> bool:
        """Return whether the pool holds a free buffer of at least `size` bytes."""
        return self._pool.has([size])

    def get(self, size: int) -> Any:
        """Return a free or new buffer of at least `size` bytes."""
        return self._pool.get(size)

    def copy(self, encoder: Any, source: Binding, buffer: Any = None) -> Any:
        """Record the copy of a tensor into a buffer, by default one of the pool; return it."""
        buffer = self.get(source.size) if buffer is None else buffer
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, buffer, 0, source.size)
        return buffer

    def ending(self, buffer: Any, latency: LatencyEstimate, begun_at: float) -> Ending:
        """Begin to wait for the copy into a buffer.

        Args:
            buffer: The target of the copy.
            latency: The estimate for such work.
            begun_at: When the copy was submitted; seconds.
        """
        return Ending(self._webgpu.mapping(self._device, buffer), latency, begun_at)

    def mapping(self, buffer: Any) -> BufferMapping:
        """Begin to wait for the copy into a buffer, without an expected time."""
        return self._webgpu.mapping(self._device, buffer)

    def read(
        self,
        copies: Sequence[tuple[Any, Array]],
        cancellation: Cancellation,
        ending: Ending | BufferMapping | None = None,
        then: Run | None = None,
    ) -> None:
        """Wait for copies and write them into host arrays, unless they are cancelled before.

        Args:
            copies: Readback buffers and their target arrays.
            cancellation: The cancellation of the work; it waits while targets are written.
            ending: The wait for the first copy, if it has begun.
            then: Called as soon as the targets are written.
        """
        webgpu = self._webgpu
        if ending is not None:
            ending.wait()
        for buffer, _ in copies if ending is None else copies[1:]:
            self.map(buffer)
        with self._life:
            with cancellation as wanted:
                for buffer, target in copies if wanted else ():
                    if not webgpu.read_small(buffer, target):
                        copy_array(target, _view(webgpu.read_mapped(buffer), target))
            if then is not None:
                then()
            for buffer, _ in copies:
                webgpu.unmap(buffer)
                self._pool.give_back(buffer)

    def map(self, buffer: Any) -> None:
        """Wait until the host can read a buffer.

        Raises:
            ContextLostError: The device was lost meanwhile.
        """
        self.mapping(buffer).wait()

    def fence(self, encoder: Any) -> Any:
        """Record a fence, for work without readback; return its buffer."""
        buffer = self._pool.get(4)
        encoder.clear_buffer(buffer, 0, 4)
        return buffer

    def wait(self, buffer: Any) -> None:
        """Wait for a fence and return its buffer to the pool; raise the errors of `map`."""
        self.map(buffer)
        with self._life:
            self._webgpu.unmap(buffer)
            self._pool.give_back(buffer)

    def clear(self) -> None:
        """Drop all free buffers."""
        self._pool.clear()
