"""Shape-generic compilation: one set of kernels for many sizes of a graph's open dimensions.

Compiling takes most of the time until a graph runs for new sizes. It is traced for one set of sizes
(`shape_tracing.py`), and its result serves all sizes that meet the trace's conditions. Kernels read
the numbers that follow from sizes from a uniform buffer, as in `pipeline_sharing.py`, so pipelines
serve all these sizes, too.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from webnn_py.core.gil_yield import checkpoints
from webnn_py.core.messages import LOG, describe_error
from webnn_py.core.shape_tracing import Numbers, Trace, calculated, marks_in
from webnn_py.core.shapes import check_dimensions
from webnn_py.engines.webgpu.compiler.compiled import (
    Compiled,
    Tell,
    compile_graph,
    written,
)
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
from webnn_py.engines.webgpu.compiler.legalize.legalize import legalize
from webnn_py.engines.webgpu.compiler.pipeline_sharing import reading
from webnn_py.engines.webgpu.compiler.template import Template
from webnn_py.engines.webgpu.program.pieces import Literal, NumberType, Piece, word_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Node, Value, make_graph
from webnn_py.ops.bind_sizes import at_sizes

MAX_READ_NUMBERS = 512
"""Numbers that a kernel reads at most; with more, it is compiled for its sizes."""

MAX_TRACES = 64
"""Traces of a graph that are kept, the most recently used."""

Sizes = Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A number that a kernel reads.

    Attributes:
        mark: The mark of the number.
        type: The type of its literal.
    """

    mark: int
    type: NumberType

    def word(self, numbers: Numbers) -> int:
        """Return the word that the kernel reads."""
        return word_of(numbers[self.mark], self.type)


class CompiledAlike:
    """A graph compiled for all sizes that meet the conditions of a trace.

    Args:
        graph: The graph after passes, with open dimensions.
        sizes: The traced sizes.
        features: The devices.
        tell: As for `compile_graph`.
        for_any: As for `Trace`.

    Attributes:
        numbers: Gives the numbers for a set of sizes, and how many estimates do not hold for it;
            None for sizes that violate a condition.
        template: The parts that all sizes share.
    """

    def __init__(
        self, graph: Graph, sizes: Sizes, features: Features, tell: Tell, for_any: bool
    ) -> None:
        self._features = features
        made: dict[str, tuple[Kernel, Sequence[Read]]] = {}

        def mark(kernel: Kernel) -> None:
            made[kernel.code] = reading_marks(kernel, trace, features)
            tell(made[kernel.code][0])

        with Trace(sizes, for_any) as trace:
            self._graph = legalize(_checked(at_sizes(graph, trace.sizes)), features)
            kernels = written(self._graph, features, mark)
            self._reads: dict[Read, int] = {}
            self.template = Template.of(
                self._graph,
                features,
                [_with_code(kernel, made[kernel.code][0]) for kernel in kernels],
                [tuple(map(self._place_of, made[kernel.code][1])) for kernel in kernels],
            )
        self._open = {value for value in self._values() if [*marks_in(value.shape)]}
        self.numbers = trace.calculate(self._marks())

    def _place_of(self, read: Read) -> int:
        """Return the index of a number among all that kernels read."""
        return self._reads.setdefault(read, len(self._reads))

    def _values(self) -> Iterator[Value]:
        yield from self._graph.inputs
        for node in self._graph.nodes:
            yield from node.outputs
        for kernel in self.template.kernels:
            yield from (part.value for part in (*kernel.reads, *kernel.writes))

    def _marks(self) -> Iterator[int]:
        for value in self._open:
            yield from marks_in(value.shape)
        for node in checkpoints(self._graph.nodes):
            for options in (node.given, node.inferred):
                yield from marks_in(tuple(options.values()))
        yield from (read.mark for read in self._reads)
        yield from marks_in(tuple(self.template.sizes.values()))
        for kernel in self.template.kernels:
            yield from marks_in((*kernel.workgroups, kernel.times))
            for part in (*kernel.reads, *kernel.writes):
                yield from marks_in((part.offset, part.size))

    def at(self, numbers: Numbers, far: int) -> Compiled:
        """Return the graph compiled for the sizes with these numbers."""
        at, graph, template = _At(numbers, self._open), self._graph, self.template
        words = [read.word(numbers) for read in self._reads]
        outputs = [(name, at.value(value)) for name, value in graph.outputs]
        ends = make_graph(map(at.value, graph.inputs), graph.constants, (), outputs)

        def make_kernels() -> Sequence[Kernel]:
            each = zip(template.kernels, template.reads, strict=True)
            return [at.kernel(kernel, [words[place] for place in reads]) for kernel, reads in each]

        return Compiled(
            ends,
            self._features,
            template,
            words,
            make_kernels,
            lambda: ends.replace(nodes=[at.node(node) for node in graph.nodes]),
            numbers,
            far > 0,
        )


