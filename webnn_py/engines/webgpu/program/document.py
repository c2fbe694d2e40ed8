"""Convert compiled programs to JSON and back, with validation; format: spec/programs.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from webnn_py._version import __version__
from webnn_py.core.dtypes import DTYPES, PACKED_4BIT
from webnn_py.core.errors import NotSupportedError, ValidationError
from webnn_py.core.messages import is_text, shown
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.shapes import MAX_BYTE_LENGTH, MAX_RANK
from webnn_py.engines.webgpu.program.plan import (
    MAX_DISPATCHES,
    Argument,
    BindingLayout,
    BufferPlan,
    Contents,
    Place,
    Plan,
    ProgramKernel,
    Section,
    Step,
    Variant,
)
from webnn_py.engines.webgpu.program.storage import PART_ALIGNMENT
from webnn_py.engines.webgpu.program.wgsl_interface import tokens_of
from webnn_py.ir import Array
from webnn_py.storage.document import Field

FORMAT = "webnn-program"
VERSION = 1
MAX_BINDING = 999
MAX_SIZE = 1 << 40
MAX_WORKGROUPS = (1 << 32) - 1
MAX_NUMBER = 1.7976931348623157e308
ADAPTERS = ("any", "hardware", "software")
ACCESSES = ("read", "write", "read-write")
BINDING_TYPES = ("read-only-storage", "storage", "uniform")
USAGES = ("storage", "uniform")

Json = dict[str, Any]


def document_of(plan: Plan) -> Json:
    """Return a plan as JSON, without its tensors."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "producer": f"webnn_py {__version__}",
        "arguments": [
            {
                "name": a.name,
                "data_type": a.data_type,
                "shape": list(a.shape),
                "size": a.size,
                "access": a.access,
                "required": a.required,
            }
            for a in plan.arguments
        ],
        "shaders": list(plan.shaders),
        "kernels": [
            {
                "name": k.name,
                "shader": k.shader,
                "entry_point": k.entry_point,
                "constants": dict(k.constants),
                "bindings": [
                    {"binding": b.binding, "type": b.type, "min_size": b.min_size}
                    for b in k.bindings
                ],
            }
            for k in plan.kernels
        ],
        "variants": [_variant_document(variant) for variant in plan.variants],
    }


def _variant_document(variant: Variant) -> Json:
    return {
        "adapter": variant.adapter,
        "features": list(variant.features),
        "limits": dict(variant.limits),
        "buffers": [
            {
                "size": b.size,
                "usage": b.usage,
                "contents": [{"tensor": c.tensor, "offset": c.offset} for c in b.contents],
            }
            for b in variant.buffers
        ],
        "steps": [
            {
                "kernel": s.kernel,
                "places": [{p.kind: p.index, "offset": p.offset, "size": p.size} for p in s.places],
                "workgroups": list(s.workgroups),
                "times": s.times,
            }
            for s in variant.steps
        ],
        "sections": [
            {"first": s.first, "count": s.count, "repeat": s.repeat} for s in variant.sections
        ],
    }


def plan_of(document: Field, tensors: Mapping[str, Array]) -> Plan:
    """Parse a document into a plan.

    Args:
        document: The root of the JSON document.
        tensors: The file's tensors, by name.

    Raises:
        DataError: The document breaks a rule of the format; the message says where.
        NotSupportedError: The document has a later version of the format.
    """
    top = document.mapping()
    if "format" not in top or "version" not in top:
        raise document.error("members 'format' and 'version' are missing")
    top["format"].choice((FORMAT,))
    if top["version"].integer(1, MAX_SIZE) > VERSION:
        raise NotSupportedError(
            f"{top['version'].where}: a later release of webnn_py wrote this version,"
            f" {top['version'].value}; this one reads {VERSION}"
        )
    members = document.members(
        "format", "version", "producer", "arguments", "shaders", "kernels", "variants"
    )
    members["producer"].text()
    arguments = tuple(map(_argument, members["arguments"].items()))
    if len({argument.name for argument in arguments}) < len(arguments):
        raise members["arguments"].error("two arguments have the same name")
    shaders = tuple(map(_shader, members["shaders"].items()))
    kernels = tuple(_kernel(kernel, len(shaders)) for kernel in members["kernels"].items())
    reader = _VariantReader(arguments, kernels, tensors)
    variants = tuple(map(reader.variant, members["variants"].items()))
    if not variants:
        raise members["variants"].error("expected at least one variant")
    return Plan(arguments, shaders, kernels, variants, tensors)


