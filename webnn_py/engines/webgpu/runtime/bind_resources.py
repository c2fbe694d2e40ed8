"""What users bind: buffers, parts of buffers, textures, host arrays; checked, then placed."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import wgpu

from webnn_py.core.errors import DataError
from webnn_py.core.messages import named, shown, type_name
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.engines.webgpu.runtime.byte_copy import copy_exactly
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.buffer_init import padded_bytes
from webnn_py.engines.webgpu.runtime.devices.command_tracking import check_usable
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.textures import conversion
from webnn_py.engines.webgpu.runtime.textures.parts import (
    is_texture,
    part_of,
    resource_of,
    texture_of,
)
from webnn_py.engines.webgpu.runtime.wgpu_native import fallback
from webnn_py.ir import Array, Descriptor, Value
from webnn_py.memory.overlap import (
    EVERYTHING,
    MemoryLocation,
    Region,
    Span,
    check_apart,
    region_of,
)

Record = Callable[[Any], None]
"""Records commands into a GPUCommandEncoder."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What crosses between the host and a device in runs that have their places in common.

    Attributes:
        only: Such runs differ in contents alone: nothing of the user's lies on the device.
        inputs: Buffers to be written before the commands run, and bytes of each.
        input_bytes: Of all of them.
        result_bytes: Of all that is read back.
    """

    only: bool
    inputs: Sequence[tuple[Any, int]]
    input_bytes: int
    result_bytes: int


@dataclass(slots=True)
class Dispatch:
    """One run, placed: what to record before and after the graph's own kernels.

    Attributes:
        places: Where each input and output lies.
        before: Uploads and texture conversions.
        after: Copies and texture conversions of outputs.
        uploads: Buffers to be written before the commands run, and their contents.
        downloads: Where host outputs lie when the commands have run, by their number.
        given: The user's buffers and textures, and what they are for.
        read: Where the user's inputs lie on the device.
        written: Where the user's outputs go on the device, by name.
        known: The `traffic`, once it was asked for.
    """

    places: dict[Value, Binding] = field(default_factory=dict)
    before: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)
    uploads: list[tuple[Any, Array]] = field(default_factory=list)
    downloads: dict[int, Binding] = field(default_factory=dict)
    given: list[tuple[Any, str]] = field(default_factory=list)
    read: list[Span] = field(default_factory=list)
    written: dict[str, MemoryLocation] = field(default_factory=dict)
    known: Traffic | None = None

    def take(self, resource: Any, what: str) -> None:
        """Use a resource of the user's."""
        check_usable(resource, what)
        self.given.append((resource, what))

    def check_usable(self) -> None:
        """Raise a DataError if the user's resources are not fit for a submission any more."""
        for resource, what in self.given:
            check_usable(resource, what)

    @property
    def traffic(self) -> Traffic:
        """What crosses between the host and the device."""
        if self.known is None:
            ours = {buffer for buffer, _ in self.uploads}
            ours |= {place.buffer for place in self.downloads.values()}
            recorded = self.before or self.after
            inputs = [(buffer, contents.nbytes) for buffer, contents in self.uploads]
            self.known = Traffic(
                not recorded and ours.issuperset(place.buffer for place in self.places.values()),
                inputs,
                sum(size for _, size in inputs),
                sum(place.size for place in self.downloads.values()),
            )
        return self.known


class ArrayPlaces:
    """Where everything lies in a graph's runs from arrays to arrays: always at the same places.

    Args:
        run: One of them.
    """

    def __init__(self, run: Dispatch) -> None:
        self._places, self._downloads = run.places, run.downloads
        self._traffic = run.traffic

    def run(self, inputs: Sequence[Array]) -> Dispatch:
        """Another one."""
        uploads = [
            (buffer, array if array.nbytes == size else padded_bytes(array, size))
            for (buffer, size), array in zip(self._traffic.inputs, inputs, strict=True)
        ]
        return Dispatch(
            self._places, uploads=uploads, downloads=self._downloads, known=self._traffic
        )


def is_buffer(value: object) -> bool:
    """A buffer or a binding of one."""
    if isinstance(value, wgpu.GPUBuffer):
        return True
    try:
        return isinstance(value, Mapping) and "buffer" in value
    except Exception:  # whatever its own methods raise
        return False


def is_device_resource(value: object) -> bool:
    """Anything that lies on a device."""
    return is_buffer(value) or is_texture(value)


def whole_of(value: Any) -> Region:
    """All of the buffer or texture that is given, or a part of which is."""
    if is_texture(value):
        with contextlib.suppress(DataError):
            return region_of(Span(texture_of(resource_of(value, "a texture"))))
        return EVERYTHING
    buffer = _buffer_of(value)
    whole = isinstance(buffer, wgpu.GPUBuffer)
    return region_of(Span(buffer, 0, buffer.size)) if whole else EVERYTHING


