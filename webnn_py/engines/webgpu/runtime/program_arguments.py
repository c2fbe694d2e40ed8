"""Arguments of a program's run: check each one and place it in a buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from webnn_py.core.errors import DataError
from webnn_py.core.messages import named, shown, type_name
from webnn_py.engines.webgpu.program.plan import Argument
from webnn_py.engines.webgpu.runtime import bind_resources
from webnn_py.engines.webgpu.runtime.bind_resources import BoundRun
from webnn_py.engines.webgpu.runtime.devices.binding import Binding
from webnn_py.engines.webgpu.runtime.devices.buffer_init import padded_bytes
from webnn_py.engines.webgpu.runtime.devices.device import STORAGE
from webnn_py.engines.webgpu.runtime.program import LoadedProgram
from webnn_py.engines.webgpu.runtime.textures.parts import is_texture
from webnn_py.ir import Value
from webnn_py.memory.overlap import region_of


def place_arguments(
    program: LoadedProgram,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    own: Callable[[Value], Binding],
) -> BoundRun:
    """Check and place the arguments of a run; return the commands to record around it.

    A resource holds its argument's contents before and after the run. A written argument may share
    no memory with another argument.

    Args:
        program: The program.
        inputs: Initial contents by name: a Binding, a resource of the device, or an array.
        outputs: Targets by name, of the same kinds.
        own: Returns the program's own buffer for an argument in host memory or without a resource.

    Raises:
        DataError: A resource does not fit; nothing was recorded.
    """
    run = BoundRun()
    given: dict[Value, Binding] = {}
    for value, argument in zip(program.arguments, program.plan.arguments, strict=True):
        resource = inputs.get(argument.name, outputs.get(argument.name))
        binding = _on_device(program, run, value, argument, resource)
        if binding is not None:
            given[value] = binding
    _check_apart(program, given)
    users = Counter(binding.buffer for binding in given.values())
    shared = {
        binding.buffer
        for value, binding in given.items()
        if program.argument(value).written and users[binding.buffer] > 1
    }
    written = (a for a in program.plan.arguments if a.written)
    numbers = {argument.name: number for number, argument in enumerate(written)}
    for value, argument in zip(program.arguments, program.plan.arguments, strict=True):
        if value in given:
            _bind(program, run, value, argument, given[value], shared, own)
            continue
        run.places[value] = place = own(value)
        contents = inputs.get(argument.name)
        if contents is not None:
            run.uploads.append((place.buffer, padded_bytes(contents, place.size)))
        elif argument.access == "read-write":
            run.before.append(_clear(place))
        if argument.written:
            run.downloads[numbers[argument.name]] = place
    return run


def _on_device(
    program: LoadedProgram, run: BoundRun, value: Value, argument: Argument, resource: Any
) -> Binding | None:
    """Return the binding of an argument that is a resource of the device, else None."""
    what = named("argument", argument.name)
    if isinstance(resource, Binding):
        return resource
    if is_texture(resource):
        raise DataError(f"{what}: got {type_name(resource)}, expected a GPUBuffer")
    if not bind_resources.is_buffer(resource):
        return None
    tensor = argument.descriptor
    given = bind_resources.buffer_binding(program.gpu, resource, tensor, tensor.byte_length, what)
    run.take(given.buffer, what)
    run.read.append(given.span)
    if argument.written:
        run.written[argument.name] = given.span
    return given


def _check_apart(program: LoadedProgram, given: Mapping[Value, Binding]) -> None:
    regions = [(value, region_of(binding.span)) for value, binding in given.items()]
    for i, (value, region) in enumerate(regions):
        for other, before in regions[:i]:
            written = program.argument(value).written or program.argument(other).written
            if written and region.overlaps(before):
                raise DataError(
                    f"arguments {shown(other.name)} and {shown(value.name)} share memory, and one"
                    " of them is written; give each one of its own"
                )


def _bind(
    program: LoadedProgram,
    run: BoundRun,
    value: Value,
    argument: Argument,
    given: Binding,
    shared: set[Any],
    own: Callable[[Value], Binding],
) -> None:
    """Bind the resource itself if possible, else an own buffer with copies before and after."""
    gpu = program.gpu
    can_bind = given.buffer.usage & STORAGE and given.offset % gpu.offset_alignment == 0
    if can_bind and given.buffer not in shared:
        run.places[value] = given
        return
    what = named("argument", argument.name)
    run.places[value] = place = own(value)
    if argument.access != "write":
        bind_resources.check_reach(gpu, given, "COPY_SRC", what)
        run.before.append(bind_resources.copy_recorder(gpu, given, place, place.size))
    if argument.written:
        bind_resources.check_reach(gpu, given, "COPY_DST", what)
        exact = argument.descriptor.byte_length
        run.after.append(bind_resources.copy_recorder(gpu, place, given, exact))


def _clear(place: Binding) -> bind_resources.Record:
    return lambda encoder: encoder.clear_buffer(place.buffer, place.offset, place.size)
