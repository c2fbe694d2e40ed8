"""Device: a GPUDevice with its queue, features, buffer pools, constants and pipelines."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import wgpu

from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.core.lru_cache import LRUOwners
from webnn_py.core.messages import shown
from webnn_py.core.workers import Workers
from webnn_py.engines.webgpu.program.needs import DeviceCapabilities
from webnn_py.engines.webgpu.program.storage import Features, MatrixShape
from webnn_py.engines.webgpu.runtime.devices.adapters import is_hardware, request_device
from webnn_py.engines.webgpu.runtime.devices.binding import Binding, Weights
from webnn_py.engines.webgpu.runtime.devices.command_tracking import (
    break_queue_cycle,
    observe,
    unobserved,
)
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.devices.run_policy import RunPolicy
from webnn_py.engines.webgpu.runtime.devices.staging import Staging, Uploads
from webnn_py.engines.webgpu.runtime.devices.tile_cache import known_tiles
from webnn_py.engines.webgpu.runtime.webgpu_api import (
    SubgroupMatrix,
    implementation_of,
    is_a,
)
from webnn_py.engines.webgpu.runtime.webgpu_h.encoding import CommandBuffer
from webnn_py.ordering.operation import Run

STORAGE = wgpu.BufferUsage.STORAGE
COPIES = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST

MAX_UNSUBMITTED_BYTES = 16 << 20
"""Bytes of initial buffer contents after which to submit. wgpu-native keeps a copy of them until
the next submission."""
MIN_COPY_COST_BYTES = 1 << 16
"""Bytes that the smallest copy counts as, because each takes a buffer."""


class NonBlockingSemaphore:
    """A counting semaphore that queues callbacks, in order, instead of blocking threads.

    Args:
        count: Operations that may run at once.

    Attributes:
        under_way: Number of running operations.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.under_way = 0
        self._waiting: deque[Run] = deque()
        self._beginning = False
        self._lock = threading.Lock()

    def acquire(self, begin: Run) -> None:
        """Call `begin`, at once or when an operation ends; it must be followed by `release`."""
        with self._lock:
            self._waiting.append(begin)
        self._begin()

    def release(self) -> None:
        """End an operation."""
        with self._lock:
            self.under_way -= 1
        self._begin()

    def _begin(self) -> None:
        # One thread at a time, so that operations that end at once do not nest ever deeper.
        while True:
            with self._lock:
                if self._beginning or not self._waiting or self.under_way == self._count:
                    return
                self.under_way += 1
                self._beginning = True
                begin = self._waiting.popleft()
            try:
                begin()
            finally:
                with self._lock:
                    self._beginning = False


