"""Commands of our own, recorded straight into wgpu-native where that can be (`RECORDING`).

What wgpu-py's methods add, objects and a look for errors each, costs more than the recording. The
errors come again when an encoder is finished. They are told to a callback that lives as long as the
GPUDevice object: so encoders, passes and command buffers keep it, as wgpu-py's own do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.runtime.wgpu_native import fallback, native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import RECORDING
from webnn_py.engines.webgpu.runtime.wgpu_native.submit_chunks import in_pieces


class DispatchCommands:
    """The dispatches of a graph over fixed places, to be recorded as often as one likes.

    Args:
        dispatches: What is recorded.
    """

    __slots__ = ("_calls", "_kept", "_native", "_pieces")

    def __init__(self, dispatches: Sequence[fallback.Dispatch]) -> None:
        self._native = RECORDING.there
        self._pieces: list[list[DispatchCommands]] = []
        # Graphs keep many of these, through all of which a collection of garbage goes. One list
        # keeps the objects, so that what is told of a dispatch has none that it follows.
        self._kept: Sequence[Any] = ()
        self._calls: Sequence[Any] = dispatches
        if self._native:
            pipelines = {id(pipeline): pipeline for pipeline, *_ in dispatches}
            self._kept = [*pipelines.values(), *(group for _, group, *_ in dispatches)]
            self._calls = [
                (pipe._internal, group._internal, len(offsets), _c_array(offsets), x, y, z, times)
                for pipe, group, offsets, x, y, z, times in dispatches
            ]

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def pieces(self) -> Sequence[Sequence[DispatchCommands]]:
        """The same in parts, as `in_pieces` makes them."""
        if not self._pieces:
            parts = in_pieces(self._calls)
            self._pieces = [[self._part(calls) for calls in piece] for piece in parts]
        return self._pieces

    def _part(self, calls: Sequence[Any]) -> DispatchCommands:
        part = DispatchCommands(())
        part._calls, part._kept = calls, self._kept
        return part

    def encode(self, compute: Any, repeat: int = 1) -> None:
        """Record into an open compute pass, all of them so often in a row."""
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
    """Dynamic offsets for C; kept, as most dispatches of a graph have the same."""
    return _ffi.new(_OFFSETS, offsets) if offsets else _NULL


class BindGroup:
    """A GPUBindGroup of parts of buffers, which lives by itself.

    Args:
        device: A GPUDevice.
        layout: Its GPUBindGroupLayout.
        parts: The number, buffer, offset and size of each binding.

    Raises:
        GPUError: It is not valid.
    """

    __slots__ = ("_internal",)

    def __init__(
        self, device: Any, layout: Any, parts: Iterable[tuple[int, Any, int, int]]
    ) -> None:
        entries = [
            (_NULL, number, buffer._internal, offset, size, _NULL, _NULL)
            for number, buffer, offset, size in parts
        ]
        made = _ffi.new(_ENTRIES, entries)
        group = _ffi.new(_NEW_GROUP)
        group.layout, group.entryCount, group.entries = layout._internal, len(entries), made
        self._internal: Any = _safe.wgpuDeviceCreateBindGroup(device._internal, group)

    def __del__(self) -> None:
        if _releases and hasattr(self, "_internal"):  # it has none where that failed
            _lib.wgpuBindGroupRelease(self._internal)


class Encoder:
    """As much of a GPUCommandEncoder as commands between buffers take.

    Args:
        device: A GPUDevice.
    """

    __slots__ = ("_device", "_internal")

    def __init__(self, device: Any) -> None:
        self._device = device
        self._internal: Any = _safe.wgpuDeviceCreateCommandEncoder(device._internal, _NEW_ENCODER)

    def __del__(self) -> None:
        if _releases and hasattr(self, "_internal"):  # it has none where that failed
            _lib.wgpuCommandEncoderRelease(self._internal)

    def copy_buffer_to_buffer(
        self, source: Any, source_offset: int, target: Any, target_offset: int, size: int
    ) -> None:
        """Record a copy of whole words."""
        _copy(
            self._internal, source._internal, source_offset, target._internal, target_offset, size
        )

    def clear_buffer(self, buffer: Any, offset: int, size: int) -> None:
        """Record the writing of zeros."""
        _lib.wgpuCommandEncoderClearBuffer(self._internal, buffer._internal, offset, size)

    def begin_compute_pass(self) -> ComputePass:
        """Begin to record dispatches."""
        return ComputePass(self._device, _begin_pass(self._internal, _NEW_PASS))

    def finish(self) -> CommandBuffer:
        """What was recorded, as a whole.

        Raises:
            GPUError: It is not valid.
        """
        handle = _safe.wgpuCommandEncoderFinish(self._internal, _NEW_BUFFER)
        made = CommandBuffer(self._device, handle)
        native.free_when_dropped(made)
        return made


class ComputePass:
    """As much of a GPUComputePassEncoder as `DispatchCommands` takes.

    Args:
        device: The GPUDevice of its encoder.
        handle: Of wgpu-native.
    """

    __slots__ = ("_device", "_internal")

    def __init__(self, device: Any, handle: Any) -> None:
        self._device = device
        self._internal = handle

    def __del__(self) -> None:
        if _releases and hasattr(self, "_internal"):  # it has none where that was interrupted
            _lib.wgpuComputePassEncoderRelease(self._internal)

    def end(self) -> None:
        """Let the encoder record what follows."""
        _lib.wgpuComputePassEncoderEnd(self._internal)


class CommandBuffer:
    """The result of `Encoder.finish`, to be submitted once; arguments as of `ComputePass`."""

    __slots__ = ("_device", "_internal")

    def __init__(self, device: Any, handle: Any) -> None:
        self._device = device
        self._internal = handle

    def __del__(self) -> None:
        if _releases and hasattr(self, "_internal"):  # it has none where that was interrupted
            _lib.wgpuCommandBufferRelease(self._internal)

    def submit(self, queue: Any) -> None:
        """Have a GPUQueue's device run it."""
        _safe.wgpuQueueSubmit(queue._internal, 1, _ffi.new(_ONE_BUFFER, [self._internal]))


def abandon() -> None:
    """In a child process: release nothing that the parent's drivers made."""
    global _releases
    _releases = False


_releases = True
if RECORDING.there:
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
