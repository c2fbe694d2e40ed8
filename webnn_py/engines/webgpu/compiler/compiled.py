"""Compiled graphs: kernels, and a plan of the buffers between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from webnn_py.core.shape_tracing import Numbers
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_cache import KnownKernels
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.compiler.template import Template, steps_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Node, Value
from webnn_py.memory.plan import Plan, lifetimes, peak_bytes

Tell = Callable[[Kernel], None]


@dataclass(frozen=True)
class Compiled:
    """A graph compiled for one set of device features and one set of sizes.

    Runs need only `template` and the numbers for these sizes. The rest is made on first use.

    Attributes:
        ends: The inputs, constants and outputs of `graph`, without its nodes.
        features: Features of the device that the code relies on.
        template: The parts that other sizes share.
        words: All words that kernels read from a uniform buffer.
        make_kernels: Makes `kernels`.
        make_graph: Makes `graph`.
        numbers: The template's traced numbers for these sizes.
        is_far: Estimates are for sizes far from these; compiling for these may be faster.
    """

    ends: Graph
    features: Features
    template: Template
    words: Sequence[int]
    make_kernels: Callable[[], Sequence[Kernel]]
    make_graph: Callable[[], Graph]
    numbers: Numbers = field(default_factory=dict)
    is_far: bool = False

    @staticmethod
    def of(graph: Graph, features: Features, kernels: Sequence[Kernel]) -> Compiled:
        """Return a graph whose kernels are written for its sizes.

        Raises:
            NotSupportedError: A kernel needs more bindings than the devices have.
        """
        words: list[int] = []
        reads: list[range] = []
        for kernel in kernels:
            reads.append(range(len(words), len(words) + len(kernel.numbers)))
            words += kernel.numbers
        template = Template.of(graph, features, kernels, reads)
        return Compiled(graph, features, template, words, lambda: kernels, lambda: graph)

    @functools.cached_property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels in the order in which they run."""
        return self.make_kernels()

    @property
    def constants(self) -> Sequence[Value]:
        """The constants that kernels read."""
        return self.template.constants

    @functools.cached_property
    def states(self) -> Mapping[Value, Value]:
        """The outputs whose kernels write rows alone, each with the input that it continues.

        The input's contents must lie in the output's buffer before.
        """
        template, outputs = self.template, (value for _, value in self.ends.outputs)
        inner = (*template.inputs, *template.outputs)
        ours = dict(zip(inner, (*self.ends.inputs, *outputs), strict=True))
        return {ours[made]: ours[read] for made, read in template.states.items()}

    @functools.cached_property
    def plan(self) -> Plan[Value]:
        """The buffer of each intermediate value of the template."""
        template, sizes = self.template, self.value_sizes()
        most = peak_bytes(lifetimes(steps_of(template.kernels), sizes), sizes)
        return Plan(template.slots, template.buffer_sizes(sizes), most)

    def value_sizes(self) -> dict[Value, int]:
        """Return the bytes of each intermediate value of the template."""
        return self.template.value_sizes(self.numbers)

    @functools.cached_property
    def graph(self) -> Graph:
        """The graph after legalization, which the kernels compute."""
        return self.make_graph()

    def code(self) -> str:
        """Return the WGSL of every kernel, each text once."""
        return "\n".join(dict.fromkeys(f"// {k.name}\n{k.code}" for k in self.kernels))

    def nodes(self) -> list[tuple[Node, ...]]:
        """Return the nodes that each kernel computes."""
        made = self.nodes_of_roots()
        return [
            tuple(dict.fromkeys(node for root in kernel.roots for node in made[root]))
            for kernel in self.kernels
        ]

    def nodes_of_roots(self) -> dict[Value, tuple[Node, ...]]:
        """Return the nodes that compute each root, the root's own node last.

        A concat without a kernel belongs to its readers.
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
        """List every kernel with its workgroups and buffers, and the plan's sizes.

        "%3 in %7" is a value that lies in the buffer of another.
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
        features: The devices.
        tell: Called with each kernel as it is written, once per text. Most are final.
        cached: Use the cache of kernels on disk.

    Raises:
        NotSupportedError: A kernel needs more than the devices have.
    """
    legal = legalize(graph, features)
    kernels = (_known_kernels if cached else _write)(legal, features, tell)
    return Compiled.of(legal, features, kernels)


def _known_kernels(graph: Graph, features: Features, tell: Tell) -> Sequence[Kernel]:
    """Return the kernels of a graph from the cache on disk, or write and cache them."""
    known = KnownKernels(graph, features)
    found: Sequence[Kernel] | None = known.load()
    if found is None:
        found = _write(graph, features, tell)
        known.store(found)
    return found


def _write(graph: Graph, features: Features, tell: Tell) -> Sequence[Kernel]:
    """Return the kernels of a graph; those that differ in numbers alone share their code."""
    from webnn_py.engines.webgpu.compiler.pipeline_sharing import share

    shared = share(written(graph, features, tell), features)
    return [kernel.without_shader() for kernel in shared]


def written(graph: Graph, features: Features, tell: Tell = lambda kernel: None) -> list[Kernel]:
    """Return the kernels of a graph, each with all its numbers in its code."""
    from webnn_py.engines.webgpu.compiler.horizontal_fusion import fuse_abreast
    from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of

    written: list[Kernel] = []
    codes: set[str] = set()
    for kernel in fuse_abreast(kernels_of(graph, features), features):
        written.append(kernel)
        if kernel.code not in codes:
            codes.add(kernel.code)
            tell(kernel)
    return written
