"""Readback and upload: pools of buffers that the host can map."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import wgpu

from webnn_py.core.completion import Cancellation
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import Life
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.poll_backoff import NEAR, Wait
from webnn_py.engines.webgpu.runtime.wgpu_native import fallback, native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import WAITING
from webnn_py.ir import Array
from webnn_py.memory.copying import copy
from webnn_py.memory.host_arrays import HUGE
from webnn_py.ordering.operation import Run

BufferMapping = native.BufferMapping | fallback.BufferMapping
KEPT_BYTES = 256 << 20
"""Bytes of buffers of each pool that are kept for later."""


class _Pool:
    """Buffers of one usage, kept by size for whoever needs one next.

    Args:
        device: A GPUDevice.
        usage: Of the buffers.
        purpose: What messages say that they are for.
    """

    def __init__(self, device: Any, usage: int, purpose: str) -> None:
        self._device = device
        self._usage = usage
        self._purpose = purpose
        self._free: dict[int, list[Any]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def has(self, sizes: Iterable[int]) -> bool:
        """Whether `take` would give buffers of at least so many bytes."""
        wanted = Counter(map(_capacity, sizes))
        with self._lock:
            return all(len(self._free.get(size, ())) >= count for size, count in wanted.items())

    def take(self, size: int) -> Any:
        """A buffer of at least so many bytes that was given back, or None."""
        capacity = _capacity(size)
        with self._lock:
            free = self._free.get(capacity)
            if not free:
                return None
            self._kept -= capacity
            return free.pop()

    def get(self, size: int) -> Any:
        """A buffer of at least so many bytes, which is not mapped."""
        return self.take(size) or self.make(size)

    def make(self, size: int, mapped: bool = False) -> Any:
        """A new buffer of at least so many bytes, mapped for writing or not at all."""
        capacity = _capacity(size)
        with device_errors(f"allocating {capacity} bytes to {self._purpose}"):
            return self._device.create_buffer(
                size=capacity, usage=self._usage, label="staging", mapped_at_creation=mapped
            )

    def give_back(self, buffer: Any) -> None:
        """Keep a buffer that is not mapped, and used by nothing that is not done."""
        size = buffer.size
        with self._lock:
            if self._kept + size <= KEPT_BYTES:
                self._kept += size
                self._free.setdefault(size, []).append(buffer)

    def clear(self) -> None:
        """Keep nothing for later."""
        with self._lock:
            self._free.clear()
            self._kept = 0


def _view(memory: Any, array: Array) -> Array:
    """The first bytes of some memory as an array like another one."""
    view: Array = np.frombuffer(memory, array.dtype, array.size)
    return view.reshape(array.shape)


@functools.lru_cache
def _capacity(size: int) -> int:
    return max(256, 1 << (size - 1).bit_length()) if size < 1 << 20 else size


class Uploads:
    """Buffers that the host writes and commands copy from, so that they can be recorded before.

    Args:
        device: A GPUDevice.
        life: Its life.
    """

    def __init__(self, device: Any, life: Life) -> None:
        self._device = device
        self._life = life
        self._large: weakref.ref[Any] | None = None
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        self._pool = _Pool(device, usage, "upload from")

    @property
    def there(self) -> bool:
        """Whether there are such buffers; else contents go through the device's queue."""
        return WAITING.is_available

    def have(self, sizes: Iterable[int]) -> bool:
        """Whether `take` need not make buffers of so many bytes."""
        return self._pool.has(sizes)

    def take(self, size: int) -> Any:
        """A buffer of at least so many bytes that is mapped for `write`."""
        source = self._pool.take(size)
        if source is None:
            return self._pool.make(size, mapped=True)
        native.mapping(self._device, source, writing=True).wait()
        return source

    def write(self, contents: Iterable[tuple[Any, Array]]) -> None:
        """Write contiguous arrays into buffers that `take` gave."""
        with self._life:
            for source, array in contents:
                if array.nbytes < HUGE:
                    native.write_mapped(source, array)
                else:
                    copy(_view(native.read_mapped(source), array), array)

    def are_for(self, user: Any) -> bool:
        """Whether `user` may write large contents: one at a time, until it is there no more."""
        user_before = self._large and self._large()
        if user_before is None:
            self._large = weakref.ref(user)
        return user_before is None or user_before is user

    def leave(self, user: Any) -> None:
        """Let another one write large contents."""
        if self._large is not None and self._large() is user:
            self._large = None

    def copy(self, encoder: Any, copies: Iterable[tuple[Any, tuple[Any, int]]]) -> None:
        """Record copies from what was taken into buffers, of so many bytes each."""
        for source, (target, size) in copies:
            encoder.copy_buffer_to_buffer(source, 0, target, 0, size)

    def end_writing(self, sources: Iterable[Any]) -> None:
        """Let the copies be submitted."""
        with self._life:
            for source in sources:
                native.unmap(source)

    def give_back(self, sources: Iterable[Any]) -> None:
        """The copies have run."""
        for source in sources:
            self._pool.give_back(source)

    def clear(self) -> None:
        """Keep nothing for later."""
        self._pool.clear()


