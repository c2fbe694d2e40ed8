"""One variant of a program, for devices of some features: kernels, buffers and steps as data."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from webnn_py.core.dtypes import DTYPES
from webnn_py.engines.webgpu.compiler.compiled import Compiled
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part, grid
from webnn_py.engines.webgpu.program.needs import Workgroup
from webnn_py.engines.webgpu.program.plan import (
    BindingLayout,
    BindingType,
    BufferPlan,
    Contents,
    Place,
    ProgramKernel,
    Section,
    Step,
)
from webnn_py.engines.webgpu.program.source import GraphStep, KernelStep, Slot
from webnn_py.engines.webgpu.program.storage import (
    Features,
    aligned,
    buffer_bytes,
    host_dtype,
    parts_of,
)
from webnn_py.ir import Array, Graph, Value

ARENA_BYTES = 64 << 20
"""Weights that share a buffer: few buffers to make, and none too large for any device."""

COPY_WORKGROUP = 64
COPY = f"""@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read_write> copied: array<u32>;
@compute @workgroup_size({COPY_WORKGROUP})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {{
  let i = id.x + id.y * n.x * {COPY_WORKGROUP}u;
  if (i < arrayLength(&given)) {{ copied[i] = given[i]; }}
}}
"""


@dataclass(slots=True, eq=False)
class _Buffer:
    """A buffer of a variant's own, while its plan is made."""

    size: int = 0
    usage: Literal["storage", "uniform"] = "storage"
    contents: list[Contents] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a binding shows: a part of an argument or of a buffer."""

    owner: Slot | _Buffer
    offset: int
    size: int

    def part(self, part: Part) -> _Bound:
        return _Bound(self.owner, self.offset + part.offset, part.size)


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """A step, while the plan is made."""

    kernel: int
    bound: tuple[_Bound, ...]
    workgroups: tuple[int, int, int]
    times: int = 1


class Tables:
    """What all variants of a program share: shaders, kernels, tensors."""

    def __init__(self) -> None:
        self.shaders: dict[str, int] = {}
        self.tensors: dict[str, Array] = {}
        self._kernels: dict[tuple[Any, ...], int] = {}
        self._made: list[ProgramKernel] = []
        self.workgroups: list[Workgroup] = []
        self._names: dict[tuple[int, str], str] = {}
        self._arrays: list[Array] = []  # which keeps their identities

    @property
    def kernels(self) -> tuple[ProgramKernel, ...]:
        """Every kernel so far."""
        return tuple(self._made)

    def kernel(
        self,
        name: str,
        code: str,
        entry_point: str,
        bindings: Sequence[tuple[int, BindingType]],
        sizes: Sequence[int],
        constants: Mapping[str, float],
        workgroup: Workgroup,
        ends: bool = False,
    ) -> int:
        """The number of a kernel that binds so many bytes at least."""
        shader = self.shaders.setdefault(code, len(self.shaders))
        key = shader, entry_point, tuple(sorted(constants.items())), tuple(bindings)
        number = self._kernels.setdefault(key, len(self._made))
        if number == len(self._made):
            layouts = tuple(
                BindingLayout(*binding, size) for binding, size in zip(bindings, sizes, strict=True)
            )
            self._made.append(ProgramKernel(name, shader, entry_point, key[2], layouts, ends))
            self.workgroups.append(workgroup)
            return number
        known = self._made[number]
        layouts = tuple(
            replace(layout, min_size=min(layout.min_size, size))
            for layout, size in zip(known.bindings, sizes, strict=True)
        )
        self._made[number] = replace(known, bindings=layouts)
        return number

    def tensor(self, name: str, array: Array, data_type: str) -> str:
        """The name of the tensor with an array's contents, the one given if that is free."""
        key = id(array), host_dtype(data_type)
        if key not in self._names:
            self._arrays.append(array)
            names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
            self._names[key] = next(n for n in names if n not in self.tensors)
            wanted = DTYPES[host_dtype(data_type)].numpy
            self.tensors[self._names[key]] = np.ascontiguousarray(array.astype(wanted, copy=False))
        return self._names[key]


