"""What the compiler makes of a graph: kernels, and a plan of the buffers between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.core.errors import NotSupportedError
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_cache import KnownKernels
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.program.storage import Features, buffer_bytes
from webnn_py.ir import Graph, Node, Value
from webnn_py.memory.plan import Plan, plan_buffers

Tell = Callable[[Kernel], None]


@dataclass(frozen=True)
class Compiled:
    """A graph compiled for devices with some features.

    Attributes:
        ends: Inputs, constants and outputs, as of `graph`, without nodes.
        features: What the code relies on.
        kernels: In the order in which they run.
        constants: The constants that kernels read.
        plan: Which buffer each intermediate value lies in.
        make_graph: Makes `graph`.
        is_far: What was estimated is of sizes far from these; compiled for them, it may be faster.
    """

    ends: Graph
    features: Features
    kernels: Sequence[Kernel]
    constants: Sequence[Value]
    plan: Plan[Value]
    make_graph: Callable[[], Graph]
    is_far: bool = False

    @functools.cached_property
    def graph(self) -> Graph:
        """What the kernels compute, in operators that they can."""
        return self.make_graph()

    def code(self) -> str:
        """The WGSL of every kernel, each once."""
        return "\n".join(dict.fromkeys(f"// {k.name}\n{k.code}" for k in self.kernels))

    def nodes(self) -> list[tuple[Node, ...]]:
        """What each kernel computes: the nodes of its roots."""
        made = self.nodes_of_roots()
        return [
            tuple(dict.fromkeys(node for root in kernel.roots for node in made[root]))
            for kernel in self.kernels
        ]

    def nodes_of_roots(self) -> dict[Value, tuple[Node, ...]]:
        """The node of each root, after those on the way to it.

        A concat that has no kernel is with its readers.
        """
        producers = self.graph.producers
        roots = {root for kernel in self.kernels for root in kernel.roots}
        made: dict[Value, tuple[Node, ...]] = {}
        for root in roots:
            found: dict[Node, None] = {}
            todo = [root]
            while todo:
                node = producers[todo.pop()]
                found[node] = None
                todo += [
                    value
                    for value in node.operands
                    if value in producers and value not in roots and producers[value] not in found
                ]
            made[root] = tuple(reversed(found))
        return made

    def describe(self) -> str:
        """Every kernel with its workgroups and buffers, and the plan's sizes.

        "%3 in %7" is a value that lies in another one's buffer.
        """
        known = {*self.graph.inputs, *self.graph.constants, *self.graph.producers}
        targets = dict.fromkeys(part.value for kernel in self.kernels for part in kernel.writes)
        scratch = [value for value in targets if value not in known]
        numbered = {value: f"%scratch{number}" for number, value in enumerate(scratch)}

        def name(value: Value) -> str:
            return numbered.get(value) or self.graph.names[value]

        lines = []
        for number, kernel in enumerate(self.kernels):
            reads = ", ".join(dict.fromkeys(name(part.value) for part in kernel.reads))
            x, y, z = kernel.workgroups
            notes = f", {kernel.times} times" if kernel.times > 1 else ""
            notes += f", tuned: {kernel.tile}" if kernel.tile else ""
            written = [part.value for part in kernel.writes]
            target = ", ".join(map(name, written))
            if len(kernel.roots) == 1 and written[0] in known and kernel.roots[0] not in written:
                target = f"{name(kernel.roots[0])} in {target}"
            lines.append(f"{number}: {kernel.name}<{x},{y},{z}>({reads}) -> {target}{notes}")
        sizes = ", ".join(map(str, self.plan.sizes))
        total, bound = self.plan.total, self.plan.bound
        text = f"intermediate buffers: {total} bytes ({sizes}), up to {bound} in use at once"
        return "\n".join([*lines, text])


def compile_graph(
    graph: Graph,
    features: Features,
    tell: Tell = lambda kernel: None,
    cached: bool = False,
) -> Compiled:
    """Compile a graph for devices with these features.

    Args:
        graph: The graph.
        features: What the devices have.
        tell: Told of each kernel as it is written, alike ones once; most stay as they are.
        cached: Take kernels from disk that were written before, and keep those that are written.

    Raises:
        NotSupportedError: A kernel would need more than the devices have.
    """
    legal = legalize(graph, features)
    kernels = (_known_kernels if cached else _write)(legal, features, tell)
    return planned(legal, features, kernels, lambda: legal)


def planned(
    ends: Graph,
    features: Features,
    kernels: Sequence[Kernel],
    make_graph: Callable[[], Graph],
    is_far: bool = False,
) -> Compiled:
    """A graph and its kernels, with a plan of their buffers; arguments as of `Compiled`.

    Raises:
        NotSupportedError: A kernel would need more than the devices have.
    """
    _check_bindings(kernels, features)
    read = {part.value for kernel in kernels for part in kernel.reads}
    constants = [value for value in ends.constants if value in read]
    outputs = {value for _, value in ends.outputs}
    own = {part.value for kernel in kernels for part in kernel.writes} - outputs
    steps = [
        ([part.value for part in kernel.reads], [part.value for part in kernel.writes])
        for kernel in kernels
    ]
    sizes = {value: buffer_bytes(value) for value in own}
    plan = plan_buffers(steps, sizes)
    return Compiled(ends, features, kernels, constants, plan, make_graph, is_far)


def _known_kernels(graph: Graph, features: Features, tell: Tell) -> Sequence[Kernel]:
    """The kernels of a graph, from disk if they are there."""
    known = KnownKernels(graph, features)
    found: Sequence[Kernel] | None = known.recall()
    if found is None:
        found = _write(graph, features, tell)
        known.remember(found)
    return found


def _write(graph: Graph, features: Features, tell: Tell) -> Sequence[Kernel]:
    """The kernels of a graph, alike ones with the same code."""
    from webnn_py.engines.webgpu.compiler.sharing import share

    return share(written(graph, features, tell), features)


def written(graph: Graph, features: Features, tell: Tell = lambda kernel: None) -> list[Kernel]:
    """The kernels of a graph, each with all its numbers in its code."""
    from webnn_py.engines.webgpu.compiler.abreast import fuse_abreast
    from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of

    written: list[Kernel] = []
    codes: set[str] = set()
    for kernel in fuse_abreast(kernels_of(graph, features), features):
        written.append(kernel)
        if kernel.code not in codes:
            codes.add(kernel.code)
            tell(kernel)
    return written


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
