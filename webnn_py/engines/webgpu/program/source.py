"""A recorded program before compilation: graphs and kernels with their operands."""

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
    """An operand of steps: an argument, or a buffer of the program.

    Attributes:
        descriptor: Data type and shape.
        name: Name of an argument; None for a buffer.
        initial: Initial contents of a buffer; None for zeros.
    """

    descriptor: Descriptor
    name: str | None = None
    initial: Array | None = None


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One run of a graph.

    Attributes:
        recipe: The graph, without open dimensions.
        inputs: The source of each input, by name.
        outputs: The target of each output, by name.
    """

    recipe: Graph
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One dispatch of the user's own kernel.

    Attributes:
        code: WGSL.
        name: Name of the entry point.
        interface: Bindings and constants of the entry point.
        constants: Pipeline-overridable constants, by key.
        slots: The bound operands, by binding number.
        workgroups: Workgroups along x, y and z.
    """

    code: str
    name: str
    interface: EntryPoint
    constants: Mapping[str, float]
    slots: tuple[Slot, ...]
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A program to compile.

    Attributes:
        arguments: The arguments of a run.
        sections: Steps, and how often they run.
    """

    arguments: Sequence[Slot]
    sections: Sequence[tuple[Sequence[GraphStep | KernelStep], int]]

    @property
    def steps(self) -> list[GraphStep | KernelStep]:
        """Every step, once for each section that contains it."""
        return [step for steps, _ in self.sections for step in steps]

    def described_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments with the access that the steps need.

        Raises:
            ValidationError: No step uses an argument.
        """
        return tuple(
            Argument(str(slot.name), slot.descriptor.data_type, slot.descriptor.shape, *access)
            for slot in self.arguments
            for access in [self._access(slot)]
        )

    def _access(self, slot: Slot) -> tuple[Access, bool]:
        """Return the access of all steps to an argument, and whether the first one reads it."""
        uses = [use for step in self.steps if (use := _use(step, slot)) is not None]
        if not uses:
            raise ValidationError(f"argument {shown(slot.name)} is used by no step")
        if all(use == "read" for use in uses):
            return "read", True
        return ("write" if uses[0] == "write" else "read-write"), uses[0] == "read"


def _use(step: GraphStep | KernelStep, slot: Slot) -> Access | None:
    """Return a step's access to a slot, if any. A graph overwrites its outputs completely."""
    if isinstance(step, GraphStep):
        if slot in step.inputs.values():
            return "read-write" if slot in step.outputs.values() else "read"
        return "write" if slot in step.outputs.values() else None
    found = [b for b in step.interface.bindings if step.slots[b.binding] is slot]
    if not found:
        return None
    return "read-write" if any(binding.written for binding in found) else "read"