def _checked(graph: Graph) -> Graph:
    """Return a graph after checking its tensors against the limits, as conditions of the trace."""
    for node in checkpoints(graph.nodes):
        for value in node.outputs:
            check_dimensions(value.shape, value.data_type)
    return graph


class _At:
    """Substitution of the traced numbers of values, kernels and nodes for one set of sizes.

    Args:
        numbers: All traced numbers for these sizes.
        opened: The values whose shapes have traced numbers.
    """

    def __init__(self, numbers: Numbers, opened: Set[Value]) -> None:
        self._numbers = numbers
        self._open = opened
        self._values: dict[Value, Value] = {}

    def value(self, value: Value) -> Value:
        """Return the value for these sizes, one object per value."""
        if value not in self._open:
            return value
        made = self._values.get(value)
        if made is None:
            shape = calculated(value.shape, self._numbers)
            made = self._values[value] = Value(value.data_type, shape, value.name)
        return made

    def kernel(self, kernel: Kernel, words: Iterable[int]) -> Kernel:
        """Return a kernel with the words that it reads."""
        return dataclasses.replace(
            kernel,
            reads=tuple(map(self._part, kernel.reads)),
            writes=tuple(map(self._part, kernel.writes)),
            workgroups=calculated(kernel.workgroups, self._numbers),
            times=calculated(kernel.times, self._numbers),
            numbers=tuple(words),
            roots=tuple(map(self.value, kernel.roots)),
        )

    def _part(self, part: Part) -> Part:
        offset, size = calculated((part.offset, part.size), self._numbers)
        return Part(self.value(part.value), offset, size)

    def node(self, node: Node) -> Node:
        """Return a node with the options and values that its traced ones have for these sizes."""
        inputs = tuple(None if value is None else self.value(value) for value in node.inputs)
        given, inferred = (
            {name: calculated(option, self._numbers) for name, option in options.items()}
            for options in (node.given, node.inferred)
        )
        outputs = tuple(map(self.value, node.outputs))
        return Node(node.op, inputs, given, outputs, node.label, inferred)


def _with_code(kernel: Kernel, other: Kernel) -> Kernel:
    """Return a kernel with the code of another one, which no stage rewrites."""
    return dataclasses.replace(kernel, code=other.code, reads_words=other.reads_words, shader=None)


def reading_marks(
    kernel: Kernel, trace: Trace, features: Features
) -> tuple[Kernel, Sequence[Read]]:
    """Return a kernel that reads its traced numbers, and these numbers.

    Numbers that no invocation can read become conditions.
    """
    shader = kernel.shader
    assert shader is not None
    if not any(code.is_traced for code in shader.codes):
        return kernel, ()
    codes = [code.replaced(lambda piece: _kept(piece, trace)) for code in shader.codes]
    found = {
        (number, place): Read(literal.mark, literal.type)
        for number, code in enumerate(codes)
        for place, literal in code.literals.items()
        if literal.mark is not None
    }
    places = {read: place for place, read in enumerate(dict.fromkeys(found.values()))}
    if len(places) > MAX_READ_NUMBERS:
        codes = [code.replaced(_exactly) for code in codes]
        found, places = {}, {}
    plain = kernel.with_shader(shader.with_codes(codes))
    if not found:
        return plain, ()
    words = {place: places[read] for place, read in found.items()}
    return reading(plain, words, features), list(places)


