"""Templates: the kernels and buffers of a compiled graph, for all sizes that it serves.

The numbers of a template for several sets of sizes are traced, and calculated for each set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from webnn_py.core.errors import NotSupportedError
from webnn_py.core.shape_tracing import Numbers, calculation, traced_value
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.state_in_place import states_in_place
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Graph, Value
from webnn_py.memory.plan import Plan, Steps, plan_buffers


@dataclass(frozen=True, eq=False)
class Template:
    """The parts of a compiled graph that are the same for all sizes.

    Attributes:
        inputs: Inputs of the graph.
        outputs: Outputs of the graph.
        kernels: Kernels in the order in which they run.
        reads: For each kernel, the numbers of the words that it reads from a uniform buffer.
        constants: The constants that kernels read.
        slots: The number of each intermediate value's buffer, the largest buffer first.
        sizes: Bytes of each intermediate value.
        states: The outputs of `states_in_place`.
    """

    inputs: Sequence[Value]
    outputs: Sequence[Value]
    kernels: Sequence[Kernel]
    reads: Sequence[Sequence[int]]
    constants: Sequence[Value]
    slots: Mapping[Value, int]
    sizes: Mapping[Value, int]
    states: Mapping[Value, Value]

    @staticmethod
    def of(
        graph: Graph,
        features: Features,
        kernels: Sequence[Kernel],
        reads: Sequence[Sequence[int]],
    ) -> Template:
        """Return a template whose buffers are planned for the traced sizes, and valid for others.

        Args:
            graph: The graph.
            features: The devices.
            kernels: Kernels in the order in which they run.
            reads: As the attribute.

        Raises:
            NotSupportedError: A kernel needs more bindings than the devices have.
        """
        _check_bindings(kernels, features)
        read = {part.value for kernel in kernels for part in kernel.reads}
        outputs = [value for _, value in graph.outputs]
        own = {part.value for kernel in kernels for part in kernel.writes}.difference(outputs)
        sizes = {value: buffer_bytes(value) for value in own}
        now = {value: traced_value(size) for value, size in sizes.items()}
        return Template(
            graph.inputs,
            outputs,
            kernels,
            reads,
            [value for value in graph.constants if value in read],
            _largest_first(plan_buffers(steps_of(kernels), now)),
            sizes,
            states_in_place(graph, features),
        )

    @functools.cached_property
    def _calculate_sizes(self) -> Callable[[Numbers], list[int]]:
        return calculation([*self.sizes.values()])

    def value_sizes(self, numbers: Numbers) -> dict[Value, int]:
        """Return the bytes of each intermediate value for the numbers of one set of sizes."""
        return dict(zip(self.sizes, self._calculate_sizes(numbers), strict=True))

    def buffer_sizes(self, sizes: Mapping[Value, int]) -> tuple[int, ...]:
        """Return the bytes of each buffer, for values of these bytes."""
        buffers = [0] * (max(self.slots.values(), default=-1) + 1)
        for value, size in sizes.items():
            slot = self.slots[value]
            buffers[slot] = max(buffers[slot], size)
        return tuple(buffers)


def _largest_first(plan: Plan[Value]) -> dict[Value, int]:
    """Return a plan's slots, the largest first: buffers of several graphs then fit each other."""
    slots = sorted(range(len(plan.sizes)), key=plan.sizes.__getitem__, reverse=True)
    ranks = {slot: rank for rank, slot in enumerate(slots)}
    return {value: ranks[slot] for value, slot in plan.slots.items()}


def steps_of(kernels: Sequence[Kernel]) -> Steps[Value]:
    """Return the values that each kernel reads and writes."""
    return [
        ([part.value for part in kernel.reads], [part.value for part in kernel.writes])
        for kernel in kernels
    ]


def _check_bindings(kernels: Sequence[Kernel], features: Features) -> None:
    limit = features.max_bindings
    for kernel in kernels:
        count = len(kernel.reads) + len(kernel.writes)
        if count > limit:
            raise NotSupportedError(
                f"{kernel.name} needs {count} storage buffers; this device's"
                f" max-storage-buffers-per-shader-stage is {limit}"
                f" (its max-storage-buffer-binding-size {features.binding_bytes})"
            )
