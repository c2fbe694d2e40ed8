"""Builders of kernels: bindings, functions, and bodies that load or compute values.

A kernel computes one root value. Values in buffers are bound. The lowering of its node computes any
other value where it is read, with one `let` per value and index.
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
from webnn_py.engines.webgpu.compiler.code.functions import Function, is_word
from webnn_py.engines.webgpu.compiler.code.index import Index, constant, symbol
from webnn_py.engines.webgpu.compiler.inplace_concat import Places
from webnn_py.engines.webgpu.compiler.kernel import (
    Binding,
    EntryPoint,
    Feature,
    Kernel,
    Part,
    Shader,
    reachable,
)
from webnn_py.engines.webgpu.compiler.loop_bounds import MAX_ITERATIONS, MAX_LOOP_ELEMENTS
from webnn_py.engines.webgpu.program.pieces import END_LOOP, Code, declared, loop, printed, u32
from webnn_py.engines.webgpu.program.storage import Features, Storage, parts_of, storage_of
from webnn_py.ir import Graph, Node, Value

OUT = declared("out0")
"""The buffer that a kernel writes."""

F16X8 = "vec4<u32>"
"""The type that loads eight float16 at once: two to a word, as WGSL has no vector of eight."""

VEC4_ELEMENTS = ("f32", "f16", "i32", "u32")
"""Element types that have a vec4."""

MAX_REPEATED_INDEX_CHARS = 160
"""Characters up to which an index is repeated rather than named where four elements are read.

A name hides what is known of the index's remainder.
"""

MAX_UNROLLED_COPIES = 16
"""Copies of a loop's body when it is unrolled to bound its iterations."""

Lowering = Callable[["Body", Node, int, Index], str]
"""Emits the element at a flat index of a node's n-th output, and returns its expression."""


