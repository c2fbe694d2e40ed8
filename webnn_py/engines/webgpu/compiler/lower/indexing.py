"""Gathering and scattering: what lies at an index that is read, not computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.code.index import Index, call, constant, symbol
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.ir import Node, Value

_SUFFIX = {"i32": "i32", "u32": "u32", "i64": "i64", "vec2<u32>": "pair"}


def _inside(body: Body, indices: Value, at: Index, size: int) -> Index:
    """An index as u32: a negative one counted from the end, then clamped to the dimension."""
    suffix = _SUFFIX[body.builder.storage(indices).compute]
    inside = call(f"wn_index_{suffix}({body.load(indices, at)}, {size}u)", size)
    return body.let(inside, "at").below(size)


def _divided(body: Body, index: Index, divisor: int) -> tuple[Index, Index]:
    """Quotient and remainder."""
    return body.let(index // divisor, "q"), body.let(index % divisor, "m")


def _around(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """The size of the dimension `axis` and of all dimensions after it together."""
    return shape[axis], math.prod(shape[axis + 1 :])


@lowering("gather")
def gather(body: Body, node: Node, output: int, index: Index) -> str:
    """The operand's element with the coordinate along the axis taken from the indices."""
    operand, indices = node.operands
    size, inner = _around(operand.shape, node.attrs["axis"])
    slices, rest = _divided(body, index, inner)
    outer, place = _divided(body, slices, indices.size)
    at = _inside(body, indices, place, size)
    return body.load(operand, outer * (size * inner) + at * inner + rest)


@lowering("gather_elements")
def gather_elements(body: Body, node: Node, output: int, index: Index) -> str:
    """The operand's element with its own index along the axis."""
    operand, indices = node.operands
    axis = node.attrs["axis"]
    size, inner = _around(operand.shape, axis)
    outer, line = _divided(body, index, indices.shape[axis] * inner)
    rest = body.let(line % inner, "m")
    at = _inside(body, indices, index, size)
    return body.load(operand, outer * (size * inner) + at * inner + rest)


def _slice_number(body: Body, indices: Value, shape: Sequence[int], place: Index) -> Index:
    """Which slice the coordinates at `place` (of the leading dimensions) point to."""
    depth = indices.shape[-1]
    slice_ = constant(0)
    for i, step in enumerate(shapes.strides(shape[:depth])):
        slice_ += _inside(body, indices, place * depth + i, shape[i]) * step
    return slice_


@lowering("gather_nd", reads=lambda node: list(node.operands)[1].shape[-1])
def gather_nd(body: Body, node: Node, output: int, index: Index) -> str:
    """An element of the slice that the coordinates point to."""
    operand, indices = node.operands
    inner = math.prod(operand.shape[indices.shape[-1] :])
    place, rest = _divided(body, index, inner)
    slice_ = body.let(_slice_number(body, indices, operand.shape, place), "s")
    return body.load(operand, slice_ * inner + rest)


@dataclass(frozen=True, slots=True)
class Scatter:
    """Updates as lines: each of them points to a place in the line of the output it belongs to.

    The output is [lines, places, inner], the updates are [lines, count, inner].

    Attributes:
        places: What can be pointed to.
        count: Updates of one line.
        inner: Elements that lie behind a place.
        whole: An update replaces all that lies behind its place, and there is one line.
        pointed: Writes which place the update of this number points to: called with the body, the
            numbers of line and update, and the position behind the place.
    """

    places: int
    count: int
    inner: int
    whole: bool
    pointed: Callable[[Body, Index, Index, Index], Index]

    def targets(self, size: int) -> int:
        """What updates win apart from each other, in an output of this size."""
        return size // self.inner if self.whole else size

    def divided(self, body: Body, index: Index, middle: int) -> tuple[Index, Index, Index]:
        """Line, number in it and position behind it of a flat index."""
        line, rest = _divided(body, index, middle * self.inner)
        return line, *_divided(body, rest, self.inner)

    def joined(self, line: Index, middle: int, number: Index, behind: Index) -> Index:
        """The flat index."""
        return line * (middle * self.inner) + number * self.inner + behind


def scatter_of(node: Node) -> Scatter | None:
    """How a node scatters, if it does."""
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
    size, inner = _around(operand.shape, node.attrs["axis"])
    count = indices.shape[node.attrs["axis"]]

    def pointed(body: Body, line: Index, number: Index, behind: Index) -> Index:
        return _inside(body, indices, line * (count * inner) + number * inner + behind, size)

    return Scatter(size, count, inner, False, pointed)


def _scattered(body: Body, node: Node, output: int, index: Index) -> str:
    """The update that won the element's place, counted from 1; where there is none, the element."""
    operand, _, updates = node.operands
    scatter = scatter_of(node)
    assert scatter is not None
    line, own, behind = scatter.divided(body, index, scatter.places)
    winner = body.load(body.builder.scratch[node.output], own if scatter.whole else index)
    storage = body.builder.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    with body.block(f"if ({winner} > 0u)"):
        update = (symbol(winner) - 1).below(scatter.count)
        where = scatter.joined(line, scatter.count, update, behind)
        body.line(f"{result} = {body.load(updates, where)};")
    with body.block("else"):
        body.line(f"{result} = {body.load(operand, index)};")
    return result


for _name in ("scatter_elements", "scatter_nd"):
    lowering(_name, loops=True)(_scattered)
