"""Writing one kernel: bindings, functions, and bodies in which values are loaded or computed.

A kernel computes one root value. Values that lie in buffers are bound; every other value on the way
is computed where it is read, by the lowering of its node, one `let` a value and index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, overload

from webnn_py.core.errors import NotSupportedError
from webnn_py.core.gil_yield import checkpoint
from webnn_py.core.traced_queries import divides
from webnn_py.engines.webgpu.compiler.code import prelude
from webnn_py.engines.webgpu.compiler.code.affine import Affine
from webnn_py.engines.webgpu.compiler.code.functions import is_word, names_word
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.inplace_concat import Places
from webnn_py.engines.webgpu.compiler.kernel import (
    Binding,
    EntryPoint,
    Feature,
    Function,
    Kernel,
    Part,
    Shader,
    reachable,
)
from webnn_py.engines.webgpu.compiler.loop_bounds import END_LOOP, LONG, MAX_ITERATIONS, loop
from webnn_py.engines.webgpu.program.storage import Features, Storage, parts_of, storage_of
from webnn_py.ir import Graph, Node, Value

EIGHT = "vec4<u32>"
"""The type of eight halves as they lie in memory: WGSL has none that is loaded at once."""

FOURS = ("f32", "f16", "i32", "u32")
"""Elements of which four lie in a vector."""

MOST_UNNAMED = 160
"""Characters of an index up to which it has no name where four are read at once: a name hides what
is known of its remainder."""

MOST_COPIES = 16
"""Copies of a loop's body that are written out to keep the loop short."""

Lowering = Callable[["Body", Node, int, Index], str]
"""Writes what computes the element at a flat index of a node's n-th output; returns its text."""