class VariantBuilder:
    """One variant under construction.

    Args:
        compiled: Gives its graphs compiled.
        tables: What it shares with others.
        features: Of the devices that it is for.

    Attributes:
        used: The features that the code of its graphs makes use of.
    """

    def __init__(
        self,
        compiled: Callable[[Graph, Features], Compiled],
        tables: Tables,
        features: Features,
    ) -> None:
        self._compiled = compiled
        self._tables = tables
        self._features = features
        self.used: frozenset[str] = frozenset()
        self._dispatches: list[_Dispatch] = []
        self._pool: list[_Buffer] = []
        self._arena = _Buffer(ARENA_BYTES)  # which is full
        self._numbers = _Buffer(usage="uniform")
        self._words = bytearray()
        self._weights: dict[str, _Bound] = {}

    def section(self, steps: Sequence[GraphStep | KernelStep], repeat: int) -> Section:
        """The dispatches of some steps."""
        first = len(self._dispatches)
        for step in steps:
            if isinstance(step, GraphStep):
                self._graph(step)
            else:
                self._kernel(step)
        return Section(first, len(self._dispatches) - first, repeat)

    def _kernel(self, step: KernelStep) -> None:
        used = step.interface.bindings
        bound = tuple(_whole(step.slots[binding.binding]) for binding in used)
        kernel = self._tables.kernel(
            step.name,
            step.code,
            step.name,
            [(b.binding, "storage" if b.written else "read-only-storage") for b in used],
            [part.size for part in bound],
            step.constants,
            Workgroup(step.interface.invocations(step.constants), step.interface.workgroup_bytes),
        )
        self._dispatches.append(_Dispatch(kernel, bound, step.workgroups))

    def _graph(self, step: GraphStep) -> None:
        compiled = self._compiled(step.recipe, self._features)
        places = self._intermediates(compiled)
        returned = [v for _, v in compiled.ends.outputs if v in compiled.ends.constants]
        for value in (*compiled.constants, *returned):
            places[value] = self._constant(value, compiled.ends.constants[value])
        for value in compiled.ends.inputs:
            places[value] = _whole(step.inputs[value.name])
        written = {part.value for kernel in compiled.kernels for part in kernel.writes}
        spare = len(compiled.plan.sizes)
        bound = Counter(step.inputs.values())
        copies: list[tuple[_Bound, _Bound]] = []
        for name, value in compiled.ends.outputs:
            target = _whole(step.outputs[name])
            if value in written and value not in places:
                places[value] = target
                state = places.get(compiled.states[value]) if value in compiled.states else None
                if bound[step.outputs[name]] > int(state == target):
                    places[value] = _Bound(self._scratch(spare, target.size), 0, target.size)
                    spare += 1
                if state is not None and state != places[value]:
                    self._copy(state, places[value])
            if places[value] != target:
                copies.append((places[value], target))
        for kernel in compiled.kernels:
            self._dispatch(kernel, places)
        for given, copied in copies:
            self._copy(given, copied)

    def _intermediates(self, compiled: Compiled) -> dict[Value, _Bound]:
        """Where a graph's intermediate values lie: all graphs take turns with the same buffers."""
        buffers = [self._scratch(slot, size) for slot, size in enumerate(compiled.plan.sizes)]
        return {
            value: _Bound(buffers[slot], 0, buffer_bytes(value))
            for value, slot in compiled.plan.slots.items()
        }

    def _scratch(self, number: int, size: int) -> _Buffer:
        """One of the buffers for what is not needed after its graph, at least so large."""
        while number >= len(self._pool):
            self._pool.append(_Buffer())
        buffer = self._pool[number]
        buffer.size = max(buffer.size, size)
        return buffer

    def _constant(self, value: Value, array: Array) -> _Bound:
        name = self._tables.tensor(value.name or "constant", array, value.data_type)
        if name not in self._weights:
            size = buffer_bytes(value)
            offset = aligned(self._arena.size)
            if offset + size > ARENA_BYTES:
                self._arena, offset = _Buffer(), 0
            self._arena.contents.append(Contents(name, offset))
            self._arena.size = offset + size
            self._weights[name] = _Bound(self._arena, offset, size)
        return self._weights[name]

    def _dispatch(self, kernel: Kernel, places: Mapping[Value, _Bound]) -> None:
        parts = (*kernel.reads, *kernel.writes)
        bound = [places[part.value].part(part) for part in parts]
        if kernel.reads_words:
            bound.append(self._numbers_of(kernel))
        self.used |= kernel.features
        number = self._tables.kernel(
            kernel.name,
            kernel.code,
            "main",
            list(enumerate(kernel.bindings)),
            [part.size for part in bound],
            {},
            Workgroup(),  # within the limits that it was compiled for
            ends=True,
        )
        self._dispatches.append(_Dispatch(number, tuple(bound), kernel.workgroups, kernel.times))

    def _numbers_of(self, kernel: Kernel) -> _Bound:
        row = np.array(kernel.numbers, np.uint32).tobytes()
        offset, size = aligned(len(self._words)), -(-len(row) // 16) * 16
        self._words += bytes(offset - len(self._words)) + row.ljust(size, b"\0")
        return _Bound(self._numbers, offset, size)

    def _copy(self, given: _Bound, copied: _Bound) -> None:
        for offset, size in parts_of(given.size, self._features.binding_bytes):
            bound = tuple(_Bound(p.owner, p.offset + offset, size) for p in (given, copied))
            kernel = self._tables.kernel(
                "copy",
                COPY,
                "main",
                [(0, "read-only-storage"), (1, "storage")],
                [size, size],
                {},
                Workgroup((COPY_WORKGROUP, 1, 1)),
            )
            groups = grid(-(-size // (4 * COPY_WORKGROUP)), self._features.grid)
            self._dispatches.append(_Dispatch(kernel, bound, groups))

    def finish(self, arguments: Sequence[Slot]) -> tuple[tuple[BufferPlan, ...], tuple[Step, ...]]:
        """The buffers, numbered in the order in which steps use them, and the steps."""
        if self._words:
            words = np.frombuffer(bytes(self._words), np.uint32)
            name = self._tables.tensor("numbers", words, "uint32")
            self._numbers.size = len(self._words)
            self._numbers.contents.append(Contents(name, 0))
        given = {slot: number for number, slot in enumerate(arguments)}
        numbers: dict[Slot | _Buffer, int] = {}

        def place(bound: _Bound) -> Place:
            if bound.owner in given:
                return Place("argument", given[bound.owner], bound.offset, bound.size)
            number = numbers.setdefault(bound.owner, len(numbers))
            return Place("buffer", number, bound.offset, bound.size)

        steps = tuple(
            Step(d.kernel, tuple(map(place, d.bound)), d.workgroups, d.times)
            for d in self._dispatches
        )
        return tuple(map(self._buffer, numbers)), steps

    def _buffer(self, owner: Slot | _Buffer) -> BufferPlan:
        if isinstance(owner, _Buffer):
            return BufferPlan(owner.size, owner.usage, tuple(owner.contents))
        contents: tuple[Contents, ...] = ()
        if owner.initial is not None:
            name = self._tables.tensor("buffer", owner.initial, owner.descriptor.data_type)
            contents = (Contents(name, 0),)
        return BufferPlan(buffer_bytes(owner.descriptor), "storage", contents)


def _whole(slot: Slot) -> _Bound:
    return _Bound(slot, 0, buffer_bytes(slot.descriptor))
