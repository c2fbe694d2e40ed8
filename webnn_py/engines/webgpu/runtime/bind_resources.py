"""Check the resources that users bind (buffers, textures, host arrays) and place each in a run."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import wgpu

from webnn_py.core.errors import DataError
from webnn_py.core.messages import named, shown, type_name
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.engines.webgpu.runtime.byte_copy import copy_exactly
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph, PassEncoder
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.buffer_init import padded_bytes
from webnn_py.engines.webgpu.runtime.devices.command_tracking import check_usable
from webnn_py.engines.webgpu.runtime.devices.device import COPIES, STORAGE, Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.fallback import check_library, device_of, is_foreign
from webnn_py.engines.webgpu.runtime.textures import conversion
from webnn_py.engines.webgpu.runtime.textures.parts import (
    is_texture,
    part_of,
    resource_of,
    texture_of,
)
from webnn_py.engines.webgpu.runtime.webgpu_api import is_a
from webnn_py.ir import Array, Descriptor, Value
from webnn_py.memory.overlap import (
    EVERYTHING,
    MemoryLocation,
    Region,
    Span,
    check_disjoint,
    region_of,
)

Record = Callable[[Any], None]
"""A function that records commands into a GPUCommandEncoder."""


class Kernels(Protocol):
    """A graph or a program on a device."""

    def encode(
        self, compute: Any, places: Mapping[Value, Binding], name: Hashable = None, /
    ) -> None:
        """Record its kernels for these bindings into an open compute pass."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Host-device transfers of runs with the same bindings.

    Attributes:
        only: Whether such runs differ only in array contents: no resource of the user is bound.
        inputs: Buffers to write before the commands run, and the bytes of each.
        input_bytes: Total bytes of the inputs.
        result_bytes: Total bytes read back.
    """

    only: bool
    inputs: Sequence[tuple[Any, int]]
    input_bytes: int
    result_bytes: int


@dataclass(slots=True)
class BoundRun:
    """One run with its bindings, and the commands to record before and after its kernels.

    Whoever runs a graph or a program checks and binds its arguments by `place` (`place_arguments`
    of a program). The modes differ in where the commands go: into the context's batch or the user's
    encoder at once (`record`), into an awaited run's own command buffers step by step, or into
    slices.

    Attributes:
        places: The binding of each input and output.
        before: Copies and texture conversions of inputs.
        after: Copies and texture conversions of outputs.
        uploads: Buffers to write before the commands run, and their contents.
        downloads: Bindings of outputs to read back, by output number.
        given: The user's buffers and textures, each with its role for messages.
        read: Memory ranges of the user's input resources.
        written: Memory ranges of the user's output resources, by name.
    """

    places: dict[Value, Binding] = field(default_factory=dict)
    before: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)
    uploads: list[tuple[Any, Array]] = field(default_factory=list)
    downloads: dict[int, Binding] = field(default_factory=dict)
    given: list[tuple[Any, str]] = field(default_factory=list)
    read: list[Span] = field(default_factory=list)
    written: dict[str, MemoryLocation] = field(default_factory=dict)

    def take(self, resource: Any, what: str) -> None:
        """Check a resource of the user and add it to the run."""
        check_usable(resource, what)
        self.given.append((resource, what))

    def check_usable(self) -> None:
        """Raise a DataError if a resource of the user became unusable for a submission."""
        for resource, what in self.given:
            check_usable(resource, what)

    def record(self, kernels: Kernels, target: PassEncoder, name: Hashable = None) -> None:
        """Record the whole run.

        Args:
            kernels: The graph or program.
            target: The encoder.
            name: A name under which the graph's `repeat` finds the same commands.
        """
        self.begin(target)
        kernels.encode(target.compute_pass(), self.places, name)
        self.end(target)

    def begin(self, target: PassEncoder) -> None:
        """Record what comes before the kernels."""
        for record in self.before:
            record(target.encoder())

    def end(self, target: PassEncoder) -> None:
        """Record what comes after the kernels."""
        for record in self.after:
            record(target.encoder())

    def record_uploads(self, gpu: Device) -> None:
        """Have the uploads recorded with the commands, which can then be submitted at any time."""
        uploads, self.uploads = self.uploads, []
        self.before = [*(_upload_recorder(gpu, *upload) for upload in uploads), *self.before]

    def resources(self) -> Iterator[Any]:
        """Yield the buffers and textures that the commands use, those of tensors included."""
        for place in self.places.values():
            yield place.buffer
        for resource, _ in self.given:
            yield resource
        for written in self.written.values():
            if isinstance(written, Span):
                yield written.owner

    @property
    def binds_directly(self) -> bool:
        """Return whether kernels access the user's buffers themselves, and there is no copy."""
        copies = self.before or self.after or self.uploads or self.downloads
        return not copies and len(self.given) == len(self.places)

    @property
    def traffic(self) -> Traffic:
        """Return the host-device transfers."""
        ours = {buffer for buffer, _ in self.uploads}
        ours |= {place.buffer for place in self.downloads.values()}
        recorded = self.before or self.after
        inputs = [(buffer, contents.nbytes) for buffer, contents in self.uploads]
        return Traffic(
            not recorded and ours.issuperset(place.buffer for place in self.places.values()),
            inputs,
            sum(size for _, size in inputs),
            sum(place.size for place in self.downloads.values()),
        )


