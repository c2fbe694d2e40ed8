"""Encoders for our own commands, which call webgpu.h directly (`RECORDING`).

The methods of wgpu-py and wgpudawn make an object and check for errors at each call, which costs
more than the recording itself. Errors are reported again when an encoder is finished. They go to a
callback that lives as long as the GPUDevice object. So encoders, passes and command buffers keep
that object.

Each implementation of WebGPU derives its own classes, which hold its functions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from webnn_py.core.exit_guard import calls_libraries
from webnn_py.core.fork_guard import after_fork_in_child
from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.runtime import fallback
from webnn_py.engines.webgpu.runtime.submit_chunks import split_into_chunks
from webnn_py.engines.webgpu.runtime.webgpu_api import Capability, Dispatch


class CInterface:
    """One implementation of webgpu.h, called through cffi.

    Args:
        safe: C functions that raise a GPUError.
        lib: The same functions without checks.
        ffi: The cffi object with the types.
        releasing: The functions that release objects.
    """

    def __init__(self, safe: Any, lib: Any, ffi: Any, releasing: Any) -> None:
        self.safe, self.lib, self.ffi, self.releasing = safe, lib, ffi, releasing
        self.null = ffi.NULL
        self.new_encoder = ffi.new("WGPUCommandEncoderDescriptor *")
        self.new_pass = ffi.new("WGPUComputePassDescriptor *")
        self.new_buffer = ffi.new("WGPUCommandBufferDescriptor *")
        self.entries, self.new_group = map(
            ffi.typeof, ("WGPUBindGroupEntry[]", "WGPUBindGroupDescriptor *")
        )
        self.offsets = ffi.typeof("uint32_t[]")
        self.buffers = ffi.typeof("WGPUCommandBuffer[]")
        self.dispatching = (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
        )
        # Cached, as most dispatches of a graph share their offsets.
        self.c_array = functools.lru_cache(1024)(self._c_array)

    def _c_array(self, offsets: tuple[int, ...]) -> Any:
        """Return dynamic offsets as a C array."""
        return self.ffi.new(self.offsets, offsets) if offsets else self.null


class Bound:
    """A class over an implementation's C interface."""

    __slots__ = ()

    @classmethod
    def bound(cls, c: CInterface | None, **attributes: Any) -> type[Self]:
        """Return the subclass for one implementation, with further class attributes."""
        return type(cls.__name__, (cls,), {"__slots__": (), "c": c, **attributes})


class DispatchCommands(Bound):
    """The dispatches of a graph over fixed bindings, which can be recorded many times.

    Args:
        dispatches: The dispatches to record.

    Attributes:
        c: The implementation's C interface, if it has one.
        recording: Whether recording may use it.
    """

    __slots__ = ("__weakref__", "_c", "_calls", "_pieces", "_references")
    c: ClassVar[CInterface | None]
    recording: ClassVar[Capability]

    def __init__(self, dispatches: Sequence[Dispatch]) -> None:
        c = self._c = self.c if self.recording.is_available else None
        self._pieces: list[list[Self]] = []
        # The garbage collector visits every container that holds tracked objects, and graphs keep
        # many of these. So one list holds the objects, and each call is a tuple of plain handles.
        self._references: Sequence[Any] = ()
        self._calls: Sequence[Any] = dispatches
        if c is not None:
            pipelines = {id(pipeline): pipeline for pipeline, *_ in dispatches}
            self._references = [*pipelines.values(), *(group for _, group, *_ in dispatches)]
            self._calls = [
                (pipe._internal, group._internal, len(offsets), c.c_array(offsets), x, y, z, times)
                for pipe, group, offsets, x, y, z, times in dispatches
            ]

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def pieces(self) -> Sequence[Sequence[Self]]:
        """Return the same dispatches in chunks and steps, as of `split_into_chunks`."""
        if not self._pieces:
            parts = split_into_chunks(self._calls)
            self._pieces = [[self._part(calls) for calls in piece] for piece in parts]
        return self._pieces

    def _part(self, calls: Sequence[Any]) -> Self:
        part = type(self)(())
        part._calls, part._references = calls, self._references
        return part

    def encode(self, compute: Any, repeat: int = 1) -> None:
        """Record all dispatches into an open compute pass, `repeat` times in a row."""
        if self._c is None:
            for _ in checkpoints(range(repeat)):
                fallback.encode(compute, self._calls)
            return
        handle = compute._internal
        set_pipeline, set_bind_group, dispatch = self._c.dispatching
        for _ in checkpoints(range(repeat)) if repeat > 1 else (0,):
            for pipeline, group, count, offsets, x, y, z, times in self._calls:
                set_pipeline(handle, pipeline)
                set_bind_group(handle, 0, group, count, offsets)
                dispatch(handle, x, y, z)
                for _ in checkpoints(range(times - 1)) if times > 1 else ():
                    dispatch(handle, x, y, z)