class KernelBuilder:
    """One kernel under construction.

    Args:
        graph: The whole graph.
        producers: The node that makes each value.
        stored: Whether a value lies in a buffer.
        places: Which lie in others' buffers.
        lowerings: By operator, what computes one element.
        features: The device.
        root: The value that the kernel writes. It may be a scratch value, which no node makes and
            only the kernels of one root know.
        tile: The name of the tile that a product is to have; "" for the one that suits it.
        beside: Other products may run in the same dispatch.

    Attributes:
        scratch: By a node's output, the scratch value from which its lowering computes.
        sums: By a product, the scratch value [parts, elements] whose parts add up to it.
        spare: How many buffers may be bound twice for `fours`.
        vector_out: The root is written as vec4s.
        atomic_out: The root is written by atomic functions.
    """

    def __init__(
        self,
        graph: Graph,
        producers: Mapping[Value, Node],
        stored: Callable[[Value], bool],
        places: Places,
        lowerings: Callable[[Node], Lowering],
        features: Features,
        root: Value,
        tile: str = "",
        beside: bool = False,
    ) -> None:
        self.tile = tile
        self.beside = beside
        self.graph = graph
        self.features = features
        self.root = root
        self.producers = producers
        self.places = places
        self.functions: list[Function] = []
        self.scratch: dict[Value, Value] = {}
        self.sums: dict[Value, Value] = {}
        self._stored = stored
        self._lowerings = lowerings
        self._bound: dict[Value, str] = {}
        self._runs: dict[tuple[Value, str], str] = {}  # by their type, several elements at once
        self._storages: dict[str, Storage] = {}
        self._parts: dict[Value, list[Part]] = {}
        self.spare = 0
        self.vector_out = False
        self.atomic_out = False

    def storage(self, value: Value) -> Storage:
        """How a value lies and is computed with."""
        if value.data_type not in self._storages:
            self._storages[value.data_type] = storage_of(value.data_type, self.features)
        return self._storages[value.data_type]

    def lowering(self, node: Node) -> Lowering:
        """What computes one element of a node."""
        return self._lowerings(node)

    def is_stored(self, value: Value) -> bool:
        """Whether the value is read from a buffer."""
        return value is not self.root and (value in self.sums or self._stored(value))

    def computes(self, value: Value) -> bool:
        """Whether the kernel computes a value instead of reading it from a buffer."""
        return value in self.producers and not self.is_stored(value)

    def parts(self, value: Value) -> list[Part]:
        """The bindings that a value's buffer needs."""
        value = self.places.buffer_of(value)
        if value not in self._parts:
            size = self.storage(value).buffer_bytes(value.size)
            limit = self.features.binding_bytes
            self._parts[value] = [Part(value, *part) for part in parts_of(size, limit)]
        return self._parts[value]

    def is_whole(self, value: Value) -> bool:
        """Whether one binding shows all of a value."""
        return len(self.parts(value)) == 1

    def buffer(self, value: Value) -> str:
        """The name of the buffer that holds a value, which is bound as a whole."""
        assert self.is_whole(value)
        value = self.places.buffer_of(value)
        if value not in self._bound:
            self._bound[value] = f"in{len(self._bound)}"
        return self._bound[value]

    def element(self, value: Value) -> Callable[[str], str]:
        """The expression of an array element of a stored value's buffer, by its place."""
        if value in self.sums:
            sums = self.sums[value]
            return _summed(self.element(sums), *sums.shape)
        if self.is_whole(value):
            return f"{self.buffer(value)}[{{}}]".format
        if value not in self._bound:
            self._bound[value] = f"in{len(self._bound)}"
            self.functions.insert(0, self._part_loader(value, self._bound[value]))
        return f"load_{self._bound[value]}({{}})".format

    def vector(self, value: Value) -> Callable[[str], str] | None:
        """As `element`, for vec4s of consecutive elements, where the value lies so."""
        if value in self.sums:
            sums = self.sums[value]
            at = self.vector(sums)
            return None if at is None else _summed(at, sums.shape[0], sums.shape[1] // 4)
        element = self.storage(value).element
        return self._run(value, 4, f"vec4<{element}>") if element in ("f32", "f16") else None

    def eights(self, value: Value) -> Callable[[str], str] | None:
        """The same for eight consecutive halves, as vec4<u32>: two to a word."""
        return self._run(value, 8, EIGHT) if self.storage(value).element == "f16" else None

    def _run(self, value: Value, count: int, kind: str) -> Callable[[str], str] | None:
        if not self.places.in_runs(value, count) or not self.is_whole(value):
            return None
        key = self.places.buffer_of(value), kind
        if key not in self._runs:
            self._runs[key] = f"fours{len(self._runs)}"  # not "vec2", a type
        return f"{self._runs[key]}[{{}}]".format

    def fours(self, value: Value) -> Callable[[str], str] | None:
        """The same for four elements of a stored value's buffer: a vector, or a word of bytes."""
        storage, buffer = self.storage(value), self.places.buffer_of(value)
        if storage.per_word == 4:
            return self.element(value)
        if storage.element not in FOURS or value in self.sums or storage.per_word > 1:
            return None
        kind = f"vec4<{storage.element}>"
        if (buffer, kind) not in self._runs and len(self._runs) >= self.spare:
            return None
        return self._run(buffer, 4, kind)

    def writes_vectors(self, extent: int) -> bool:
        """Whether the root can be written as vec4s along an innermost dimension of this size."""
        is_float = self.storage(self.root).element in ("f32", "f16")
        return divides(4, extent) and is_float and self.places.in_runs(self.root, 4)

    def _part_loader(self, value: Value, name: str) -> Function:
        storage = self.storage(value)
        lines = [f"fn load_{name}(i: u32) -> {storage.element} {{"]
        for number, part in enumerate(self.parts(value)):
            first, count = part.offset // storage.word_bytes, part.size // storage.word_bytes
            place = symbol("i") - first
            lines.append(f"  if (i < {first + count}u) {{ return {name}_{number}[{place}]; }}")
        lines += [f"  return {storage.element}();", "}"]
        return Function(f"load_{name}", "\n".join(lines))

    def scalar(self, value: Value) -> float | int | None:
        """The number of a constant of one element, else None."""
        array = self.graph.constants.get(value)
        return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None

    def function(self, name: str, parameters: str, result: str, body: Body) -> None:
        """Add a function made of a finished body."""
        head = f"fn {name}({parameters})" + (f" -> {result}" if result else "")
        text = head + " {\n" + "\n".join(body.lines) + "\n}"
        self.functions.append(Function(name, text))

    def finish(
        self, name: str, entry: EntryPoint, workgroups: Sequence[int], writes: Part | None = None
    ) -> Kernel:
        """Return the kernel of an entry point, with the bindings and functions that it uses."""
        main = entry.printed()
        functions = reachable(self.functions, main)
        reads = [
            (
                part,
                buffer if self.is_whole(value) else f"{buffer}_{number}",
                self.storage(value).element,
            )
            for value, buffer in self._bound.items()
            for number, part in enumerate(self.parts(value))
        ]
        reads += [(self.parts(v)[0], name, kind) for (v, kind), name in self._runs.items()]
        text = "\n".join([*(function.text for function in functions), main])
        reads = [read for read in reads if names_word(text, read[1])]
        bindings = [Binding(name, "read", f"array<{kind}>") for _, name, kind in reads]
        bindings.append(Binding("out0", "read_write", f"array<{self._written_element()}>"))
        helpers = [Function(name, prelude.FUNCTIONS[name]) for name in prelude.called(text)]
        shader = Shader(tuple(bindings), (*helpers, *functions), entry, self._features())
        x, y, z = workgroups
        target = self.parts(self.root)[0] if writes is None else writes
        kernel = Kernel.of(name, shader, (part for part, *_ in reads), [target], (x, y, z))
        iterations = shader.iterations
        if iterations > MAX_ITERATIONS:
            raise NotSupportedError(
                f"{name}: one element of {self.root} takes {iterations} rounds of a loop in the"
                f" kernel {name!r}, more than the {MAX_ITERATIONS} that every driver makes; use a"
                " smaller window, or the CPU"
            )
        return kernel

    def _features(self) -> frozenset[Feature]:
        """Return the features of the device that the types of the kernel's values need."""
        types = {
            type_
            for storage in self._storages.values()
            for type_ in (storage.element, storage.compute)
        }
        features: set[Feature] = set()
        if "f16" in types:
            features.add("shader-f16")
        if not types.isdisjoint(("i64", "u64")):
            features.add("shader-int64")
        return frozenset(features)

    def _written_element(self) -> str:
        element = self.storage(self.root).element
        element = f"vec4<{element}>" if self.vector_out else element
        return f"atomic<{element}>" if self.atomic_out else element


class Make(Protocol):
    """Begins one of the kernels of a root: it writes the root or a scratch value.

    What such a kernel writes, those after it load like any stored value. It is not zeroed.
    """

    def __call__(self, writes: Value | None = None) -> KernelBuilder:
        """The builder of a kernel that writes this value; the root if none is given."""
        ...


class Body:
    """The statements of one function.

    Values already computed are remembered by value and index, and so are indices that have names;
    what is written inside a loop or branch is forgotten at its end.

    Args:
        builder: Of the kernel.
        by_fours: What lies at a known place of four side by side is read with the others, which
            are read, too.
        times: How often an invocation calls the function: the rounds of its loops add up.
    """

    def __init__(self, builder: KernelBuilder, by_fours: bool = False, times: int = 1) -> None:
        self.builder = builder
        self._by_fours = by_fours
        self._fours: dict[tuple[Value, str], str] = {}
        self.lines: list[str] = []
        self._indent = 1
        self._count = 0
        self._around = times  # rounds of the loops around
        self._known: list[dict[tuple[Value, str], str]] = [{}]
        self._named: list[dict[str, Index]] = [{}]

    def line(self, text: str) -> None:
        """Add a statement."""
        self.lines.append("  " * self._indent + text)

    def fresh(self, hint: str = "t") -> str:
        """A new name."""
        self._count += 1
        return f"{hint}{self._count}"

    @overload
    def let(self, expression: str, hint: str = "t") -> str: ...
    @overload
    def let(self, expression: Index, hint: str = "t") -> Index: ...
    def let(self, expression: str | Index, hint: str = "t") -> str | Index:
        """Name an expression, unless it is a name or number already, or an index without need."""
        if isinstance(expression, Index):
            return self._let_index(expression, hint)
        if is_word(expression):
            return expression
        made = self.fresh(hint)
        self.line(f"let {made} = {expression};")
        return made

    def name(self, index: Index, name: str) -> None:
        """Say that an index is known as `name`."""
        self._named[-1][str(index)] = index.named(name)

    def _let_index(self, index: Index, hint: str) -> Index:
        known = self._name_of(index)
        if known.is_name or (
            self._by_fours and not known.is_call and len(str(index)) < MOST_UNNAMED
        ):
            return known
        made = index.named(self.fresh(hint))
        self.line(f"let {made} = {index};")
        self._named[-1][str(index)] = made
        return made

    def _name_of(self, index: Index) -> Index:
        """The name that an index has already, or itself."""
        if not index.is_name:
            text = str(index)
            for named in reversed(self._named):
                if text in named:
                    return named[text]
        return index

    def through(self, view: Affine, index: Index) -> Index:
        """Where a map leads: from the parts of an index if that saves divisions, else its name."""
        place = view.at(index)
        if index.is_product or str(place) == str(index):
            return place
        named = view.at(index.named("i"))
        if place.divisions < index.divisions + named.divisions:
            return place
        return view.at(self.let(index, "i"))

    def var(self, kind: str, value: str, hint: str = "acc") -> str:
        """A variable."""
        name = self.fresh(hint)
        self.line(f"var {name}: {kind} = {value};")
        return name

    @contextlib.contextmanager
    def block(self, head: str, iterations: int | None = None) -> Iterator[None]:
        """A nested block: `head { ... }`.

        Args:
            head: What stands before the brace.
            iterations: The most that it makes if it is a loop, else None.
        """
        self.line(head + " {" if iterations is None else loop(head, iterations))
        self._indent += 1
        self._known.append({})
        self._named.append({})
        yield
        self._known.pop()
        self._named.pop()
        self._indent -= 1
        self.line("}" if iterations is None else END_LOOP)

    @contextlib.contextmanager
    def loop(self, count: int, hint: str = "r", end: Index | None = None) -> Iterator[Index]:
        """A loop over 0..count-1; gives the counter. A loop of one is no loop.

        Where it would make too many rounds, its body is written out several times.

        Args:
            count: How many rounds it makes, at most.
            hint: What the counter's name begins with.
            end: Where it ends, if that is a value of the kernel and not `count`.
        """
        if count == 1:
            head = "" if end is None else f"if ({end.enclosed} > 0u)"
            with self.block(head) if head else contextlib.nullcontext():
                yield constant(0)
            return
        name = self.fresh(hint)
        counter = symbol(name, count)
        copies = min(-(-self._around * count // LONG), MOST_COPIES, count)
        iterations = -(-count // copies)
        around, self._around = self._around, self._around * iterations
        last = f"{count}u" if end is None else end.enclosed
        if copies == 1:
            with self.block(f"for (var {name} = 0u; {name} < {last}; {name}++)", iterations):
                yield counter
        else:
            first = symbol(self.fresh("first"), count)
            head = f"for (var {first} = 0u; {first} < {last}; {first} += {copies}u)"
            with self.block(head, iterations):
                begin = len(self.lines)
                with self.block(""):
                    self.line(f"let {counter} = {first};")
                    yield counter
                _, _, *body, close = self.lines[begin:]
                for copy in range(1, copies):
                    needed = end is not None or count % copies
                    guard = f"if ({first + copy} < {last})" if needed else ""
                    self.line(guard + " {")
                    self.lines += [f"  {'  ' * self._indent}let {counter} = {first + copy};"]
                    self.lines += [*body, close]
        self._around = around

    def preset(self, value: Value, index: Index | None, name: str) -> None:
        """Say that a value's element at `index`, or wherever it is read, is known as `name`."""
        self._known[-1][value, "" if index is None else str(index.below(value.size))] = name

    def load(self, value: Value, index: Index) -> str:
        """The name of a value's element at a flat index, which is in range; read or computed."""
        scalar = self.builder.scalar(value)
        storage = self.builder.storage(value)
        # A number has a name: compilers evaluate expressions of literals alone, and refuse what is
        # not finite or cannot be converted.
        at = self._name_of(index.below(value.size)) if scalar is None else constant(0)
        key, anywhere = (value, str(at)), (value, "")
        for known in reversed(self._known):
            if key in known or anywhere in known:
                return known.get(key) or known[anywhere]
        if scalar is not None:
            made = self.fresh("c")
            self.line(f"let {made} = {storage.literal(scalar)};")
        elif self.builder.computes(value):
            checkpoint()
            node = self.builder.producers[value]
            output = node.outputs.index(value)
            made = self.let(self.builder.lowering(node)(self, node, output, at), "v")
        else:
            place = self.builder.places.at(value, at)
            made = self._one_of_four(value, place) or self.let(
                storage.load(self.builder.element(value), self.let(place, "i")), "v"
            )
        self._known[-1][key] = self._known[-1][value, str(self._name_of(at))] = made
        return made

    def _one_of_four(self, value: Value, place: Index) -> str:
        """The name of an element that is read with those beside it; "" where it is by itself."""
        if not self._by_fours or "«" in str(place) or (place % 4).terms:
            return ""
        four = place // 4
        key = self.builder.places.buffer_of(value), str(four)
        if key not in self._fours:
            if self._indent > 1 or (at := self.builder.fours(value)) is None:
                return ""
            self._fours[key] = self.let(at(str(self.let(four, "i"))), "q")
        storage, name, lane = self.builder.storage(value), self._fours[key], place % 4
        one = name if storage.per_word == 4 else f"{name}.{'xyzw'[lane.offset]}"
        return self.let(storage.load(lambda _: one, lane), "v")

    def store(self, index: Index, value: str) -> None:
        """Write the root's element at a flat index; only where one element is one array element."""
        builder = self.builder
        storage = builder.storage(builder.root)
        assert storage.per_word == 1
        self.line(f"out0[{builder.places.at(builder.root, index)}] = {storage.pack([value])};")


def _summed(at: Callable[[str], str], parts: int, count: int) -> Callable[[str], str]:
    """The expression of a sum of parts, of so many array elements each, by the place in each."""
    return lambda place: (
        f"({' + '.join(at(f'({place}) + {part * count}u') for part in range(parts))})"
    )