def _text(field: Field) -> str:
    """Return a string that is not empty."""
    if not field.text():
        raise field.unlike("a string that is not empty")
    return field.text()


def _code(field: Field) -> str:
    """Return a string that can be encoded as UTF-8, as devices require."""
    if not is_text(_text(field)):
        raise field.error("it contains half a surrogate pair, which is no character")
    return field.text()


def _shader(field: Field) -> str:
    """Return WGSL within the limits of drivers."""
    try:
        tokens_of(_code(field))
    except ValidationError as error:
        raise field.error(str(error)) from None
    return field.text()


def _constant(field: Field) -> tuple[str, float]:
    return _code(Field(field.step, field, "name")), _number(field)


def _multiple(field: Field, low: int, high: int, of: int) -> int:
    value = field.integer(low, high)
    if value % of:
        raise field.unlike(f"a multiple of {of}")
    return value


def _numbers(field: Field, low: int, high: int, most: int) -> tuple[int, ...]:
    return tuple(item.integer(low, high) for item in field.items(most))


def _argument(field: Field) -> Argument:
    members = field.members("name", "data_type", "shape", "size", "access", "required")
    data_type = members["data_type"].choice([t for t in DTYPES if t not in PACKED_4BIT])
    shape = _numbers(members["shape"], 1, MAX_DIMENSION, MAX_RANK)
    access = members["access"].choice(ACCESSES)
    required = members["required"].value
    allowed = {"read": (True,), "write": (False,)}.get(access, (True, False))
    if not any(required is value for value in allowed):
        raise members["required"].unlike(
            "true or false; true if it is only read, false if it is only written"
        )
    argument = Argument(
        _text(members["name"]), cast(Any, data_type), shape, cast(Any, access), required
    )
    if argument.descriptor.byte_length > MAX_BYTE_LENGTH:
        raise members["shape"].error(f"the tensor has more than {MAX_BYTE_LENGTH} bytes")
    if members["size"].integer(4, MAX_SIZE) != argument.size:
        raise members["size"].unlike(f"{argument.size} for {argument.descriptor}")
    return argument


def _kernel(field: Field, shaders: int) -> ProgramKernel:
    members = field.members("name", "shader", "entry_point", "constants", "bindings")
    bindings = tuple(map(_binding, members["bindings"].items()))
    numbers = [binding.binding for binding in bindings]
    if numbers != sorted(set(numbers)):
        raise members["bindings"].error("binding numbers must increase")
    return ProgramKernel(
        _text(members["name"]),
        members["shader"].integer(0, shaders - 1),
        _code(members["entry_point"]),
        tuple(map(_constant, members["constants"].mapping().values())),
        bindings,
    )


def _number(field: Field) -> float:
    if type(field.value) not in (int, float) or not abs(field.value) <= MAX_NUMBER:
        raise field.unlike("a finite number")
    return float(field.value)


def _binding(field: Field) -> BindingLayout:
    members = field.members("binding", "type", "min_size")
    return BindingLayout(
        members["binding"].integer(0, MAX_BINDING),
        cast(Any, members["type"].choice(BINDING_TYPES)),
        _multiple(members["min_size"], 4, MAX_SIZE, 4),
    )


def _section(field: Field, steps: int) -> Section:
    members = field.members("first", "count", "repeat")
    first = members["first"].integer(0, steps - 1)
    count = members["count"].integer(1, steps - first)
    return Section(first, count, members["repeat"].integer(1, MAX_DISPATCHES))