def is_buffer(value: object) -> bool:
    """Return whether a value is a buffer or a binding of one."""
    if is_a(value, "GPUBuffer"):
        return True
    try:
        return isinstance(value, Mapping) and "buffer" in value
    except Exception:  # whatever its own methods raise
        return False


def is_device_resource(value: object) -> bool:
    """Return whether a value is a buffer, a texture or a part of one."""
    return is_buffer(value) or is_texture(value)


def whole_of(value: Any) -> Region:
    """Return the region of the whole buffer or texture that a value refers to."""
    if is_texture(value):
        with contextlib.suppress(DataError):
            return region_of(Span(texture_of(resource_of(value, "a texture"))))
        return EVERYTHING
    buffer = _buffer_of(value)
    whole = is_a(buffer, "GPUBuffer")
    return region_of(Span(buffer, 0, buffer.size)) if whole else EVERYTHING


def check_device(gpu: Device, resource: Any, what: str) -> None:
    """Raise an error if a GPU object was made by another device or library."""
    if device_of(resource) is gpu.handle:
        return
    check_library(resource, gpu.handle, what)
    if is_foreign(resource, gpu.handle):
        raise DataError(f"{what}: the {type(resource).__name__} belongs to another GPUDevice")


def buffer_binding(
    gpu: Device, value: Any, descriptor: Descriptor, exact: int, what: str
) -> Binding:
    """Return the whole words of a buffer that a tensor takes.

    Args:
        gpu: The device.
        value: A GPUBuffer, or a mapping with "buffer", "offset" and "size" (bytes).
        descriptor: The tensor, for messages.
        exact: Bytes of the tensor.
        what: The role of the buffer, for messages.

    Raises:
        DataError: It is no buffer of this device, too small, or its offset is no multiple of 4.
    """
    given = value if isinstance(value, Mapping) else {"buffer": value}
    unknown = [key for key in given if key not in ("buffer", "offset", "size")]
    if unknown:
        raise DataError(f"{what}: unknown keys {shown(unknown)} in the binding")
    buffer = given["buffer"]
    if not is_a(buffer, "GPUBuffer"):
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
    """Raise a DataError if a buffer lacks a usage.

    Args:
        buffer: The GPUBuffer.
        usage: Flags of wgpu.BufferUsage, one of which must be set.
        what: The role of the buffer, for messages.
        why: The lacking usage, for messages.
    """
    if not buffer.usage & usage:
        raise DataError(f"{what}: the buffer's usage lacks {why}")


