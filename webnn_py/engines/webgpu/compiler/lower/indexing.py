"""Gather and scatter: the index of an element is read from memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.code.index import Index, call, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.engines.webgpu.program.pieces import u32
from webnn_py.ir import Node, Value

_SUFFIX = {"i32": "i32", "u32": "u32", "i64": "i64", "vec2<u32>": "pair"}


def _load_index(body: Body, indices: Value, at: Index, size: int) -> Index:
    """Load an index: count a negative one from the end, then clamp it to the dimension."""
    suffix = _SUFFIX[body.builder.storage(indices).compute]
    inside = call(f"wn_index_{suffix}({body.load(indices, at)}, {u32(size)})", size)
    return body.let(inside, "at").below(size)


def _named_divmod(body: Body, index: Index, divisor: int) -> tuple[Index, Index]:
    """Return the quotient and the remainder, as named values."""
    return body.let(index // divisor, "q"), body.let(index % divisor, "m")


def _axis_extents(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """Return the size of dimension `axis` and the product of the dimensions after it."""
    return shape[axis], math.prod(shape[axis + 1 :])


@lowering("gather")
def gather(body: Body, node: Node, output: int, index: Index) -> str:
    """Load the operand's element; the indices give the coordinate along the axis."""
    operand, indices = node.operands
    size, inner = _axis_extents(operand.shape, node.attrs["axis"])
    slices, rest = _named_divmod(body, index, inner)
    outer, place = _named_divmod(body, slices, indices.size)
    at = _load_index(body, indices, place, size)
    return body.load(operand, outer * (size * inner) + at * inner + rest)


@lowering("gather_elements")
def gather_elements(body: Body, node: Node, output: int, index: Index) -> str:
    """Load the operand's element; each output element has its own index along the axis."""
    operand, indices = node.operands
    axis = node.attrs["axis"]
    size, inner = _axis_extents(operand.shape, axis)
    outer, line = _named_divmod(body, index, indices.shape[axis] * inner)
    rest = body.let(line % inner, "m")
    at = _load_index(body, indices, index, size)
    return body.load(operand, outer * (size * inner) + at * inner + rest)


def _slice_number(body: Body, indices: Value, shape: Sequence[int], place: Index) -> Index:
    """Return the number of the slice that the coordinates at `place` point to."""
    depth = indices.shape[-1]
    slice_ = constant(0)
    for i, step in enumerate(shapes.strides(shape[:depth])):
        slice_ += _load_index(body, indices, place * depth + i, shape[i]) * step
    return slice_