class BindGroup(Bound):
    """A bind group of buffer ranges, made without an object of the library.

    Args:
        device: The GPUDevice.
        layout: The GPUBindGroupLayout.
        parts: Number, buffer, offset and size (bytes) of each binding.

    Raises:
        GPUError: The bind group is invalid.
    """

    __slots__ = ("_internal",)
    c: ClassVar[CInterface]

    def __init__(
        self, device: Any, layout: Any, parts: Iterable[tuple[int, Any, int, int]]
    ) -> None:
        c = self.c
        null = c.null
        entries = [
            (null, number, buffer._internal, offset, size, null, null)
            for number, buffer, offset, size in parts
        ]
        c_entries = c.ffi.new(c.entries, entries)
        group = c.ffi.new(c.new_group)
        group.layout, group.entryCount, group.entries = layout._internal, len(entries), c_entries
        self._internal: Any = c.safe.wgpuDeviceCreateBindGroup(device._internal, group)

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ failed
            self.c.releasing.wgpuBindGroupRelease(self._internal)


class Encoder(Bound):
    """A command encoder for copies between buffers and `DispatchCommands`.

    Args:
        device: The GPUDevice.

    Attributes:
        c: The implementation's C interface.
        compute_pass: The implementation's class of passes.
        command_buffer: The implementation's class of command buffers.
    """

    __slots__ = ("_device", "_internal")
    c: ClassVar[CInterface]
    compute_pass: ClassVar[type[ComputePass]]
    command_buffer: ClassVar[type[CommandBuffer]]

    def __init__(self, device: Any) -> None:
        self._device = device
        c = self.c
        self._internal: Any = c.safe.wgpuDeviceCreateCommandEncoder(device._internal, c.new_encoder)

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ failed
            self.c.releasing.wgpuCommandEncoderRelease(self._internal)

    def copy_buffer_to_buffer(
        self, source: Any, source_offset: int, target: Any, target_offset: int, size: int
    ) -> None:
        """Record a copy. Offsets and size are bytes, multiples of 4."""
        self.c.lib.wgpuCommandEncoderCopyBufferToBuffer(
            self._internal, source._internal, source_offset, target._internal, target_offset, size
        )

    def clear_buffer(self, buffer: Any, offset: int, size: int) -> None:
        """Record a write of zeros."""
        self.c.lib.wgpuCommandEncoderClearBuffer(self._internal, buffer._internal, offset, size)

    def begin_compute_pass(self) -> ComputePass:
        """Begin a compute pass."""
        handle = self.c.lib.wgpuCommandEncoderBeginComputePass(self._internal, self.c.new_pass)
        return self.compute_pass(self._device, handle)

    @staticmethod
    def free_when_dropped(commands: CommandBuffer) -> None:
        """Have commands freed that are never submitted, which most implementations do anyway."""

    def finish(self) -> CommandBuffer:
        """Return the recorded commands as a command buffer.

        Raises:
            GPUError: The commands are invalid.
        """
        handle = self.c.safe.wgpuCommandEncoderFinish(self._internal, self.c.new_buffer)
        commands = self.command_buffer(self._device, handle)
        self.free_when_dropped(commands)
        return commands


class ComputePass(Bound):
    """A compute pass for `DispatchCommands`.

    Args:
        device: The GPUDevice of the encoder.
        handle: The C handle of the pass.
    """

    __slots__ = ("_device", "_internal")
    c: ClassVar[CInterface]

    def __init__(self, device: Any, handle: Any) -> None:
        self._device = device
        self._internal = handle

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ was interrupted
            self.c.releasing.wgpuComputePassEncoderRelease(self._internal)

    def end(self) -> None:
        """End the pass."""
        self.c.lib.wgpuComputePassEncoderEnd(self._internal)


@calls_libraries("submit")  # which calls back for mappings that have ended
class CommandBuffer(Bound):
    """The result of `Encoder.finish`, for one submission.

    Args:
        device: The GPUDevice of the encoder.
        handle: The C handle of the command buffer.
    """

    __slots__ = ("_device", "_internal")
    c: ClassVar[CInterface]

    def __init__(self, device: Any, handle: Any) -> None:
        self._device = device
        self._internal = handle

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ was interrupted
            self.c.releasing.wgpuCommandBufferRelease(self._internal)

    def submit(self, queue: Any, before: Sequence[CommandBuffer] = ()) -> None:
        """Submit the commands to a GPUQueue, behind other ones."""
        c = self.c
        handles = [*(each._internal for each in before), self._internal]
        c.safe.wgpuQueueSubmit(queue._internal, len(handles), c.ffi.new(c.buffers, handles))


def _stop_releasing() -> None:
    """Release nothing in a child process, as the handles belong to the parent's drivers."""
    global _can_release
    _can_release = False


_can_release = True
after_fork_in_child(_stop_releasing)