def check_reach(gpu: Device, given: Binding, copy: str, what: str, why: str = "") -> None:
    """Raise a DataError if neither a copy command nor a kernel can access a buffer range.

    Args:
        gpu: The device.
        given: The buffer range.
        copy: The usage for copies: "COPY_SRC" or "COPY_DST".
        what: The role of the buffer, for messages.
        why: The reason for the copy, for messages.
    """
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
) -> BoundRun:
    """Check and place the inputs and outputs of a run; return the commands to record around it.

    Args:
        loaded: The graph on the device.
        inputs: For each input a Binding, a resource of the device, or an array.
        outputs: The same for outputs. Arrays and None take `own` buffers, to be read back.
        own: Returns a buffer for a value without a resource.

    Raises:
        DataError: A resource does not fit; nothing was recorded.
    """
    run = BoundRun()
    gpu = loaded.gpu
    for value, resource in zip(loaded.graph.inputs, inputs, strict=True):
        _place_input(gpu, run, value, resource, named("input", value.name), own)
    taken = Counter(place.buffer for place in run.places.values())
    own = _continuing(loaded, run, own)
    times = Counter(value for _, value in loaded.graph.outputs)
    for number, ((name, value), resource) in enumerate(
        zip(loaded.graph.outputs, outputs, strict=True)
    ):
        if times[value] > 1 and value not in run.places:
            run.places[value] = own(value)
        if isinstance(resource, np.ndarray) or resource is None:
            run.downloads[number] = _computed(run, value, own)
        else:
            state = _state_of(loaded, run, value)
            _place_output(gpu, run, name, value, resource, own, taken, state)
    check_disjoint(run.written)
    for value, read in loaded.compiled.states.items():
        source, target = run.places[read], run.places[value]
        if source.span != target.span:
            run.before.append(copy_recorder(gpu, source, target, value.byte_length))
    return run


def _continuing(
    loaded: LoadedGraph, run: BoundRun, own: Callable[[Value], Binding]
) -> Callable[[Value], Binding]:
    """Return `own`, but for outputs that continue an uploaded array: they take its buffer."""
    uploaded = {buffer for buffer, _ in run.uploads}

    def get(value: Value) -> Binding:
        state = _state_of(loaded, run, value)
        return state if state is not None and state.buffer in uploaded else own(value)

    return get


def _state_of(loaded: LoadedGraph, run: BoundRun, value: Value) -> Binding | None:
    """Return the binding of the state that an output updates in place, or None."""
    state = loaded.compiled.states.get(value)
    return None if state is None else run.places[state]


def place_in_own_buffers(
    loaded: LoadedGraph,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    own: Callable[[Value], Binding],
) -> BoundRun:
    """Place a run in `own` buffers alone: copy inputs into them before, and outputs out after.

    Arguments and errors are those of `place`.
    """
    gpu, run = loaded.gpu, BoundRun()
    for value, resource in zip(loaded.graph.inputs, inputs, strict=True):
        copy_input(gpu, run, value, resource, own)
    for _, value in loaded.graph.outputs:
        state = _state_of(loaded, run, value)
        if state is not None:
            run.places[value] = state
        _computed(run, value, own)
    for (name, value), resource in zip(loaded.graph.outputs, outputs, strict=True):
        if resource is not None:
            _place_output(gpu, run, name, value, resource, own, Counter(), None)
    check_disjoint(run.written)
    return run


def _take_texture(gpu: Device, run: BoundRun, given: Any, what: str) -> Span:
    """Check a texture or a part of one, add it to the run, and return its memory range."""
    resource = resource_of(given, what)
    check_device(gpu, resource, what)
    run.take(resource, what)
    return Span(texture_of(resource), box=part_of(given, what).box)


def _public(value: Value) -> Descriptor:
    return Descriptor(value.data_type, value.shape)