class Ending:
    """The end of work on a device, which is looked for.

    Args:
        mapping: Of a buffer that it writes.
        wait: Since it was submitted.
    """

    def __init__(self, mapping: BufferMapping, wait: Wait) -> None:
        self._mapping = mapping
        self._wait = wait
        self._looked = self._seen = False

    @property
    def left(self) -> float:
        """How many seconds more it is likely to take."""
        return self._wait.left

    def look(self) -> bool:
        """Whether it is over."""
        if not self._seen and self._mapping.look():
            self._seen = True
            self._wait.end(late=not self._looked)
        self._looked = True
        return self._seen

    def come_near(self) -> None:
        """Wait until it is about to be over, or is."""
        while self.left > NEAR and not self.look():
            self._wait.pause()

    def wait(self) -> None:
        """Wait until it is over; raises as a mapping does."""
        seen = self.look()
        self._mapping.wait(self.left)
        if not seen:
            self._wait.end()


class Staging:
    """Buffers that the host can read.

    Args:
        device: A GPUDevice.
        life: Its life.
    """

    def __init__(self, device: Any, life: Life) -> None:
        self._device = device
        self._life = life
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self._pool = _Pool(device, usage, "read back")
        self._begun = False

    def begin(self) -> None:
        """Have the driver make memory that the host reads: the first takes some of them 20 ms."""
        if not self._begun:
            self._begun = True
            self._pool.give_back(self._pool.make(4))

    def has(self, size: int) -> bool:
        """Whether there is a buffer of at least so many bytes."""
        return self._pool.has([size])

    def get(self, size: int) -> Any:
        """A buffer of at least so many bytes."""
        return self._pool.get(size)

    def copy(self, encoder: Any, source: Binding, buffer: Any = None) -> Any:
        """Record the copy of a tensor into a buffer, of the pool if none is given."""
        buffer = self.get(source.size) if buffer is None else buffer
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, buffer, 0, source.size)
        return buffer

    def ending(self, buffer: Any, wait: Wait) -> Ending:
        """Begin to wait for a copy, submitted as its wait began."""
        return Ending(self.mapping(buffer), wait)

    def mapping(self, buffer: Any) -> BufferMapping:
        """As `ending`, for who knows nothing of the time that it takes."""
        return native.mapping(self._device, buffer)

    def read(
        self,
        copies: Sequence[tuple[Any, Array]],
        cancellation: Cancellation,
        ending: Ending | BufferMapping | None = None,
        then: Run | None = None,
    ) -> None:
        """Wait for the copies, write them into their targets as one section.

        Args:
            copies: Buffers, and what their contents are written into.
            cancellation: Of the work.
            ending: The wait for the first of them, if that has begun.
            then: Called as soon as the targets are written.
        """
        if ending is not None:
            ending.wait()
        for buffer, _ in copies if ending is None else copies[1:]:
            self.map(buffer)
        with self._life:
            with cancellation as wanted:
                for buffer, target in copies if wanted else ():
                    self._write_out(buffer, target)
            if then is not None:
                then()
            for buffer, _ in copies:
                self.release(buffer)

    def map(self, buffer: Any) -> None:
        """Wait until the host can read the buffer.

        Raises:
            ContextLostError: The device was lost meanwhile.
        """
        self.mapping(buffer).wait()

    def _write_out(self, buffer: Any, target: Array) -> None:
        if not native.read_small(buffer, target):
            copy(target, _view(native.read_mapped(buffer), target))

    def release(self, buffer: Any) -> None:
        """Give a mapped buffer back."""
        native.unmap(buffer)
        self._pool.give_back(buffer)

    def fence(self, encoder: Any) -> Any:
        """Record something to wait for, when nothing is read back."""
        buffer = self._pool.get(4)
        encoder.clear_buffer(buffer, 0, 4)
        return buffer

    def wait(self, buffer: Any) -> None:
        """Wait until a fence has been passed, and give its buffer back; raises as `map`."""
        self.map(buffer)
        with self._life:
            self.release(buffer)

    def clear(self) -> None:
        """Keep nothing for later."""
        self._pool.clear()
