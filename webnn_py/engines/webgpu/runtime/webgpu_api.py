"""The implementations of WebGPU: their interface, and the one of an object.

wgpu-native (through wgpu-py) and Dawn (through wgpudawn) have the same public API in Python. What
the runtime needs beyond it, because public calls are too slow or missing, is `WebGPU`. A GPU
object's class tells its implementation; nothing is chosen globally, so both serve in one process.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, cast

from webnn_py.core.errors import NotSupportedError

# The classes of GPU objects

LIBRARIES = {"webgpu": "wgpu", "dawn": "wgpudawn"}
"""The library with the public API, by the name of the engine that `create_context_sync` takes."""
EXTRAS = {"dawn": "dawn"}
"""The extra of this package that installs an engine's library; wgpu is always installed."""
_FOLDERS = {"wgpu": "wgpu_native", "wgpudawn": "dawn"}
_ROOM = __name__.rpartition(".")[0]


def _package_of(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _find_names(kind: type) -> frozenset[str]:
    return frozenset(base.__name__ for base in kind.__mro__ if _package_of(base) in _FOLDERS)


names_of: Callable[[type], frozenset[str]] = functools.lru_cache(4096)(_find_names)
"""Return the names of WebGPU's classes that a class is derived from; empty for other classes."""


def is_a(value: object, *names: str) -> bool:
    """Return whether a value is an object of one of these classes of WebGPU, of either library."""
    return not names_of(type(value)).isdisjoint(names)


_LOSS = re.compile(r"\bdevice\b[^.\n]*\bis lost", re.IGNORECASE)


def is_loss(error: BaseException) -> bool:
    """Return whether an error says that the device is lost, in the words of either library."""
    return _LOSS.search(str(error)) is not None


# Capabilities


@dataclass(eq=False)
class Capability:
    """One use of a library's private names.

    Attributes:
        name: A short name.
        without: The consequence of doing without it.
        interface: The C interface it needs, by name: the type of a function or callback, the
            members of a struct, or "int" for a constant.
        attributes: The Python attributes it needs. Each maps to a method of the library
            ("Class.method") or a function that uses the attribute itself, which proves it exists.
        missing: Why the capability is unavailable; None if it is available.
        is_available: Whether the capability can be used: whether nothing is missing.
    """

    name: str
    without: str
    interface: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    is_available: bool = field(init=False, default=True)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "missing":  # an attribute, as a property would take longer than most uses of it
            super().__setattr__("is_available", value is None)

    @property
    def passes_handles(self) -> bool:
        """Return whether the capability passes handles to C functions."""
        return bool(self.interface)


# The interface

Dispatch = tuple[Any, Any, tuple[int, ...], int, int, int, int]
"""Pipeline, bind group, dynamic offsets, workgroups (x, y, z), and repetitions in a row."""
SubgroupMatrix = tuple[str, str, int, int, int]
"""Component types of the factors and of the result, then M, N and K of one matrix product."""


class BufferMapping(Protocol):
    """The mapping of a buffer, which is polled or awaited."""

    def look(self) -> bool:
        """Poll, and return whether the mapping has ended."""

    def look_for(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> bool:
        """Poll without pauses for at most `seconds`; call `meanwhile` once after the first poll."""

    def wait(self, expected: float = 0.0) -> None:
        """Wait until the mapping has ended.

        Args:
            expected: Expected seconds; 0 if unknown.

        Raises:
            ContextLostError: The device was lost meanwhile.
            OperationError: The buffer cannot be mapped.
        """


class DispatchCommands(Protocol):
    """The dispatches of a graph over fixed bindings, which can be recorded many times."""

    def __len__(self) -> int: ...

    @property
    def pieces(self) -> Sequence[Sequence[DispatchCommands]]:
        """Return the same dispatches in chunks and steps, as of `split_into_chunks`."""

    def encode(self, compute: Any, repeat: int = 1) -> None:
        """Record all dispatches into an open compute pass, `repeat` times in a row."""


class WebGPU(Protocol):
    """An implementation of WebGPU: a module with these names.

    Attributes:
        NAME: The name of its engine.
        LIBRARY: The module with the public API.
        ENCODES_ON_SUBMIT: Whether the driver's commands are made when a command buffer is
            submitted, rather than when it is finished.
        RECORDING: Commands are recorded by `Encoder`, `BindGroup` and `DispatchCommands`.
        WAITING: Mappings are polled, for writing too, and mapped memory is accessed in place.
        CHECKING: `touch` knows every buffer, and `check_alive` costs little.
        OBSERVING: `specialize` works.
        FREEING: Command buffers that are never submitted are freed.
    """

    NAME: str
    LIBRARY: Any
    ENCODES_ON_SUBMIT: bool
    RECORDING: Capability
    WAITING: Capability
    CHECKING: Capability
    OBSERVING: Capability
    FREEING: Capability

    @property
    def WANTED_FEATURES(self) -> Sequence[str]:  # noqa: N802
        """Return the features to request from an adapter that lists them."""

    def DispatchCommands(self, dispatches: Sequence[Dispatch], /) -> DispatchCommands:  # noqa: N802
        """Prepare dispatches for recording."""

    def BindGroup(  # noqa: N802
        self, device: Any, layout: Any, parts: Iterable[tuple[int, Any, int, int]], /
    ) -> Any:
        """Make a bind group of numbers, buffers, offsets and sizes (only with `RECORDING`)."""

    def Encoder(self, device: Any, /) -> Any:  # noqa: N802
        """Make an encoder for copies and `DispatchCommands` (only with `RECORDING`)."""

    def enumerate_adapters(self) -> list[Any]:
        """Return all adapters."""

    def request_device(self, adapter: Any, features: list[str], limits: dict[str, int], /) -> Any:
        """Request a device."""

    def has_clock(self, device: Any, /) -> bool:
        """Return whether a device has timestamps that are fine enough to time kernels."""

    def subgroup_matrices(self, device: Any, /) -> tuple[SubgroupMatrix, ...]:
        """Return the matrix products that a device computes by subgroups; empty if it has none."""

    def prepare(self, device: Any, /) -> None:
        """Check the capabilities against a device, before its first use."""

    def check_command_buffer_layout(self, device: Any, /) -> None:
        """Check `FREEING` against a device that is not lost."""

    def check_process(self) -> None:
        """Raise an InvalidStateError in a child process whose parent had loaded the drivers."""

    def mapping(self, device: Any, buffer: Any, writing: bool = False, /) -> BufferMapping:
        """Begin to map a buffer for reading, or for writing (only with `WAITING`)."""

    def read_mapped(self, buffer: Any, /) -> Any:
        """Return the memory of a mapped buffer, valid until `unmap`."""

    def read_small(self, buffer: Any, target: Any, /) -> bool:
        """Copy from a mapped buffer if the target is small; return whether the copy was made."""

    def write_mapped(self, buffer: Any, contents: Any, /) -> None:
        """Copy contiguous memory into a mapped buffer without releasing the GIL."""

    def write_buffer(self, queue: Any, buffer: Any, offset: int, contents: Any, /) -> None:
        """Write contiguous memory into a buffer through a queue, before its next submission."""

    def unmap(self, buffer: Any, /) -> None:
        """Unmap a buffer."""

    def is_lost(self, buffer: Any, /) -> bool:
        """Return whether the driver has lost the device of a buffer; False if that is unknown."""

    def check_alive(self, device: Any, buffer: Any, /) -> None:
        """Raise a ContextLostError if a device was lost or destroyed; `buffer` is one of it."""

    def is_released(self, resource: Any, /) -> bool:
        """Return whether a GPU object was released explicitly, so that no call may use it."""

    def touch(self, resource: Any, /) -> None:
        """Raise a GPUError if an unmapped buffer or texture is destroyed, or its device lost."""

    def wgsl(self, code: str, /) -> str:
        """Return WGSL as this compiler takes it."""

    def module_of_ending_loops(self, device: Any, code: str, label: str, /) -> Any:
        """Return a shader module of WGSL whose loops are known to end."""

    def free_when_dropped(self, commands: Any, /) -> None:
        """Have a command buffer freed with its last reference even if it was never submitted."""

    def timestamp_period(self, queue: Any, /) -> float:
        """Return the nanoseconds of one timestamp tick."""

    def specialize(self, thing: Any, kind: type, /) -> None:
        """Change the class of a GPU object to a subclass, in place."""

    def releasing_unless(self, base: Any, lost: Callable[[Any], bool], /) -> dict[str, Any]:
        """Return methods of a subclass of GPUDevice that release no lost device."""


@functools.cache
def _load(library: str) -> WebGPU:
    try:
        package = importlib.import_module(f"{_ROOM}.{_FOLDERS[library]}")
    except (ImportError, AttributeError) as error:
        raise NotSupportedError(
            f"this version of {library} has other private names than those that were tested:"
            f" {error}"
        ) from error
    return cast(WebGPU, package.IMPLEMENTATION)


def _find_implementation(kind: type) -> WebGPU:
    return _load(next(name for name in map(_package_of, kind.__mro__) if name in _FOLDERS))


implementation_of_class: Callable[[type], WebGPU] = functools.lru_cache(1024)(_find_implementation)
"""Return the implementation of a class of GPU objects, by its module."""


def implementation_of(thing: Any) -> WebGPU:
    """Return the implementation of a GPU object."""
    return implementation_of_class(type(thing))


def implementation_named(engine: str) -> WebGPU:
    """Return the implementation that an engine's library has.

    That of "webgpu" is Dawn after `wgpudawn.install_as_wgpu()`.

    Raises:
        NotSupportedError: The library is not installed.
    """
    name = LIBRARIES[engine]
    try:
        library: ModuleType = importlib.import_module(name)
    except ImportError as error:
        hint = f': pip install "webnn-py[{EXTRAS[engine]}]"' if engine in EXTRAS else ""
        raise NotSupportedError(
            f"engine {engine!r} needs the package {name}, which cannot be imported ({error}){hint}"
        ) from error
    return implementation_of_class(library.GPUDevice)
