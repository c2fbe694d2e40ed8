"""A program as it was recorded, before it is compiled: graphs and kernels over what they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.engines.webgpu.program.plan import Access, Argument
from webnn_py.engines.webgpu.program.wgsl_interface import EntryPoint
from webnn_py.ir import Array, Descriptor, Graph


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """What steps read and write: an argument, or a buffer of the program's own.

    Attributes:
        descriptor: Data type and shape.
        name: An argument's; None for a buffer.
        initial: What a buffer holds at first; None for zeros.
    """

    descriptor: Descriptor
    name: str | None = None
    initial: Array | None = None


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One run of a graph.

    Attributes:
        recipe: The graph, without open dimensions.
        inputs: What each is read from, by name.
        outputs: What each is written to, by name.
    """

    recipe: Graph
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One dispatch of a kernel of the user's.

    Attributes:
        code: WGSL.
        name: Of the entry point.
        interface: What that uses.
        constants: Pipeline-overridable constants, by what each is set by.
        slots: What is bound, each to the binding of its place.
        workgroups: The dispatch.
    """

    code: str
    name: str
    interface: EntryPoint
    constants: Mapping[str, float]
    slots: tuple[Slot, ...]
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be compiled.

    Attributes:
        arguments: What is given at each run.
        sections: Steps, and how often they run.
    """

    arguments: Sequence[Slot]
    sections: Sequence[tuple[Sequence[GraphStep | KernelStep], int]]

    @property
    def steps(self) -> list[GraphStep | KernelStep]:
        """Every step, once for each section that it is in."""
        return [step for steps, _ in self.sections for step in steps]

    def described_arguments(self) -> tuple[Argument, ...]:
        """The arguments, and what the steps do with them.

        Raises:
            ValidationError: One is used by no step.
        """
        return tuple(
            Argument(str(slot.name), slot.descriptor.data_type, slot.descriptor.shape, *access)
            for slot in self.arguments
            for access in [self._access(slot)]
        )

    def _access(self, slot: Slot) -> tuple[Access, bool]:
        """What the steps do with an argument, and whether the first of them only reads it."""
        uses = [use for step in self.steps if (use := _use(step, slot)) is not None]
        if not uses:
            raise ValidationError(f"argument {shown(slot.name)} is used by no step")
        if all(use == "read" for use in uses):
            return "read", True
        return ("write" if uses[0] == "write" else "read-write"), uses[0] == "read"


def _use(step: GraphStep | KernelStep, slot: Slot) -> Access | None:
    """What a step does with a slot, if anything. A graph writes all of what it writes."""
    if isinstance(step, GraphStep):
        if slot in step.inputs.values():
            return "read-write" if slot in step.outputs.values() else "read"
        return "write" if slot in step.outputs.values() else None
    found = [b for b in step.interface.bindings if step.slots[b.binding] is slot]
    if not found:
        return None
    return "read-write" if any(binding.written for binding in found) else "read"
