"""A compiled program: kernels, buffers and steps, as data; spec/programs.md tells of each member.

Nothing here needs the compiler or a device, so that what was compiled once runs without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.ir import Array, Descriptor, Shape

BindingType = Literal["read-only-storage", "storage", "uniform"]
Access = Literal["read", "write", "read-write"]
Adapter = Literal["any", "hardware", "software"]

MOST_DISPATCHES = 1 << 24
"""Dispatches of one run."""

COUNTED = "// its rounds are counted"
"""A line of kernels that are faster where wgpu-native has loops count their rounds: large products
of matrices, by 3 % on an H100."""


@dataclass(frozen=True, slots=True)
class Argument:
    """What is given at each run.

    Attributes:
        name: By which it is given.
        data_type: WebNN's name.
        shape: Of numbers.
        access: What the steps do with it; a graph that writes it first, "write".
        required: A step reads it before any writes it. What is not required and not given begins as
            zeros.
    """

    name: str
    data_type: MLOperandDataType
    shape: Shape
    access: Access
    required: bool

    @property
    def descriptor(self) -> Descriptor:
        """Data type and shape."""
        return Descriptor(self.data_type, self.shape)

    @property
    def size(self) -> int:
        """Bytes of its buffer: whole words."""
        return buffer_bytes(self.descriptor)

    @property
    def written(self) -> bool:
        """Whether a run changes it."""
        return self.access != "read"


@dataclass(frozen=True, slots=True)
class BindingLayout:
    """One binding of a kernel, all of which are in group 0.

    Attributes:
        binding: Its number.
        type: As WebGPU's GPUBufferBindingType has it.
        min_size: Bytes that are bound at least.
    """

    binding: int
    type: BindingType
    min_size: int


@dataclass(frozen=True, slots=True)
class ProgramKernel:
    """What one compute pipeline is made of.

    Attributes:
        name: For labels and messages.
        shader: The number of its WGSL.
        entry_point: Its function.
        constants: What pipeline-overridable constants are, by name, or by number where they have
            one.
        bindings: Its bind group's layout.
    """

    name: str
    shader: int
    entry_point: str
    constants: tuple[tuple[str, float], ...]
    bindings: tuple[BindingLayout, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a part of a buffer holds at first.

    Attributes:
        tensor: The name of a tensor of the file.
        offset: Where its bytes begin.
    """

    tensor: str
    offset: int


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """One buffer of a program's own: zeros, but for its contents.

    Attributes:
        size: Bytes, a multiple of 4.
        usage: How it is bound.
        contents: What it holds at first.
    """

    size: int
    usage: Literal["storage", "uniform"]
    contents: tuple[Contents, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """What is bound: part of an argument, or of a buffer of the program's own.

    Attributes:
        kind: Which of the two.
        index: Its number.
        offset: First byte, a multiple of 256.
        size: Bytes, a multiple of 4.
    """

    kind: Literal["argument", "buffer"]
    index: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Step:
    """A dispatch, or several in a row.

    Attributes:
        kernel: The number of its kernel.
        places: What is bound, in the order of the kernel's bindings.
        workgroups: The dispatch.
        times: How often it is dispatched in a row.
    """

    kernel: int
    places: tuple[Place, ...]
    workgroups: tuple[int, int, int]
    times: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive steps that are run so often.

    Attributes:
        first: The first one's number.
        count: How many.
        repeat: How often.
    """

    first: int
    count: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Variant:
    """The program for devices with some features and limits.

    Attributes:
        adapter: Whether it is for hardware, for programs that play a GPU, or for both.
        features: By WebGPU's names; "shader-int64" is wgpu's own.
        limits: Those above WebGPU's defaults, by WebGPU's names.
        buffers: The program's own buffers.
        steps: Every dispatch.
        sections: Which steps run, in order.
    """

    adapter: Adapter
    features: tuple[str, ...]
    limits: Mapping[str, int]
    buffers: tuple[BufferPlan, ...]
    steps: tuple[Step, ...]
    sections: tuple[Section, ...]

    @property
    def dispatches(self) -> int:
        """Dispatches of one run."""
        return sum(
            step.times * part.repeat
            for part in self.sections
            for step in self.steps[part.first : part.first + part.count]
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled program.

    Attributes:
        arguments: What is given at each run.
        shaders: WGSL.
        kernels: What pipelines are made of, for all variants.
        variants: From the one that asks most of a device to the one that asks least.
        tensors: What buffers hold at first, by name.
    """

    arguments: tuple[Argument, ...]
    shaders: tuple[str, ...]
    kernels: tuple[ProgramKernel, ...]
    variants: tuple[Variant, ...]
    tensors: Mapping[str, Array]

    def describe(self, variant: Variant) -> str:
        """The arguments, and every step of a variant with what it is bound to, one a line."""
        lines = [f"{a.name}: {a.descriptor}, {a.access}" for a in self.arguments]
        for section in variant.sections:
            lines.append(f"{section.repeat} times:")
            steps = variant.steps[section.first : section.first + section.count]
            lines += [f"  {self._describe(step, variant)}" for step in steps]
        return "\n".join(lines)

    def _describe(self, step: Step, variant: Variant) -> str:
        kernel = self.kernels[step.kernel]
        bound = [self._bound(place, variant) for place in step.places]
        written = [layout.type == "storage" for layout in kernel.bindings]
        reads, writes = (
            ", ".join(name for name, w in zip(bound, written, strict=True) if w is wanted)
            for wanted in (False, True)
        )
        x, y, z = step.workgroups
        times = f", {step.times} times" if step.times > 1 else ""
        return f"{kernel.name}<{x},{y},{z}>({reads}) -> {writes}{times}"

    def _bound(self, place: Place, variant: Variant) -> str:
        if place.kind == "argument":
            argument = self.arguments[place.index]
            name, size = argument.name, argument.size
        else:
            name, size = f"%{place.index}", variant.buffers[place.index].size
        end = place.offset + place.size
        return name if place.size == size else f"{name}[{place.offset}:{end}]"
