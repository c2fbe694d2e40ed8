"""The wgpu device: adapters, features, pipelines, errors in our own words."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import _api, _helpers

from webnn_py.core import forks
from webnn_py.core.errors import (
    ContextLostError,
    InvalidStateError,
    MLError,
    NotSupportedError,
    OperationError,
    ValidationError,
)
from webnn_py.core.messages import shown
from webnn_py.engines.webgpu.compiler.storage import Features
from webnn_py.engines.webgpu.runtime.commands import observe, unobserved
from webnn_py.engines.webgpu.runtime.slots import Slots
from webnn_py.engines.webgpu.runtime.staging import Staging

WANTED_FEATURES = ("shader-f16", "shader-int64", "timestamp-query", "subgroup")
RECENT_PIPELINES = 256
"""Pipelines kept though no graph has them: those of graphs built again, of texture formats."""

MAX_IN_FLIGHT = 16
"""Awaited runs not yet read back; others begin later, so that memory stays bounded."""

_OPENING = threading.Lock()
"""Drivers, NVIDIA's among them, crash when several threads look for adapters at once."""
_FOUND: list[Any] = []


_left_behind = False
"""Whether this is a child process, and its parent had loaded the drivers."""


def check_process() -> None:
    """Raise an InvalidStateError in a child process whose parent had loaded the drivers."""
    if _left_behind:
        raise InvalidStateError(
            "the GPU's driver was loaded before os.fork(), and does not work in the child process;"
            " make GPU contexts in the child only, or start processes by another method"
            " (multiprocessing: 'spawn')"
        )


def _leave_behind() -> None:
    """After a fork: drivers hang or crash when they are called, so that nothing is given back."""
    global _left_behind
    if _helpers._the_instance is None:
        return
    _left_behind = True
    for member in vars(_api).values():
        if isinstance(member, type) and hasattr(member, "_release"):
            member._release = _keep
    _end_without_drivers()


def _keep(thing: Any) -> None:
    """What is done in place of releasing a GPU object."""


def _end_without_drivers() -> None:
    """End this process, when it does, before drivers wait for threads that it does not have.

    They registered that with the C library, which calls what was registered last first.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # glibc has it, others do not
        library.on_exit(library._exit, None)
        library.__cxa_atexit(library.fflush, None, None)


forks.in_child(_leave_behind)


@contextlib.contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn what wgpu raises into an OperationError that says what was being done.

    Raises:
        ContextLostError: The device is lost.
    """
    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        if isinstance(error, MLError):
            raise
        raise in_our_words(error, what) from error


def in_our_words(error: BaseException, what: str) -> MLError:
    """An error of wgpu as one of ours that says what was being done."""
    if "device is lost" in str(error):
        return ContextLostError(f"{what}: the GPUDevice is lost")
    return OperationError(f"{what}: the device refused: {error}")


def all_adapters() -> list[Any]:
    """The adapters that wgpu finds, looked for until there are some.

    They are kept: wgpu ends the process when it releases those of OpenGL on one thread while
    another uses theirs.
    """
    check_process()
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ["XDG_RUNTIME_DIR"] = os.environ.get("TMPDIR", "/tmp")
    with _OPENING:
        if not _FOUND:
            _FOUND.extend(wgpu.gpu.enumerate_adapters_sync())
        return list(_FOUND)


def find_adapter(power_preference: str = "default", hardware: bool = False) -> Any:
    """The adapter to use, or None; Vulkan, Metal or D3D12 before OpenGL, hardware before software.

    The variable WEBNN_ADAPTER, part of an adapter's name, overrides the choice.
    """
    adapters = all_adapters()
    wanted = os.environ.get("WEBNN_ADAPTER", "").lower()
    if wanted:
        adapters = [a for a in adapters if wanted in a.summary.lower()]
    usable = [a for a in adapters if a.info["backend_type"] != "OpenGL"]
    if hardware:
        usable = [a for a in usable if is_hardware(a)]
    order = ["DiscreteGPU", "IntegratedGPU"]
    if power_preference == "low-power":
        order.reverse()

    def rank(adapter: Any) -> int:
        kind = adapter.info["adapter_type"]
        return order.index(kind) if kind in order else len(order) + (kind == "CPU")

    return min(usable, key=rank, default=None)