@lowering("gather_nd", reads=lambda node: list(node.operands)[1].shape[-1])
def gather_nd(body: Body, node: Node, output: int, index: Index) -> str:
    """Load an element of the slice that the coordinates point to."""
    operand, indices = node.operands
    inner = math.prod(operand.shape[indices.shape[-1] :])
    place, rest = _named_divmod(body, index, inner)
    slice_ = body.let(_slice_number(body, indices, operand.shape, place), "s")
    return body.load(operand, slice_ * inner + rest)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A scatter as lines: each update points to a place within its line of the output.

    The output is [lines, places, inner], the updates are [lines, count, inner].

    Attributes:
        places: Number of possible targets in a line.
        count: Updates of one line.
        inner: Elements at one place.
        whole: Whether an update replaces all elements of its place; there is one line then.
        target_of: Emits the place that an update points to. Arguments: the body, the number of the
            line, the number of the update, the position within the place.
    """

    places: int
    count: int
    inner: int
    whole: bool
    target_of: Callable[[Body, Index, Index, Index], Index]

    def targets(self, size: int) -> int:
        """Return how many targets of an output of `size` elements have separate winners."""
        return size // self.inner if self.whole else size

    def split_index(self, body: Body, index: Index, middle: int) -> tuple[Index, Index, Index]:
        """Split a flat index into line, number in the line, position within the place."""
        line, rest = _named_divmod(body, index, middle * self.inner)
        return line, *_named_divmod(body, rest, self.inner)

    def flat_index(self, line: Index, middle: int, number: Index, behind: Index) -> Index:
        """Return the flat index; the reverse of `split_index`."""
        return line * (middle * self.inner) + number * self.inner + behind


def scatter_of(node: Node) -> Scatter | None:
    """Return how a node scatters; None if it does not."""
    if node.op not in ("scatter_elements", "scatter_nd"):
        return None
    operand, indices, _ = node.operands
    if node.op == "scatter_nd":
        depth = indices.shape[-1]
        shape = operand.shape
        return Scatter(
            math.prod(shape[:depth]),
            indices.size // depth,
            math.prod(shape[depth:]),
            True,
            lambda body, line, number, behind: _slice_number(body, indices, shape, number),
        )
    size, inner = _axis_extents(operand.shape, node.attrs["axis"])
    count = indices.shape[node.attrs["axis"]]

    def target_of(body: Body, line: Index, number: Index, behind: Index) -> Index:
        return _load_index(body, indices, line * (count * inner) + number * inner + behind, size)

    return Scatter(size, count, inner, False, target_of)


def _scattered(body: Body, node: Node, output: int, index: Index) -> str:
    """Load the winning update of the element's place, or the operand's element if none won."""
    operand, _, updates = node.operands
    scatter = scatter_of(node)
    assert scatter is not None
    line, own, behind = scatter.split_index(body, index, scatter.places)
    winner = body.load(body.builder.scratch[node.output], own if scatter.whole else index)
    storage = body.builder.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    with body.block(f"if ({winner} > 0u)"):
        update = (symbol(winner) - 1).below(scatter.count)
        where = scatter.flat_index(line, scatter.count, update, behind)
        body.line(f"{result} = {body.load(updates, where)};")
    with body.block("else"):
        body.line(f"{result} = {body.load(operand, index)};")
    return result


for _name in ("scatter_elements", "scatter_nd"):
    lowering(_name, loops=True)(_scattered)


@dataclass(frozen=True, slots=True)
class RowScatter:
    """A `scatter_rows` as lines: the cache is [lines, places, inner], rows [lines, count, inner].

    Attributes:
        starts: The place of the first new row of each batch.
        lines: Lines of a batch.
        places: Places of a line.
        count: New rows of a line.
        inner: Elements of a row.
    """

    starts: Value
    lines: int
    places: int
    count: int
    inner: int

    @staticmethod
    def of(node: Node) -> RowScatter:
        """Return how a node scatters."""
        cache, rows, starts = node.operands
        axis = node.attrs["axis"]
        places, inner = _axis_extents(cache.shape, axis)
        return RowScatter(starts, math.prod(cache.shape[1:axis]), places, rows.shape[axis], inner)

    def start(self, body: Body, line: Index) -> str:
        """Load the first place of a line as u32; a negative one wraps around."""
        batch = line // self.lines if self.starts.size != 1 else constant(0)
        return f"u32({body.load(self.starts, batch)})"


@lowering("scatter_rows")
def scatter_rows(body: Body, node: Node, output: int, index: Index) -> str:
    """Load the new row's element at the places that have one, else the cache's."""
    cache, rows, _ = node.operands
    scatter = RowScatter.of(node)
    line, rest = _named_divmod(body, index, scatter.places * scatter.inner)
    place, behind = _named_divmod(body, rest, scatter.inner)
    row = symbol(body.let(f"{place.enclosed} - {scatter.start(body, line)}", "row"))
    storage = body.builder.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    with body.block(f"if ({row} < {u32(scatter.count)})"):
        new = row.below(scatter.count)
        where = (line * scatter.count + new) * scatter.inner + behind
        body.line(f"{result} = {body.load(rows, where)};")
    with body.block("else"):
        body.line(f"{result} = {body.load(cache, index)};")
    return result