class Device:
    """A GPUDevice and everything cached for it.

    Args:
        device: The user's GPUDevice, or None to request one from the best adapter.
        power_preference: "default", "low-power" or "high-performance".
        hardware: Accept no software adapter.
        engine: The engine whose library requests a device: "webgpu" or "dawn".

    Raises:
        NotSupportedError: There is no adapter, or the library is not installed.
        ValidationError: `device` is no GPUDevice.
        ContextLostError: The device is lost, for example by its `destroy`.
    """

    def __init__(
        self,
        device: Any = None,
        power_preference: str = "default",
        hardware: bool = False,
        engine: str = "webgpu",
    ) -> None:
        if device is None:
            device = request_device(power_preference, hardware, engine)
            weakref.finalize(self, break_queue_cycle, device).atexit = False
        if not is_a(device, "GPUDevice"):
            raise ValidationError(f"device: got {shown(device)}, expected a wgpu.GPUDevice")
        self.webgpu = implementation_of(device)
        self.webgpu.check_process()
        self.webgpu.prepare(device)
        observe(device)
        self.policy = RunPolicy()
        self.handle: Any = device
        self.queue: Any = device.queue
        self.life = life_of(device)
        self.life.check()
        self.webgpu.check_command_buffer_layout(device)
        self.hardware = is_hardware(device.adapter)
        features = _features(device, self.hardware, self.webgpu.subgroup_matrices(device))
        self.features = replace(features, tiles=known_tiles(device.adapter, features))
        self.max_buffer_bytes: int = device.limits["max-buffer-size"]
        self.offset_alignment: int = device.limits["min-storage-buffer-offset-alignment"]
        self.submit_lock = threading.Lock()
        self._unsubmitted = 0
        self._counting = threading.Lock()
        self.in_flight = NonBlockingSemaphore(self.policy.max_runs_in_flight)
        self.owes_turn = False  # a run has just blocked the event loop: let other tasks run first
        self.awake = 0.0  # shortest seconds of the kernel of `roofline.wake`; 0 if unknown
        self.staging = Staging(device, self.life)
        self.uploads = Uploads(device, self.life)
        self.weights = Weights()
        self.recorded_ahead = LRUOwners(self.policy.max_prerecorded_graphs)
        self.reader = Workers("webnn-readback")
        self.recorder = Workers("webnn-recording")
        for threads in (self.reader, self.recorder):
            weakref.finalize(self, threads.finish).atexit = False
        self.pipelines = PipelineCache(device, self.webgpu)

    @property
    def offer(self) -> DeviceCapabilities:
        """Return the device's features and limits by WebGPU's names."""
        names = {"subgroup": "subgroups"}
        features = frozenset(names.get(name, name) for name in self.handle.features)
        words = {name: name.split("-") for name in self.handle.limits}
        limits = {
            first + "".join(word.capitalize() for word in rest): self.handle.limits[name]
            for name, (first, *rest) in words.items()
        }
        matrices = self.webgpu.subgroup_matrices(self.handle)
        return DeviceCapabilities(self.hardware, features, limits, matrices)

    def encoder(self, label: str) -> Any:
        """Make a GPUCommandEncoder for commands that this engine submits itself."""
        return unobserved(self.handle).create_command_encoder(label=label)

    def plain_encoder(self, label: str) -> Any:
        """Make a cheaper encoder, only for copies between buffers and `DispatchCommands`."""
        webgpu = self.webgpu
        return webgpu.Encoder(self.handle) if webgpu.RECORDING.is_available else self.encoder(label)

    def submit(self, commands: Any, before: Sequence[CommandBuffer] = ()) -> None:
        """Submit the commands of `encoder` or `plain_encoder`, behind others of `plain_encoder`."""
        if not isinstance(commands, CommandBuffer):
            self.queue.submit([commands])
            return
        with self.life:
            self.life.begin_submission()
            commands.submit(self.queue, before)

    def note_upload(self, size: int) -> None:
        """Count the initial contents of a buffer; submit if `MAX_UNSUBMITTED_BYTES` are waiting."""
        with self._counting:
            self._unsubmitted += max(size, MIN_COPY_COST_BYTES)
            many = self._unsubmitted >= MAX_UNSUBMITTED_BYTES
            if many:
                self._unsubmitted = 0
        if many:
            self.submit(self.plain_encoder("uploads").finish())

    def bind_group(
        self, layout: Any, resources: Sequence[Any], bindings: Sequence[int] | None = None
    ) -> Any:
        """Make a GPUBindGroup; the caller keeps the resources alive.

        Args:
            layout: The GPUBindGroupLayout.
            resources: The resources to bind.
            bindings: Their binding numbers; None for 0, 1, 2 and so on.
        """
        numbers = range(len(resources)) if bindings is None else bindings
        entries = [
            {"binding": number, "resource": resource}
            for number, resource in zip(numbers, resources, strict=True)
        ]
        return unobserved(self.handle).create_bind_group(layout=layout, entries=entries)

    def bind_places(
        self, layout: Any, places: Sequence[Binding], bindings: Sequence[int] | None = None
    ) -> Any:
        """Make a bind group of buffer ranges alone, cheaper than `bind_group`."""
        if not self.webgpu.RECORDING.is_available:
            return self.bind_group(layout, [place.entry for place in places], bindings)
        numbers = range(len(places)) if bindings is None else bindings
        parts = (
            (number, place.buffer, place.offset, place.size)
            for number, place in zip(numbers, places, strict=True)
        )
        return self.webgpu.BindGroup(self.handle, layout, parts)

    def check_size(self, size: int, what: str) -> None:
        """Raise a NotSupportedError if `size` exceeds the device's max-buffer-size."""
        if size > self.max_buffer_bytes:
            raise NotSupportedError(
                f"{what} needs {size} bytes; this device's max-buffer-size is"
                f" {self.max_buffer_bytes}"
            )

    def buffer(self, size: int, usage: int, label: str = "", mapped: bool = False) -> Any:
        """Make a buffer of `size` bytes, rounded up to a multiple of 4.

        Args:
            size: Bytes; at least 4 are allocated.
            usage: Flags of wgpu.BufferUsage.
            label: The buffer's label, also for messages.
            mapped: Whether to map it at creation.

        Raises:
            NotSupportedError: The size exceeds the device's max-buffer-size.
            OperationError: The device has no memory left.
        """
        size = max(4, -(-size // 4) * 4)
        self.check_size(size, label or "a buffer")
        with device_errors(f"allocating {size} bytes for {label or 'a buffer'}"):
            return self.handle.create_buffer(
                size=size, usage=usage, label=label, mapped_at_creation=mapped
            )


def _features(device: Any, hardware: bool, matrices: Sequence[SubgroupMatrix]) -> Features:
    limits = device.limits
    return Features(
        f16="shader-f16" in device.features,
        int64="shader-int64" in device.features,
        max_bindings=min(limits["max-storage-buffers-per-shader-stage"], 16),
        workgroup_bytes=limits["max-compute-workgroup-storage-size"],
        invocations=min(
            limits["max-compute-invocations-per-workgroup"],
            limits["max-compute-workgroup-size-x"],
        ),
        grid=limits["max-compute-workgroups-per-dimension"],
        kind="gpu" if hardware else "cpu",
        binding_bytes=limits["max-storage-buffer-binding-size"],
        f16_matrix=_largest_matrix(matrices, "f16", "f32"),
        i8_matrix=_largest_matrix(matrices, "i8", "i32"),
    )


def _largest_matrix(
    matrices: Sequence[SubgroupMatrix], factor: str, total: str
) -> MatrixShape | None:
    """Return the largest of the device's matrices of these component types, or None."""
    sizes = [(m, n, k) for left, result, m, n, k in matrices if (left, result) == (factor, total)]
    return MatrixShape(*max(sizes, key=math.prod)) if sizes else None