def _exactly(piece: Piece) -> Piece:
    """Return the number of a literal for the traced sizes; other pieces as they are."""
    return piece.exactly() if isinstance(piece, Literal) else piece


def _kept(piece: Piece, trace: Trace) -> Piece:
    """Return a piece, or its number if that cannot be read."""
    if isinstance(piece, Literal) and piece.mark is not None and piece.type in ("li", "lu"):
        is_word = 0 <= trace.at(piece.mark) < 1 << 31
        return piece if is_word else piece.exactly()
    return piece


class CompiledForSizes:
    """Compiler of one graph with open dimensions for sets of sizes, safe for any thread.

    Args:
        features: The devices.
        is_at_hand: Whether a device has the pipelines of a template.
    """

    def __init__(self, features: Features, is_at_hand: Callable[[Template], bool]) -> None:
        self._features = features
        self._is_at_hand = is_at_hand
        self._made: list[CompiledAlike] = []
        self._lock = threading.Lock()

    def known(self, sizes: Sizes) -> Compiled | None:
        """Return the graph for a set of sizes if an earlier compilation serves it, else None.

        Compilations whose pipelines are at hand come first, then those with the best estimates.
        """
        with self._lock:
            made = list(self._made)
        at_hand = [alike for alike in made if self._is_at_hand(alike.template)]
        found = _least_far(at_hand, sizes) or _least_far(made, sizes)
        if found is None:
            return None
        alike, numbers, far = found
        self._keep(alike)
        return alike.at(numbers, far)

    def compile(
        self, graph: Graph, sizes: Sizes, fixed: Graph, tell: Tell, for_any: bool
    ) -> Compiled:
        """Compile the graph for a set of sizes, and for all other sizes that this serves.

        Args:
            graph: The graph after passes, with open dimensions.
            sizes: Sizes by name.
            fixed: The graph recorded for these sizes.
            tell: As for `compile_graph`.
            for_any: As for `Trace`.
        """
        made = self._traced(graph, sizes, tell, for_any)
        return compile_graph(fixed, self._features, tell) if made is None else made

    def compile_ahead(self, graph: Graph, sizes: Sizes) -> Compiled | None:
        """Compile the graph for any sizes near these.

        Args:
            graph: The graph after passes, with open dimensions.
            sizes: Sizes by name.

        Returns:
            The compiled graph; None if an earlier compilation serves these sizes, or it fails.
        """
        if self.known(sizes) is not None:
            return None
        return self._traced(graph, sizes, lambda kernel: None, for_any=True)

    def _traced(self, graph: Graph, sizes: Sizes, tell: Tell, for_any: bool) -> Compiled | None:
        try:
            alike = CompiledAlike(graph, sizes, self._features, tell, for_any)
            found = alike.numbers(sizes)
        except Exception as error:  # code that needs plain numbers
            LOG.info("kernels are compiled for each set of sizes: %s", describe_error(error))
            return None
        if found is None:
            return None
        self._keep(alike)
        return alike.at(*found)

    def _keep(self, alike: CompiledAlike) -> None:
        """Keep a compilation as the most recently used."""
        with self._lock:
            others = [other for other in self._made if other is not alike]
            self._made = [*others[1 - MAX_TRACES :], alike]


def _least_far(
    made: Sequence[CompiledAlike], sizes: Sizes
) -> tuple[CompiledAlike, Numbers, int] | None:
    """Return the compilation with the fewest wrong estimates, its numbers, and that count."""
    best: tuple[CompiledAlike, Numbers, int] | None = None
    for alike in reversed(made):
        found = alike.numbers(sizes)
        if found is not None and (best is None or found[1] < best[2]):
            best = alike, *found
            if not found[1]:
                break
    return best