def _place_input(
    gpu: Device,
    run: BoundRun,
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
        run.before.append(copy_recorder(gpu, given, target, target.size))
    else:
        contents = padded_bytes(resource, buffer_bytes(value))
        run.places[value] = target = own(value)
        run.uploads.append((target.buffer, contents))


def _place_output(
    gpu: Device,
    run: BoundRun,
    name: str,
    value: Value,
    resource: Any,
    own: Callable[[Value], Binding],
    taken: Counter[Any],
    state: Binding | None,
) -> None:
    """Place an output in the given resource, or in an own buffer that is copied to it.

    Args:
        gpu: The device.
        run: The run.
        name: Name of the output.
        value: The output.
        resource: As of `place`.
        own: Likewise.
        taken: How often each buffer is bound.
        state: The binding of the input that the output continues, if any.
    """
    what = named("output", name)
    is_tensor = isinstance(resource, Binding)
    if is_texture(resource):
        run.written[name] = _take_texture(gpu, run, resource, what)
        source = _computed(run, value, own)
        run.after.append(conversion.store(gpu, resource, source.entry, value, what))
        return
    if is_tensor:  # the last word is all its own
        given, exact = resource, resource.size
    else:
        exact = value.byte_length
        given = buffer_binding(gpu, resource, _public(value), exact, what)
        run.take(given.buffer, what)
    run.written[name] = given.span
    direct = given.buffer.usage & STORAGE and given.offset % gpu.offset_alignment == 0
    in_place = state is not None and state.span == given.span
    if direct and value not in run.places and taken[given.buffer] == int(in_place):
        run.places[value] = given
        taken[given.buffer] += 1
        return
    check_reach(gpu, given, "COPY_DST", what)
    if exact % 4:
        why = ", to keep the bytes behind the result in its last word"
        check_reach(gpu, given, "COPY_SRC", what, why)
    run.after.append(copy_recorder(gpu, _computed(run, value, own), given, exact))


def _computed(run: BoundRun, value: Value, own: Callable[[Value], Binding]) -> Binding:
    """Return the binding that kernels write an output to; an own buffer if it has none yet."""
    if value not in run.places:
        run.places[value] = own(value)
    return run.places[value]


def copy_input(
    gpu: Device,
    run: BoundRun,
    value: Value,
    resource: Any,
    own: Callable[[Value], Binding],
) -> None:
    """Place an input in an own buffer, whatever resource it comes from."""
    what = named("input", value.name)
    _place_input(gpu, run, value, resource, what, own)
    place = run.places[value]
    if isinstance(resource, Binding) or (
        is_buffer(resource) and place.buffer is _buffer_of(resource)
    ):
        run.take(place.buffer, what)
        run.places[value] = target = own(value)
        run.before.append(copy_recorder(gpu, place, target, target.size))


def _buffer_of(resource: Any) -> Any:
    return resource["buffer"] if isinstance(resource, Mapping) else resource


def copy_recorder(gpu: Device, source: Binding, target: Binding, size: int) -> Record:
    """Return a function that records the copy of a tensor of `size` bytes."""
    with device_errors("copying a tensor"):
        copy = copy_exactly(gpu, source, target, size)

    def record(encoder: Any) -> None:
        with device_errors("copying a tensor"):
            copy(encoder)

    return record


def _upload_recorder(gpu: Device, target: Any, contents: Array) -> Record:
    """Return a function that records the copy of host memory, read now, into a buffer."""
    usage = wgpu.BufferUsage.COPY_SRC
    source = gpu.handle.create_buffer_with_data(data=contents, usage=usage)
    size = contents.nbytes
    return lambda encoder: encoder.copy_buffer_to_buffer(source, 0, target, 0, size)


def fresh_buffers(gpu: Device) -> Callable[[Value], Binding]:
    """Return a function that makes a new buffer for each value.

    For recordings that may run at any time, so that they share no buffers.
    """

    def make(value: Value) -> Binding:
        size = buffer_bytes(value)
        return Binding(gpu.buffer(size, STORAGE | COPIES, "private"), 0, size)

    return make
