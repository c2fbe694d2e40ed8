"""Encoders for our own commands, which call wgpu-native directly where possible (`RECORDING`).

wgpu-py's methods make an object and check for errors at each call, which costs more than the
recording itself. Errors are reported again when an encoder is finished. They go to a callback that
lives as long as the GPUDevice object. So encoders, passes and command buffers keep that object.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from webnn_py.core.fork_guard import after_fork_in_child
from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.runtime.submit_chunks import split_into_chunks
from webnn_py.engines.webgpu.runtime.wgpu_native import fallback, native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import RECORDING


class DispatchCommands:
    """The dispatches of a graph over fixed bindings, which can be recorded many times.

    Args:
        dispatches: The dispatches to record.
    """

    __slots__ = ("_calls", "_native", "_pieces", "_references")

    def __init__(self, dispatches: Sequence[fallback.Dispatch]) -> None:
        self._native = RECORDING.is_available
        self._pieces: list[list[DispatchCommands]] = []
        # The garbage collector visits every container that holds tracked objects, and graphs keep
        # many of these. So one list holds the objects, and each call is a tuple of plain handles.
        self._references: Sequence[Any] = ()
        self._calls: Sequence[Any] = dispatches
        if self._native:
            pipelines = {id(pipeline): pipeline for pipeline, *_ in dispatches}
            self._references = [*pipelines.values(), *(group for _, group, *_ in dispatches)]
            self._calls = [
                (pipe._internal, group._internal, len(offsets), _c_array(offsets), x, y, z, times)
                for pipe, group, offsets, x, y, z, times in dispatches
            ]

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def pieces(self) -> Sequence[Sequence[DispatchCommands]]:
        """Return the same dispatches in chunks and steps, as of `split_into_chunks`."""
        if not self._pieces:
            parts = split_into_chunks(self._calls)
            self._pieces = [[self._part(calls) for calls in piece] for piece in parts]
        return self._pieces

    def _part(self, calls: Sequence[Any]) -> DispatchCommands:
        part = DispatchCommands(())
        part._calls, part._references = calls, self._references
        return part

    def encode(self, compute: Any, repeat: int = 1) -> None:
        """Record all dispatches into an open compute pass, `repeat` times in a row."""
        if not self._native:
            for _ in checkpoints(range(repeat)):
                fallback.encode(compute, self._calls)
            return
        handle = compute._internal
        for _ in checkpoints(range(repeat)) if repeat > 1 else (0,):
            for pipeline, group, count, offsets, x, y, z, times in self._calls:
                _set_pipeline(handle, pipeline)
                _set_bind_group(handle, 0, group, count, offsets)
                _dispatch(handle, x, y, z)
                for _ in checkpoints(range(times - 1)) if times > 1 else ():
                    _dispatch(handle, x, y, z)


@functools.lru_cache(1024)
def _c_array(offsets: tuple[int, ...]) -> Any:
    """Return dynamic offsets as a C array. Cached, as most dispatches of a graph share them."""
    return _ffi.new(_OFFSETS, offsets) if offsets else _NULL


class BindGroup:
    """A bind group of buffer ranges, made without a wgpu-py object.

    Args:
        device: The GPUDevice.
        layout: The GPUBindGroupLayout.
        parts: Number, buffer, offset and size (bytes) of each binding.

    Raises:
        GPUError: The bind group is invalid.
    """

    __slots__ = ("_internal",)

    def __init__(
        self, device: Any, layout: Any, parts: Iterable[tuple[int, Any, int, int]]
    ) -> None:
        entries = [
            (_NULL, number, buffer._internal, offset, size, _NULL, _NULL)
            for number, buffer, offset, size in parts
        ]
        c_entries = _ffi.new(_ENTRIES, entries)
        group = _ffi.new(_NEW_GROUP)
        group.layout, group.entryCount, group.entries = layout._internal, len(entries), c_entries
        self._internal: Any = _safe.wgpuDeviceCreateBindGroup(device._internal, group)

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ failed
            _lib.wgpuBindGroupRelease(self._internal)


class Encoder:
    """A command encoder for copies between buffers and `DispatchCommands`.

    Args:
        device: The GPUDevice.
    """

    __slots__ = ("_device", "_internal")

    def __init__(self, device: Any) -> None:
        self._device = device
        self._internal: Any = _safe.wgpuDeviceCreateCommandEncoder(device._internal, _NEW_ENCODER)

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ failed
            _lib.wgpuCommandEncoderRelease(self._internal)

    def copy_buffer_to_buffer(
        self, source: Any, source_offset: int, target: Any, target_offset: int, size: int
    ) -> None:
        """Record a copy. Offsets and size are bytes, multiples of 4."""
        _copy(
            self._internal, source._internal, source_offset, target._internal, target_offset, size
        )

    def clear_buffer(self, buffer: Any, offset: int, size: int) -> None:
        """Record a write of zeros."""
        _lib.wgpuCommandEncoderClearBuffer(self._internal, buffer._internal, offset, size)

    def begin_compute_pass(self) -> ComputePass:
        """Begin a compute pass."""
        return ComputePass(self._device, _begin_pass(self._internal, _NEW_PASS))

    def finish(self) -> CommandBuffer:
        """Return the recorded commands as a command buffer.

        Raises:
            GPUError: The commands are invalid.
        """
        handle = _safe.wgpuCommandEncoderFinish(self._internal, _NEW_BUFFER)
        commands = CommandBuffer(self._device, handle)
        native.free_when_dropped(commands)
        return commands


class ComputePass:
    """A compute pass for `DispatchCommands`.

    Args:
        device: The GPUDevice of the encoder.
        handle: wgpu-native's handle of the pass.
    """

    __slots__ = ("_device", "_internal")

    def __init__(self, device: Any, handle: Any) -> None:
        self._device = device
        self._internal = handle

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ was interrupted
            _lib.wgpuComputePassEncoderRelease(self._internal)

    def end(self) -> None:
        """End the pass."""
        _lib.wgpuComputePassEncoderEnd(self._internal)


class CommandBuffer:
    """The result of `Encoder.finish`, for one submission.

    Args:
        device: The GPUDevice of the encoder.
        handle: wgpu-native's handle of the command buffer.
    """

    __slots__ = ("_device", "_internal")

    def __init__(self, device: Any, handle: Any) -> None:
        self._device = device
        self._internal = handle

    def __del__(self) -> None:
        if _can_release and hasattr(self, "_internal"):  # missing if __init__ was interrupted
            _lib.wgpuCommandBufferRelease(self._internal)

    def submit(self, queue: Any) -> None:
        """Submit the commands to a GPUQueue."""
        _safe.wgpuQueueSubmit(queue._internal, 1, _ffi.new(_ONE_BUFFER, [self._internal]))


def _stop_releasing() -> None:
    """Release nothing in a child process, as the handles belong to the parent's drivers."""
    global _can_release
    _can_release = False


_can_release = True
after_fork_in_child(_stop_releasing)
if RECORDING.is_available:
    _safe, _lib, _ffi = native.c_interface()
    _NULL = _ffi.NULL
    _NEW_ENCODER = _ffi.new("WGPUCommandEncoderDescriptor *")
    _NEW_PASS = _ffi.new("WGPUComputePassDescriptor *")
    _NEW_BUFFER = _ffi.new("WGPUCommandBufferDescriptor *")
    _ENTRIES, _NEW_GROUP = map(_ffi.typeof, ("WGPUBindGroupEntry[]", "WGPUBindGroupDescriptor *"))
    _OFFSETS = _ffi.typeof("uint32_t[]")
    _ONE_BUFFER = _ffi.typeof("WGPUCommandBuffer[1]")
    _copy = _lib.wgpuCommandEncoderCopyBufferToBuffer
    _begin_pass = _lib.wgpuCommandEncoderBeginComputePass
    _set_pipeline = _lib.wgpuComputePassEncoderSetPipeline
    _set_bind_group = _lib.wgpuComputePassEncoderSetBindGroup
    _dispatch = _lib.wgpuComputePassEncoderDispatchWorkgroups
