"""A compiled program as data: kernels, buffers and steps; spec/programs.md explains each member.

Nothing here imports the compiler or a device, so a compiled program runs without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.engines.webgpu.program.storage import buffer_bytes
from webnn_py.ir import Array, Descriptor, Shape

BindingType = Literal["read-only-storage", "storage", "uniform"]
Access = Literal["read", "write", "read-write"]
Adapter = Literal["any", "hardware", "software"]

MAX_DISPATCHES = 1 << 24
"""Dispatches of one run."""

COUNTED_LOOP_MARK = "// its rounds are counted"
"""A WGSL comment that marks kernels which run faster if wgpu-native bounds their loops.

wgpu-native can make each loop count its iterations. On an H100 that speeds up large matrix products
by 3 %.
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a run.

    Attributes:
        name: The name by which the caller passes it.
        data_type: WebNN's name.
        shape: Fixed dimensions.
        access: How the steps use it; "write" if a graph overwrites it before any read.
        required: Whether a step reads it before any writes it. An optional argument that the caller
            omits starts as zeros.
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
        """Bytes of its buffer, in whole words."""
        return buffer_bytes(self.descriptor)

    @property
    def written(self) -> bool:
        """Whether a run changes it."""
        return self.access != "read"


@dataclass(frozen=True, slots=True)
class BindingLayout:
    """One binding of a kernel, in group 0.

    Attributes:
        binding: Its number.
        type: As in WebGPU's GPUBufferBindingType.
        min_size: Minimum bytes of the bound part.
    """

    binding: int
    type: BindingType
    min_size: int


@dataclass(frozen=True, slots=True)
class ProgramKernel:
    """The parameters of one compute pipeline.

    Attributes:
        name: For labels and messages.
        shader: Index of its WGSL.
        entry_point: Name of its function.
        constants: Values of pipeline-overridable constants, by name, or by number if they have one.
        bindings: Layout of its bind group.
        ends: Whether all loops are known to end, as those of graphs compiled here are; files do not
            say.
    """

    name: str
    shader: int
    entry_point: str
    constants: tuple[tuple[str, float], ...]
    bindings: tuple[BindingLayout, ...]
    ends: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """Initial contents of a part of a buffer.

    Attributes:
        tensor: Name of a tensor of the file.
        offset: First byte in the buffer.
    """

    tensor: str
    offset: int


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """A buffer of the program; zeros, apart from its contents.

    Attributes:
        size: Bytes, a multiple of 4.
        usage: How it is bound.
        contents: Initial contents.
    """

    size: int
    usage: Literal["storage", "uniform"]
    contents: tuple[Contents, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A bound part of an argument, or of a buffer of the program.

    Attributes:
        kind: Which of the two.
        index: Its index among the arguments or buffers.
        offset: First byte, a multiple of 256.
        size: Bytes, a multiple of 4.
    """

    kind: Literal["argument", "buffer"]
    index: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Step:
    """A dispatch, or consecutive repetitions of one.

    Attributes:
        kernel: Index of its kernel.
        places: The bound parts, in the order of the kernel's bindings.
        workgroups: Workgroups along x, y and z.
        times: Number of consecutive dispatches.
    """

    kernel: int
    places: tuple[Place, ...]
    workgroups: tuple[int, int, int]
    times: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive steps, and how often they run.

    Attributes:
        first: Index of the first step.
        count: Number of steps.
        repeat: Number of repetitions.
    """

    first: int
    count: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Variant:
    """The program for devices with some features and limits.

    Attributes:
        adapter: The kind of adapter: hardware, software or any.
        features: Required features, by WebGPU's names; "shader-int64" is wgpu's own.
        limits: Required limits above WebGPU's defaults, by WebGPU's names.
        buffers: The program's own buffers.
        steps: Every dispatch.
        sections: The steps to run, in order.
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
        arguments: The arguments of a run.
        shaders: WGSL modules.
        kernels: Pipelines, for all variants.
        variants: From the most demanding one to the least.
        tensors: Initial contents of buffers, by name.
    """

    arguments: tuple[Argument, ...]
    shaders: tuple[str, ...]
    kernels: tuple[ProgramKernel, ...]
    variants: tuple[Variant, ...]
    tensors: Mapping[str, Array]

    def describe(self, variant: Variant) -> str:
        """List the arguments, and each step of a variant with its bindings, one a line."""
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