def is_hardware(adapter: Any) -> bool:
    """Whether an adapter is a GPU rather than a program that plays one."""
    return bool(adapter.info["adapter_type"] != "CPU")


class Device:
    """A wgpu device and what is cached on it.

    Args:
        device: The user's GPUDevice, or None to request one from the best adapter.
        power_preference: Which GPU to prefer.
        hardware: Accept no software adapter.

    Raises:
        NotSupportedError: There is no adapter.
        ValidationError: `device` is no GPUDevice.
    """

    def __init__(
        self, device: Any = None, power_preference: str = "default", hardware: bool = False
    ) -> None:
        check_process()
        if device is None:
            device = _request(power_preference, hardware)
        if not isinstance(device, wgpu.GPUDevice):
            raise ValidationError(f"device: got {shown(device)}, expected a wgpu.GPUDevice")
        observe(device)
        self.handle: Any = device
        self.queue: Any = device.queue
        self.hardware = is_hardware(device.adapter)
        self.features = _features(device, self.hardware)
        self.max_buffer_bytes: int = device.limits["max-buffer-size"]
        self.offset_alignment: int = device.limits["min-storage-buffer-offset-alignment"]
        self.submit_lock = threading.Lock()
        self.slots = Slots(MAX_IN_FLIGHT)
        self.staging = Staging(self)
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="webnn-readback")
        forks.finalize(self, functools.partial(self.reader.shutdown, wait=False))
        self._pipelines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._recent: deque[Any] = deque(maxlen=RECENT_PIPELINES)
        self._lock = threading.Lock()

    def pipeline(self, name: str, code: str) -> Any:
        """The compute pipeline of a kernel, made once for the same code.

        It is kept as long as a graph has it, and for a while after.
        """
        with self._lock:
            found = self._pipelines.get(code)
        if found is not None:
            return found
        with device_errors(f"compiling the kernel {name}"):
            module = self.handle.create_shader_module(code=code, label=name)
            pipeline = self.handle.create_compute_pipeline(
                label=name, layout="auto", compute={"module": module, "entry_point": "main"}
            )
        with self._lock:
            self._recent.append(pipeline)
            return self._pipelines.setdefault(code, pipeline)

    def encoder(self, label: str) -> Any:
        """A command encoder for commands that we submit ourselves."""
        return unobserved(self.handle).create_command_encoder(label=label)

    def bind_group(self, layout: Any, resources: Sequence[Any]) -> Any:
        """A bind group of resources in order, which are kept alive by others."""
        entries = [{"binding": i, "resource": given} for i, given in enumerate(resources)]
        return unobserved(self.handle).create_bind_group(layout=layout, entries=entries)

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


def _request(power_preference: str, hardware: bool) -> Any:
    adapter = find_adapter(power_preference, hardware)
    if adapter is None:
        kind = "hardware " if hardware else ""
        raise NotSupportedError(
            f"no {kind}GPU adapter: install a Vulkan driver (Debian without a GPU:"
            " mesa-vulkan-drivers), or use device_type='cpu'"
        )
    features = [name for name in WANTED_FEATURES if name in adapter.features]
    with _OPENING, device_errors(f"requesting a device from {adapter.summary}"):
        return adapter.request_device_sync(
            required_features=features, required_limits=_known_limits(adapter.limits)
        )


def _known_limits(limits: Any) -> dict[str, int]:
    """The adapter's limits without those that wgpu reports as unlimited or unknown."""
    names = (
        "max-buffer-size",
        "max-storage-buffer-binding-size",
        "max-storage-buffers-per-shader-stage",
        "max-compute-workgroup-storage-size",
        "max-compute-invocations-per-workgroup",
        "max-compute-workgroup-size-x",
        "max-compute-workgroup-size-y",
        "max-compute-workgroups-per-dimension",
    )
    return {name: limits[name] for name in names}


def _features(device: Any, hardware: bool) -> Features:
    limits = device.limits
    return Features(
        f16="shader-f16" in device.features,
        int64="shader-int64" in device.features,
        max_bindings=min(limits["max-storage-buffers-per-shader-stage"], 16),
        workgroup_bytes=limits["max-compute-workgroup-storage-size"],
        invocations=min(limits["max-compute-invocations-per-workgroup"], 256),
        grid=limits["max-compute-workgroups-per-dimension"],
        kind="gpu" if hardware else "cpu",
        binding_bytes=limits["max-storage-buffer-binding-size"],
    )