def check_device(gpu: Device, resource: Any, what: str) -> None:
    """Raise a DataError if a GPU object was made by another device."""
    if fallback.is_foreign(resource, gpu.handle):
        raise DataError(f"{what}: the {type(resource).__name__} belongs to another GPUDevice")


def buffer_binding(
    gpu: Device, value: Any, descriptor: Descriptor, exact: int, what: str
) -> Binding:
    """The part of a buffer that a tensor of `exact` bytes takes: whole words.

    Raises:
        DataError: Not a buffer of this device, too small, or at an offset that cannot be bound.
    """
    given = value if isinstance(value, Mapping) else {"buffer": value}
    unknown = [key for key in given if key not in ("buffer", "offset", "size")]
    if unknown:
        raise DataError(f"{what}: unknown keys {shown(unknown)} in the binding")
    buffer = given["buffer"]
    if not isinstance(buffer, wgpu.GPUBuffer):
        raise DataError(f"{what}: got {type_name(buffer)}, expected a GPUBuffer")
    check_device(gpu, buffer, what)
    offset = _bytes(given, "offset", 0, what)
    available = _bytes(given, "size", buffer.size - offset, what)
    size = -(-exact // 4) * 4
    if offset % 4 or available < exact or offset + max(available, size) > buffer.size:
        words = f" (and {size} to the buffer's end: whole words)" if size != exact else ""
        raise DataError(
            f"{what}: {max(available, 0)} bytes from offset {offset} of a buffer of {buffer.size},"
            f" expected at least {exact}{words} from a multiple of 4 for {descriptor}"
        )
    return Binding(buffer, offset, size)


def _bytes(given: Mapping[str, Any], key: str, default: int, what: str) -> int:
    value = given.get(key)
    if value is None:
        return default
    try:
        count = operator.index(value)
    except Exception:  # whatever its own methods raise
        count = -1
    if not 0 <= count < 2**64:
        raise DataError(f"{what}: {key} {shown(value)} of the binding, expected a number of bytes")
    return count


def check_usage(buffer: Any, usage: int, what: str, why: str) -> None:
    """Raise a DataError if a buffer was not made for this usage."""
    if not buffer.usage & usage:
        raise DataError(f"{what}: the buffer's usage lacks {why}")


def check_reach(gpu: Device, given: Binding, copy: str, what: str, why: str = "") -> None:
    """Raise a DataError if neither a copy nor a kernel can read or write a part of a buffer."""
    if given.buffer.usage & getattr(wgpu.BufferUsage, copy):
        return
    check_usage(given.buffer, STORAGE, what, f"STORAGE (or {copy}{why})")
    if given.offset % gpu.offset_alignment:
        raise DataError(
            f"{what}: offset {given.offset} of a buffer, expected a multiple of"
            f" {gpu.offset_alignment}, or one with the usage {copy}{why}"
        )


def place(
    loaded: LoadedGraph,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    own: Callable[[Value], Binding],
) -> Dispatch:
    """Check what lies on the device and work out what to record.

    Args:
        loaded: The graph on the device.
        inputs: For each a Binding, a resource of the device, or an array.
        outputs: The same; arrays and None are put into `own` buffers, to be read back.
        own: A buffer for a value that the caller has none for.

    Raises:
        DataError: A resource does not fit; nothing was recorded.
    """
    run = Dispatch()
    gpu = loaded.gpu
    for value, resource in zip(loaded.graph.inputs, inputs, strict=True):
        _place_input(gpu, run, value, resource, named("input", value.name), own)
    taken = {place.buffer for place in run.places.values()}
    times = Counter(value for _, value in loaded.graph.outputs)
    for number, ((name, value), resource) in enumerate(
        zip(loaded.graph.outputs, outputs, strict=True)
    ):
        if times[value] > 1 and value not in run.places:
            run.places[value] = own(value)
        if isinstance(resource, np.ndarray) or resource is None:
            run.downloads[number] = _computed(run, value, own)
        else:
            _place_output(gpu, run, name, value, resource, own, taken)
    check_apart(run.written)
    return run


def place_apart(
    loaded: LoadedGraph,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    own: Callable[[Value], Binding],
) -> Dispatch:
    """As `place`, with inputs copied into `own` buffers before, and all outputs out of them after.

    Raises:
        DataError: A resource does not fit; nothing was recorded.
    """
    gpu, run = loaded.gpu, Dispatch()
    for value, resource in zip(loaded.graph.inputs, inputs, strict=True):
        copy_input(gpu, run, value, resource, own)
    for _, value in loaded.graph.outputs:
        _computed(run, value, own)
    for (name, value), resource in zip(loaded.graph.outputs, outputs, strict=True):
        if resource is not None:
            _place_output(gpu, run, name, value, resource, own, set())
    check_apart(run.written)
    return run


def _take_texture(gpu: Device, run: Dispatch, given: Any, what: str) -> Span:
    """Use a part of a texture, all of which counts as read or written by others."""
    resource = resource_of(given, what)
    check_device(gpu, resource, what)
    run.take(resource, what)
    return Span(texture_of(resource), box=part_of(given, what).box)


def _public(value: Value) -> Descriptor:
    return Descriptor(value.data_type, value.shape)


def _place_input(
    gpu: Device,
    run: Dispatch,
    value: Value,
    resource: Any,
    what: str,
    own: Callable[[Value], Binding],
) -> None:
    if isinstance(resource, Binding):
        run.places[value] = resource
    elif is_texture(resource):
        run.read.append(_take_texture(gpu, run, resource, what))
        run.places[value] = target = own(value)
        run.before.append(conversion.load(gpu, resource, target.entry, value, what))
    elif is_buffer(resource):
        given = buffer_binding(gpu, resource, _public(value), value.byte_length, what)
        run.take(given.buffer, what)
        run.read.append(given.span)
        if given.buffer.usage & STORAGE and given.offset % gpu.offset_alignment == 0:
            run.places[value] = given
            return
        check_reach(gpu, given, "COPY_SRC", what)
        run.places[value] = target = own(value)
        run.before.append(copying(gpu, given, target, target.size))
    else:
        contents = padded_bytes(resource, buffer_bytes(value))
        run.places[value] = target = own(value)
        run.uploads.append((target.buffer, contents))


def _place_output(
    gpu: Device,
    run: Dispatch,
    name: str,
    value: Value,
    resource: Any,
    own: Callable[[Value], Binding],
    taken: set[Any],
) -> None:
    what = named("output", name)
    if isinstance(resource, Binding):
        resource = resource.entry
    if is_texture(resource):
        run.written[name] = _take_texture(gpu, run, resource, what)
        source = _computed(run, value, own)
        run.after.append(conversion.store(gpu, resource, source.entry, value, what))
    else:
        exact = value.byte_length
        given = buffer_binding(gpu, resource, _public(value), exact, what)
        run.take(given.buffer, what)
        run.written[name] = given.span
        direct = given.buffer.usage & STORAGE and given.offset % gpu.offset_alignment == 0
        if direct and value not in run.places and given.buffer not in taken:
            run.places[value] = given
            taken.add(given.buffer)
            return
        check_reach(gpu, given, "COPY_DST", what)
        if exact % 4:
            why = ", to keep the bytes behind the result in its last word"
            check_reach(gpu, given, "COPY_SRC", what, why)
        run.after.append(copying(gpu, _computed(run, value, own), given, exact))


def _computed(run: Dispatch, value: Value, own: Callable[[Value], Binding]) -> Binding:
    """Where an output lies before it is copied to the user."""
    if value not in run.places:
        run.places[value] = own(value)
    return run.places[value]


def copy_input(
    gpu: Device,
    run: Dispatch,
    value: Value,
    resource: Any,
    own: Callable[[Value], Binding],
) -> None:
    """Place an input in a buffer of its own, whatever it is given as."""
    what = named("input", value.name)
    _place_input(gpu, run, value, resource, what, own)
    place = run.places[value]
    if isinstance(resource, Binding) or (
        is_buffer(resource) and place.buffer is _buffer_of(resource)
    ):
        run.take(place.buffer, what)
        run.places[value] = target = own(value)
        run.before.append(copying(gpu, place, target, target.size))


def _buffer_of(resource: Any) -> Any:
    return resource["buffer"] if isinstance(resource, Mapping) else resource


def copying(gpu: Device, source: Binding, target: Binding, size: int) -> Record:
    """What records the copy of a tensor; of whole words, or of just `size` bytes."""
    with device_errors("copying a tensor"):
        copy = copy_exactly(gpu, source, target, size)

    def record(encoder: Any) -> None:
        with device_errors("copying a tensor"):
            copy(encoder)

    return record


def fresh_buffers(gpu: Device) -> Callable[[Value], Binding]:
    """New buffers, for recordings that may run at any time."""

    def make(value: Value) -> Binding:
        size = buffer_bytes(value)
        return Binding(gpu.buffer(size, STORAGE | COPIES, "private"), 0, size)

    return make