class KernelBuilder:
    """One kernel under construction.

    Args:
        graph: The whole graph.
        producers: The node that computes each value.
        stored: Whether a value lies in a buffer.
        places: Values that lie in the buffers of others.
        lowerings: Gives the lowering of a node.
        features: The device.
        root: The value that the kernel writes: a stored value, or a scratch value that only the
            kernels of one root use.
        tile: Name of the tile of a product; "" to choose one.
        beside: Other products may run in the same dispatch.

    Attributes:
        scratch: For a node's output, the scratch value that its lowering reads.
        sums: For a product, the scratch value [parts, elements] of its partial sums.
        spare: Buffers that `vec4_view` may bind a second time.
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
        self._runs: dict[tuple[Value, str], str] = {}  # vector views of buffers, by type
        self._storages: dict[str, Storage] = {}
        self._parts: dict[Value, list[Part]] = {}
        self.spare = 0
        self.vector_out = False
        self.atomic_out = False

    def storage(self, value: Value) -> Storage:
        """Return how a value is stored and computed."""
        if value.data_type not in self._storages:
            self._storages[value.data_type] = storage_of(value.data_type, self.features)
        return self._storages[value.data_type]

    def lowering(self, node: Node) -> Lowering:
        """Return the lowering of a node."""
        return self._lowerings(node)

    def is_stored(self, value: Value) -> bool:
        """Whether the kernel reads a value from a buffer."""
        return value is not self.root and (value in self.sums or self._stored(value))

    def computes(self, value: Value) -> bool:
        """Whether the kernel computes a value instead of reading it from a buffer."""
        return value in self.producers and not self.is_stored(value)

    def parts(self, value: Value) -> list[Part]:
        """Return the bindings that a value's buffer needs."""
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
        """Return the name of the buffer of a value that one binding shows."""
        assert self.is_whole(value)
        value = self.places.buffer_of(value)
        if value not in self._bound:
            self._bound[value] = f"in{len(self._bound)}"
        return self._bound[value]

    def element(self, value: Value) -> Callable[[str], str]:
        """Return what gives the expression of an element of a stored value's array by its index."""
        if value in self.sums:
            sums = self.sums[value]
            return _summed(self.element(sums), *sums.shape)
        if self.is_whole(value):
            return f"{declared(self.buffer(value))}[{{}}]".format
        if value not in self._bound:
            self._bound[value] = f"in{len(self._bound)}"
            self.functions.insert(0, self._part_loader(value, self._bound[value]))
        return f"{declared(f'load_{self._bound[value]}')}({{}})".format

    def vector(self, value: Value) -> Callable[[str], str] | None:
        """Return the same for vec4s of consecutive floats; None unless the value lies in vec4s."""
        if value in self.sums:
            sums = self.sums[value]
            at = self.vector(sums)
            return None if at is None else _summed(at, sums.shape[0], sums.shape[1] // 4)
        element = self.storage(value).element
        return self._run(value, 4, f"vec4<{element}>") if element in ("f32", "f16") else None

    def eights(self, value: Value) -> Callable[[str], str] | None:
        """Return the same for eight consecutive float16, as vec4<u32> with two to a word."""
        return self._run(value, 8, F16X8) if self.storage(value).element == "f16" else None

    def integers(self, value: Value) -> Callable[[str], str] | None:
        """Return the same for vec4s of consecutive 32-bit integers."""
        element = self.storage(value).element
        is_one = element in ("i32", "u32") and self.storage(value).per_word == 1
        return self._run(value, 4, f"vec4<{element}>") if is_one else None

    def codes(self, value: Value, count: int) -> Callable[[str], str] | None:
        """Return the same for 4 consecutive bytes, as u32, or for 16, as vec4<u32>."""
        if self.storage(value).per_word != 4:
            return None
        if count == 16:
            return self._run(value, 16, F16X8)
        return self.element(value) if self.places.in_runs(value, 4) else None

    def _run(self, value: Value, count: int, kind: str) -> Callable[[str], str] | None:
        if not self.places.in_runs(value, count) or not self.is_whole(value):
            return None
        key = self.places.buffer_of(value), kind
        if key not in self._runs:
            self._runs[key] = f"fours{len(self._runs)}"  # not "vec2", a type
        return f"{declared(self._runs[key])}[{{}}]".format

    def vec4_view(self, value: Value) -> Callable[[str], str] | None:
        """Return an emitter of four elements of a stored value's buffer: a vec4 or a word of bytes.

        None if the value does not lie in fours, or no binding is left.
        """
        storage, buffer = self.storage(value), self.places.buffer_of(value)
        if storage.per_word == 4:
            return self.element(value)
        if storage.element not in VEC4_ELEMENTS or value in self.sums or storage.per_word > 1:
            return None
        kind = f"vec4<{storage.element}>"
        if (buffer, kind) not in self._runs and len(self._runs) >= self.spare:
            return None
        return self._run(buffer, 4, kind)

    def writes_vectors(self, extent: int) -> bool:
        """Whether the root can be written in fours along an innermost dimension of `extent`.

        Four floats are a vec4, and four bytes a word.
        """
        storage = self.storage(self.root)
        has_fours = storage.element in ("f32", "f16") or storage.per_word == 4
        return divides(4, extent) and has_fours and self.places.in_runs(self.root, 4)

    def _part_loader(self, value: Value, name: str) -> Function:
        storage = self.storage(value)
        lines = [""]
        for number, part in enumerate(self.parts(value)):
            first, count = part.offset // storage.word_bytes, part.size // storage.word_bytes
            place = symbol("i") - first
            element = f"{declared(f'{name}_{number}')}[{place}]"
            lines.append(f"  if (i < {u32(first + count)}) {{ return {element}; }}")
        lines += [f"  return {storage.element}();", ""]
        return Function.of(f"load_{name}", "i: u32", storage.element, "\n".join(lines))

    def scalar(self, value: Value) -> float | int | None:
        """Return the number of a constant of one element, else None."""
        array = self.graph.constants.get(value)
        return array.reshape(-1)[0].item() if array is not None and array.size == 1 else None

    def function(self, name: str, parameters: str, result: str, body: Body) -> None:
        """Add a function with a finished body."""
        text = "\n".join(["", *body.lines, ""])
        self.functions.append(Function.of(name, parameters, result, text))

    def finish(
        self, name: str, entry: EntryPoint, workgroups: Sequence[int], writes: Part | None = None
    ) -> Kernel:
        """Return the kernel of an entry point, with the bindings and functions that it uses."""
        own = [*(function.code for function in entry.functions), entry.code]
        functions = reachable(self.functions, own)
        codes = [*(function.code for function in functions), *own]
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
        text = "\n".join(code.wgsl for code in codes)
        named = {name for code in codes for name in code.names}
        reads = [read for read in reads if read[1] in named]
        bindings = [Binding(name, "read", f"array<{kind}>") for _, name, kind in reads]
        bindings.append(Binding("out0", "read_write", f"array<{self._written_element()}>"))
        helpers = [prelude.FUNCTIONS[name] for name in prelude.called(text)]
        features = self._features() | entry.features
        shader = Shader(tuple(bindings), (*helpers, *functions), entry, features)
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
        storage = self.storage(self.root)
        element = storage.element
        element = f"vec4<{element}>" if self.vector_out and storage.per_word == 1 else element
        return f"atomic<{element}>" if self.atomic_out else element


class Make(Protocol):
    """Begins one of the kernels of a root, which writes the root or a scratch value.

    Later kernels load a scratch value like any stored value. Its buffer is not zeroed.
    """

    def __call__(self, writes: Value | None = None) -> KernelBuilder:
        """Return the builder of a kernel that writes a value, by default the root."""
        ...


class Body:
    """The statements of one function.

    A value that is computed once for an index is not computed again, and an index has one name.
    Names from inside a loop or branch are dropped at its end.

    Args:
        builder: The builder of the kernel.
        by_fours: An element at a known lane of an aligned vec4 is read with the other three, which
            are read, too.
        times: Calls of the function by one invocation: the iterations of its loops add up.
        unsure: Pointer to a bool, set where a code of 8 bits may be off by one; "" to compute
            exact codes.

    Attributes:
        quantizes: Whether codes of 8 bits are computed.
    """

    def __init__(
        self, builder: KernelBuilder, by_fours: bool = False, times: int = 1, unsure: str = ""
    ) -> None:
        self.builder = builder
        self._unsure = unsure
        self.quantizes = False
        self._by_fours = by_fours
        self._fours: dict[tuple[Value, str], str] = {}
        self.lines: list[str] = []
        self._indent = 1
        self._count = 0
        self._around = times  # iterations of the enclosing loops together
        self._known: list[dict[tuple[Value, str], str]] = [{}]
        self._named: list[dict[str, Index]] = [{}]

    def line(self, text: str) -> None:
        """Add a statement."""
        self.lines.append("  " * self._indent + text)

    def fresh(self, hint: str = "t") -> str:
        """Return a new name."""
        self._count += 1
        return f"{hint}{self._count}"

    @overload
    def let(self, expression: str, hint: str = "t") -> str: ...
    @overload
    def let(self, expression: Index, hint: str = "t") -> Index: ...
    def let(self, expression: str | Index, hint: str = "t") -> str | Index:
        """Name an expression that is neither a name nor a number, and return its name."""
        if isinstance(expression, Index):
            return self._let_index(expression, hint)
        if is_word(printed(expression)):
            return expression
        made = self.fresh(hint)
        self.line(f"let {made} = {expression};")
        return made

    def code(self, arguments: str) -> str:
        """Compute a code of 8 bits, and return its name."""
        self.quantizes = True
        if self._unsure:
            return self.let(f"wn_quantized_near({self._unsure}, {arguments})", "q")
        return self.let(f"wn_quantized_byte({arguments})", "q")

    def name(self, index: Index, name: str) -> None:
        """Record that a variable `name` holds an index."""
        self._named[-1][str(index)] = index.named(name)

    def _let_index(self, index: Index, hint: str) -> Index:
        known = self._name_of(index)
        if known.is_name or (
            self._by_fours
            and not known.is_call
            and len(printed(str(index))) < MAX_REPEATED_INDEX_CHARS
        ):
            return known
        made = index.named(self.fresh(hint))
        self.line(f"let {made} = {index};")
        self._named[-1][str(index)] = made
        return made

    def _name_of(self, index: Index) -> Index:
        """Return the name of an index, or the index if it has none."""
        if not index.is_name:
            text = str(index)
            for named in reversed(self._named):
                if text in named:
                    return named[text]
        return index

    def through(self, view: Affine, index: Index) -> Index:
        """Return a map at an index: from its terms if that saves divisions, else from its name."""
        place = view.at(index)
        if index.is_product or str(place) == str(index):
            return place
        named = view.at(index.named("i"))
        if place.divisions < index.divisions + named.divisions:
            return place
        return view.at(self.let(index, "i"))

    def var(self, kind: str, value: str, hint: str = "acc") -> str:
        """Declare a variable and return its name."""
        name = self.fresh(hint)
        self.line(f"var {name}: {kind} = {value};")
        return name

    @contextlib.contextmanager
    def block(self, head: str, iterations: int | None = None) -> Iterator[None]:
        """Open a nested block: `head { ... }`.

        Args:
            head: The text before the brace.
            iterations: The most iterations of a loop; None if the block is no loop.
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
        """Open a loop over 0..count-1 and yield the counter; a count of one opens no loop.

        A loop with too many iterations is unrolled.

        Args:
            count: The most iterations of its body.
            hint: Prefix of the counter's name.
            end: The end of the loop, if the kernel computes it; else `count`.
        """
        if count == 1:
            head = "" if end is None else f"if ({end.enclosed} > 0u)"
            with self.block(head) if head else contextlib.nullcontext():
                yield constant(0)
            return
        name = self.fresh(hint)
        counter = symbol(name, count)
        copies = min(-(-self._around * count // MAX_LOOP_ELEMENTS), MAX_UNROLLED_COPIES, count)
        iterations = -(-count // copies)
        around, self._around = self._around, self._around * iterations
        last = f"{u32(count)}" if end is None else end.enclosed
        if copies == 1:
            with self.block(f"for (var {name} = 0u; {name} < {last}; {name}++)", iterations):
                yield counter
        else:
            first = symbol(self.fresh("first"), count)
            head = f"for (var {first} = 0u; {first} < {last}; {first} += {u32(copies)})"
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
        """Record that `name` holds a value's element at `index`, or at any index if it is None."""
        self._known[-1][value, "" if index is None else str(index.below(value.size))] = name

    def load(self, value: Value, index: Index) -> str:
        """Read or compute a value's element at a flat index in range, and return its name."""
        scalar = self.builder.scalar(value)
        storage = self.builder.storage(value)
        # A number gets a name: compilers fold expressions of literals, and refuse results that are
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
        """Return the name of an element that is read in a vec4; "" if it is read by itself."""
        if not self._by_fours or Code.of(str(place)).is_traced or (place % 4).terms:
            return ""
        four = place // 4
        key = self.builder.places.buffer_of(value), str(four)
        if key not in self._fours:
            if self._indent > 1 or (at := self.builder.vec4_view(value)) is None:
                return ""
            self._fours[key] = self.let(at(str(self.let(four, "i"))), "q")
        storage, name, lane = self.builder.storage(value), self._fours[key], place % 4
        one = name if storage.per_word == 4 else f"{name}.{'xyzw'[lane.offset]}"
        return self.let(storage.load(lambda _: one, lane), "v")

    def store(self, index: Index, value: str) -> None:
        """Store the root's element at a flat index. The root's type must not be packed."""
        builder = self.builder
        storage = builder.storage(builder.root)
        assert storage.per_word == 1
        self.line(f"{OUT}[{builder.places.at(builder.root, index)}] = {storage.pack([value])};")


def _summed(at: Callable[[str], str], parts: int, count: int) -> Callable[[str], str]:
    """Return what gives the sum of `parts` at an index, each of `count` array elements."""
    return lambda place: (
        f"({' + '.join(at(f'({place}) + {u32(part * count)}') for part in range(parts))})"
    )
