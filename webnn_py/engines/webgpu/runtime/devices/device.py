"""The wgpu device and what belongs to it: queue, features, memory, pipelines."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import wgpu

from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.core.lru_owners import LastUsed
from webnn_py.core.messages import shown
from webnn_py.core.workers import Workers
from webnn_py.engines.webgpu.program.needs import Offer
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.engines.webgpu.runtime.devices.adapters import is_hardware, request_device
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.command_tracking import let_go, observe, unobserved
from webnn_py.engines.webgpu.runtime.devices.device_lifetime import life_of
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache
from webnn_py.engines.webgpu.runtime.devices.run_policy import RunPolicy
from webnn_py.engines.webgpu.runtime.devices.semaphore import NonBlockingSemaphore
from webnn_py.engines.webgpu.runtime.devices.staging import Staging, Uploads
from webnn_py.engines.webgpu.runtime.devices.tile_cache import known_tiles
from webnn_py.engines.webgpu.runtime.devices.weights import Weights
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import RECORDING
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import BindGroup, CommandBuffer, Encoder
from webnn_py.engines.webgpu.runtime.wgpu_native.native import check_process

STORAGE = wgpu.BufferUsage.STORAGE
COPIES = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
DEFAULT_POLICY = RunPolicy()

MOST_UNSUBMITTED = 16 << 20
"""Bytes of contents that new buffers were made with, which wgpu-native keeps a copy of until
something is submitted."""
LEAST_COPY = 1 << 16
"""Bytes that the smallest of these copies counts for: each is a buffer."""


class Device:
    """A wgpu device and what is cached on it.

    Args:
        device: The user's GPUDevice, or None to request one from the best adapter.
        power_preference: Which GPU to prefer.
        hardware: Accept no software adapter.
        policy: Thresholds of its runs.

    Raises:
        NotSupportedError: There is no adapter.
        ValidationError: `device` is no GPUDevice.
        ContextLostError: It is lost, as by its `destroy`.
    """

    def __init__(
        self,
        device: Any = None,
        power_preference: str = "default",
        hardware: bool = False,
        policy: RunPolicy = DEFAULT_POLICY,
    ) -> None:
        check_process()
        if device is None:
            device = request_device(power_preference, hardware)
            weakref.finalize(self, let_go, device).atexit = False
        if not isinstance(device, wgpu.GPUDevice):
            raise ValidationError(f"device: got {shown(device)}, expected a wgpu.GPUDevice")
        native.check_handles(device)
        observe(device)
        self.policy = policy
        self.handle: Any = device
        self.queue: Any = device.queue
        self.life = life_of(device)
        self.life.check()
        native.check_command_buffer_layout(device)
        self.hardware = is_hardware(device.adapter)
        features = _features(device, self.hardware)
        self.features = replace(features, tiles=known_tiles(device.adapter, features))
        self.max_buffer_bytes: int = device.limits["max-buffer-size"]
        self.offset_alignment: int = device.limits["min-storage-buffer-offset-alignment"]
        self.submit_lock = threading.Lock()
        self._unsubmitted = 0
        self._counting = threading.Lock()
        self.in_flight = NonBlockingSemaphore(policy.max_runs_in_flight)
        self.owes_turn = False  # to other tasks, whose thread has just computed a run
        self.awake = 0.0  # seconds of the kernel that wakes it, as fast as that was seen
        self.staging = Staging(device, self.life)
        self.uploads = Uploads(device, self.life)
        self.weights = Weights()
        self.recorded_ahead = LastUsed(policy.max_prerecorded_graphs)
        self.reader = Workers("webnn-readback")
        self.recorder = Workers("webnn-recording")
        for threads in (self.reader, self.recorder):
            weakref.finalize(self, threads.finish).atexit = False
        self.pipelines = PipelineCache(device)

    @property
    def offer(self) -> Offer:
        """What the device has, by WebGPU's names."""
        names = {"subgroup": "subgroups"}
        features = frozenset(names.get(name, name) for name in self.handle.features)
        words = {name: name.split("-") for name in self.handle.limits}
        limits = {
            first + "".join(word.capitalize() for word in rest): self.handle.limits[name]
            for name, (first, *rest) in words.items()
        }
        return Offer(self.hardware, features, limits)

    def encoder(self, label: str) -> Any:
        """A command encoder for commands that we submit ourselves."""
        return unobserved(self.handle).create_command_encoder(label=label)

    def plain_encoder(self, label: str) -> Any:
        """As `encoder`, for copies between buffers and `DispatchCommands` alone: cheaper."""
        return Encoder(self.handle) if RECORDING.missing is None else self.encoder(label)

    def submit(self, commands: Any) -> None:
        """Submit what an encoder of ours has finished."""
        if not isinstance(commands, CommandBuffer):
            self.queue.submit([commands])
            return
        with self.life:
            self.life.begin_submission()
            commands.submit(self.queue)

    def uploaded(self, size: int) -> None:
        """Told of a buffer that was made with contents; submits nothing, but where copies wait."""
        with self._counting:
            self._unsubmitted += max(size, LEAST_COPY)
            many = self._unsubmitted >= MOST_UNSUBMITTED
            if many:
                self._unsubmitted = 0
        if many:
            self.submit(self.plain_encoder("uploads").finish())

    def bind_group(
        self, layout: Any, resources: Sequence[Any], bindings: Sequence[int] | None = None
    ) -> Any:
        """A bind group of resources, which are kept alive by others.

        Args:
            layout: Its layout.
            resources: What is bound.
            bindings: Their numbers, if they are not 0, 1, 2 and so on.
        """
        numbers = range(len(resources)) if bindings is None else bindings
        entries = [
            {"binding": number, "resource": given}
            for number, given in zip(numbers, resources, strict=True)
        ]
        return unobserved(self.handle).create_bind_group(layout=layout, entries=entries)

    def bind_places(
        self, layout: Any, places: Sequence[Binding], bindings: Sequence[int] | None = None
    ) -> Any:
        """As `bind_group`, of places in buffers alone: cheaper."""
        if RECORDING.missing is not None:
            return self.bind_group(layout, [place.entry for place in places], bindings)
        numbers = range(len(places)) if bindings is None else bindings
        parts = (
            (number, place.buffer, place.offset, place.size)
            for number, place in zip(numbers, places, strict=True)
        )
        return BindGroup(self.handle, layout, parts)

    def check_size(self, size: int, what: str) -> None:
        """Raise a NotSupportedError if no buffer of this device can be so large."""
        if size > self.max_buffer_bytes:
            raise NotSupportedError(
                f"{what} needs {size} bytes; this device's max-buffer-size is"
                f" {self.max_buffer_bytes}"
            )

    def buffer(self, size: int, usage: int, label: str = "", mapped: bool = False) -> Any:
        """A buffer of at least 4 bytes, a multiple of 4."""
        size = max(4, -(-size // 4) * 4)
        self.check_size(size, label or "a buffer")
        with device_errors(f"allocating {size} bytes for {label or 'a buffer'}"):
            return self.handle.create_buffer(
                size=size, usage=usage, label=label, mapped_at_creation=mapped
            )


def _features(device: Any, hardware: bool) -> Features:
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
    )