class _VariantReader:
    """Parses variants; checks that references exist and bound parts fit.

    Args:
        arguments: The program's arguments.
        kernels: The program's kernels.
        tensors: The file's tensors, by name.
    """

    def __init__(
        self,
        arguments: Sequence[Argument],
        kernels: Sequence[ProgramKernel],
        tensors: Mapping[str, Array],
    ) -> None:
        self._arguments = arguments
        self._kernels = kernels
        self._tensors = tensors
        self._buffers: Sequence[BufferPlan] = ()

    def variant(self, field: Field) -> Variant:
        """Parse one variant."""
        members = field.members("adapter", "features", "limits", "buffers", "steps", "sections")
        buffers = self._buffers = tuple(map(self._buffer, members["buffers"].items()))
        steps = tuple(map(self._step, members["steps"].items()))
        limits = members["limits"].mapping().items()
        variant = Variant(
            cast(Any, members["adapter"].choice(ADAPTERS)),
            tuple(map(_text, members["features"].items())),
            {name: value.integer(1, MAX_SIZE) for name, value in limits},
            buffers,
            steps,
            tuple(_section(section, len(steps)) for section in members["sections"].items()),
        )
        if not 0 < variant.dispatches <= MAX_DISPATCHES:
            raise members["sections"].error(
                f"got {variant.dispatches} dispatches, expected 1..{MAX_DISPATCHES}"
            )
        self._check_sizes(members["buffers"], steps)
        return variant

    def _buffer(self, field: Field) -> BufferPlan:
        members = field.members("size", "usage", "contents")
        size = _multiple(members["size"], 4, MAX_SIZE, 4)
        usage = members["usage"].choice(USAGES)
        contents = tuple(self._contents(part, size) for part in members["contents"].items())
        return BufferPlan(size, cast(Any, usage), contents)

    def _contents(self, field: Field, size: int) -> Contents:
        members = field.members("tensor", "offset")
        tensor = self._tensors.get(members["tensor"].text())
        if tensor is None:
            raise members["tensor"].unlike("the name of a tensor of this file")
        offset = _multiple(members["offset"], 0, size, PART_ALIGNMENT)
        if offset + tensor.nbytes > size:
            raise field.error(
                f"{tensor.nbytes} bytes at offset {offset} exceed the buffer of {size} bytes"
            )
        return Contents(members["tensor"].text(), offset)

    def _step(self, field: Field) -> Step:
        members = field.members("kernel", "places", "workgroups", "times")
        number = members["kernel"].integer(0, len(self._kernels) - 1)
        bindings = self._kernels[number].bindings
        places = tuple(map(self._place, members["places"].items()))
        if len(places) != len(bindings):
            raise members["places"].error(
                f"got {len(places)} places, expected {len(bindings)} as the kernel has bindings"
            )
        owners = [(place.kind, place.index) for place in places]
        for place, layout, item in zip(places, bindings, members["places"].items(), strict=True):
            self._check_bound(place, layout, item)
            if layout.type == "storage" and owners.count((place.kind, place.index)) > 1:
                raise item.error("a step binds memory twice that it writes")
        workgroups = _numbers(members["workgroups"], 1, MAX_WORKGROUPS, 3)
        if len(workgroups) != 3:
            raise members["workgroups"].unlike("three numbers")
        times = members["times"].integer(1, MAX_DISPATCHES)
        return Step(number, places, cast(Any, workgroups), times)

    def _place(self, field: Field) -> Place:
        kind: Any = "argument" if "argument" in field.mapping() else "buffer"
        members = field.members(kind, "offset", "size")
        among: Sequence[Argument | BufferPlan] = self._buffers
        if kind == "argument":
            among = self._arguments
        index = members[kind].integer(0, len(among) - 1)
        offset = _multiple(members["offset"], 0, MAX_SIZE, PART_ALIGNMENT)
        size = _multiple(members["size"], 4, MAX_SIZE, 4)
        if offset + size > among[index].size:
            raise field.error(
                f"bytes {offset}..{offset + size} exceed the {kind} of {among[index].size} bytes"
            )
        return Place(kind, index, offset, size)

    def _check_bound(self, place: Place, layout: BindingLayout, field: Field) -> None:
        if place.size < layout.min_size:
            raise field.error(f"got {place.size} bytes, but the kernel needs {layout.min_size}")
        usage = "storage" if place.kind == "argument" else self._buffers[place.index].usage
        if (usage == "uniform") != (layout.type == "uniform"):
            raise field.error(f"a {usage} buffer is bound as {layout.type}")
        if place.kind == "argument" and layout.type == "storage":
            argument = self._arguments[place.index]
            if not argument.written:
                raise field.error(
                    f"a kernel writes argument {shown(argument.name)}, which is read-only"
                )

    def _check_sizes(self, field: Field, steps: Sequence[Step]) -> None:
        """Check that each buffer ends where its last bound part ends: none wastes memory."""
        ends = [0] * len(self._buffers)
        for step in steps:
            for place in step.places:
                if place.kind == "buffer":
                    ends[place.index] = max(ends[place.index], place.offset + place.size)
        for buffer, end, item in zip(self._buffers, ends, field.items(), strict=True):
            if buffer.size != end:
                raise item.error(f"the buffer has {buffer.size} bytes, but steps use {end}")
