"""Loops over a row: one element per iteration, or four.

A software adapter runs invocations one by one, and reads four elements in the time of one. On GPUs,
the invocations of a workgroup hold a short row in registers, four elements each, so it is read and
computed once. They read longer rows as vec4s, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from webnn_py.core.shape_tracing import is_traced
from webnn_py.core.traced_queries import divides, may_leave_remainder, sampled
from webnn_py.engines.webgpu.compiler.code.affine import broadcast_map, subset_map
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.fusing.row_fusion import MIN_SHARED_ROW
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, Body, KernelBuilder
from webnn_py.engines.webgpu.compiler.kernels.elementwise_kernel import free_bindings
from webnn_py.engines.webgpu.compiler.kernels.reduce_kernel import divisors
from webnn_py.engines.webgpu.compiler.lower import reduction
from webnn_py.engines.webgpu.program.pieces import u32
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Node, Value

SUM_BLOCK = 64
"""Iterations with a sum of their own: the error of one sum of n numbers grows with n. Threads that
share a row have few iterations each."""

MAX_COMBINED = 32
"""Results that one invocation combines at most, and results of such invocations."""


class RowLoop:
    """Loops over the elements of row `i`.

    Args:
        builder: The kernel's builder.
        body: Body of the kernel function.
        node: A reduction; it defines the rows.
        threads: Proposed invocations per row, each with its number `t`.

    Attributes:
        threads: Actual invocations per row.
        width: Elements per iteration.
        is_held: Whether each invocation has one iteration, so that later loops reuse its values.
    """

    def __init__(self, builder: KernelBuilder, body: Body, node: Node, threads: int) -> None:
        self._builder, self._body = builder, body
        operand = next(node.operands)
        kept, reduced = reduction.axes_of(node)
        count = reduction.count_of(node)
        within = subset_map(operand.shape, reduced)
        self._shape = operand.shape
        self._column = tuple(n if axis in reduced else 1 for axis, n in enumerate(operand.shape))
        self._row = tuple(1 if axis in reduced else n for axis, n in enumerate(operand.shape))
        self._i, self._r = symbol("i", operand.size // count), symbol("r", count)
        self._place = subset_map(operand.shape, kept).at(self._i) + within.at(self._r)
        hardware = builder.features.kind != "cpu"
        in_turn = not hardware and threads == 1
        is_float = builder.storage(operand).element in ("f32", "f16")
        # A value that is also read elsewhere takes a second binding.
        few = len(self._leaves(builder.root)) <= free_bindings(builder)
        fits = divides(4, count) and within.identity and is_float and few
        # Kernels that hold rows have a fixed row length.
        holds = fits and not is_traced(count) and _can_hold(count // 4, builder.features)
        self.is_held = hardware and threads > 1 and holds
        self.threads = count // 4 if self.is_held else threads
        long = hardware and threads > 1 and fits and not is_traced(count)
        self.width = 4 if self.is_held or long or (in_turn and fits) else 1
        self._read: dict[Value, str] = {}
        if self.is_held:
            body.line("let r = t * 4u;")
        self._shared = threads > 1
        first = "t" if self._shared else "0u"
        if long and not self.is_held:
            first = body.let(f"t * {u32(self.width)}", "begin")
        step = self.width * (threads if self._shared else 1)
        self._loop = f"for (var r = {first}; r < {u32(count)}; r += {u32(step)})", -(-count // step)
        self._count, self._size = count, operand.size

    @contextlib.contextmanager
    def in_blocks(self, adds: bool) -> Iterator[bool]:
        """Enclose `elements` in a loop over blocks of a long row; each block has its own sum.

        Yields whether it does; it does not for short rows or results that are not added.
        """
        whole, count, size = self._loop, self._count, SUM_BLOCK * self.width
        if not adds or self._shared or sampled(count) <= 2 * size:
            yield False
            return
        end = (
            f"min(block + {u32(size)}, {u32(count)})"
            if may_leave_remainder(count, size)
            else f"block + {u32(size)}"
        )
        head = f"for (var block = 0u; block < {u32(count)}; block += {u32(size)})"
        with self._body.block(head, -(-count // size)):
            self._loop = f"for (var r = block; r < {end}; r += {u32(self.width)})", SUM_BLOCK
            yield True
        self._loop = whole

    def elements(self, value: Value) -> Iterator[tuple[int, Index, str]]:
        """Loop over a value's elements; yield number in the iteration, index, expression."""
        body = self._body
        if self.width == 1:
            with body.block(*self._loop):
                yield 0, self._place, body.load(value, self._place)
            return
        leaves = self._leaves(value)
        of_row = {
            leaf: body.load(leaf, broadcast_map(leaf.shape, self._row).at(self._i))
            for leaf, shape in leaves.items()
            if all(n in (1, whole) for n, whole in zip(shape, self._row, strict=True))
        }
        with self._block(*self._loop):
            first = body.let(self._place, "k").below(self._size)
            begin = len(body.lines)
            starts = {self._shape: first, self._column: self._r}
            vectors = {
                leaf: self._load_vec4(leaf, starts[shape])
                for leaf, shape in leaves.items()
                if leaf not in of_row
                and leaf not in self._read
                and shape in starts
                and self._builder.vector(leaf)
            }
            end = len(body.lines)
            for number, lane in enumerate("xyzw"):
                with self._block(""):
                    place = body.let(first + number, "k").below(self._size)
                    column = body.let(self._r + number, "r").below(self._count)
                    body.name(place // self._count, "i")
                    body.name(place % self._count, str(column))
                    for leaf, name in vectors.items():
                        at = column if leaves[leaf] == self._column else place
                        body.preset(leaf, at, f"{name}.{lane}")
                    for leaf, name in of_row.items():
                        body.preset(leaf, broadcast_map(leaf.shape, self._shape).at(place), name)
                    yield number, place, body.load(value, place)
            used = "\n".join(body.lines[end:])
            reads = list(zip(vectors.items(), body.lines[begin:end], strict=True))
            kept = [((leaf, name), line) for (leaf, name), line in reads if f"{name}." in used]
            body.lines[begin:end] = [line for _, line in kept]
            if self.is_held:
                self._read |= dict(read for read, _ in kept)

    def _block(
        self, head: str, iterations: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Begin a block of an iteration; none where registers hold the row."""
        return contextlib.nullcontext() if self.is_held else self._body.block(head, iterations)

    def write(self) -> None:
        """Emit the loop that writes the root."""
        builder, body = self._builder, self._body
        root = builder.root
        builder.vector_out = self.width > 1 and builder.writes_vectors(self._count)
        vector = body.var("vec4<f32>", "vec4<f32>()", "made") if builder.vector_out else ""
        for number, place, element in self.elements(root):
            if not vector:
                body.store(place, element)
                continue
            body.line(f"{vector}.{'xyzw'[number]} = {element};")
            if number == 3:
                first = builder.places.at(root, place - 3)
                scalar = builder.storage(root).element
                body.line(f"{OUT}[{first.enclosed} >> 2u] = vec4<{scalar}>({vector});")

    def _load_vec4(self, leaf: Value, first: Index) -> str:
        """Emit the load of four elements of a stored value, from an index that 4 divides."""
        at = self._builder.vector(leaf)
        assert at is not None
        place = self._builder.places.at(leaf, first)
        name = self._body.fresh("q")
        self._body.line(f"let {name} = vec4<f32>({at(f'{place.enclosed} >> 2u')});")
        return name

    def _leaves(self, value: Value) -> dict[Value, tuple[int, ...]]:
        """Return the stored values that `value` is computed from, with shapes of the row's rank."""
        builder = self._builder
        found: dict[Value, tuple[int, ...]] = {}
        todo = [value]
        for value in todo:
            if builder.computes(value):
                todo += [v for v in builder.producers[value].operands if v not in todo]
            elif builder.scalar(value) is None and value.rank <= len(self._shape):
                found[value] = (1,) * (len(self._shape) - value.rank) + value.shape
        return found


def _can_hold(threads: int, features: Features) -> bool:
    """Whether `threads` form a workgroup that can combine its results in two steps."""
    if not MIN_SHARED_ROW["gpu"] // 4 <= threads <= min(256, features.invocations):
        return False
    return any(max(n, threads // n) <= MAX_COMBINED for n in divisors(threads))
