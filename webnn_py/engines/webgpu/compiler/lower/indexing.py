"""Gathering and scattering: what lies at an index that is read, not computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.ir import Node, Value

_SUFFIX = {"i32": "i32", "u32": "u32", "i64": "i64", "vec2<u32>": "pair"}


def _inside(body: Body, indices: Value, at: str, size: int) -> str:
    """An index as u32: a negative one counted from the end, then clamped to the dimension."""
    suffix = _SUFFIX[body.emission.storage(indices).compute]
    return body.let(f"wn_index_{suffix}({body.load(indices, at)}, {size}u)", "at")


def _divided(body: Body, index: str, divisor: int, size: int) -> tuple[str, str]:
    """Quotient and remainder of an index below `size`."""
    if divisor == 1:
        return index, "0u"
    if divisor >= size:
        return "0u", index
    return body.let(f"{index} / {divisor}u", "q"), body.let(f"{index} % {divisor}u", "m")


def _joined(*terms: tuple[str, int]) -> str:
    """The sum of products of an index and a number."""
    parts = [index if step == 1 else f"{index} * {step}u" for index, step in terms if index != "0u"]
    return " + ".join(parts) or "0u"


def _around(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """The size of the dimension `axis` and of all dimensions after it together."""
    return shape[axis], math.prod(shape[axis + 1 :])


@lowering("gather")
def gather(body: Body, node: Node, output: int, index: str) -> str:
    """The operand's element with the coordinate along the axis taken from the indices."""
    operand, indices = node.operands
    size, inner = _around(operand.shape, node.attrs["axis"])
    slices, rest = _divided(body, index, inner, node.output.size)
    outer, place = _divided(body, slices, indices.size, node.output.size // inner)
    at = _inside(body, indices, place, size)
    return body.load(operand, _joined((outer, size * inner), (at, inner), (rest, 1)))


@lowering("gather_elements")
def gather_elements(body: Body, node: Node, output: int, index: str) -> str:
    """The operand's element with its own index along the axis."""
    operand, indices = node.operands
    axis = node.attrs["axis"]
    size, inner = _around(operand.shape, axis)
    outer, line = _divided(body, index, indices.shape[axis] * inner, node.output.size)
    _, rest = _divided(body, line, inner, indices.shape[axis] * inner)
    at = _inside(body, indices, index, size)
    return body.load(operand, _joined((outer, size * inner), (at, inner), (rest, 1)))


def _slice_number(body: Body, indices: Value, shape: Sequence[int], place: str) -> str:
    """Which slice the coordinates at `place` (of the leading dimensions) point to."""
    depth = indices.shape[-1]
    steps = shapes.strides(shape[:depth])
    terms = [
        (_inside(body, indices, _joined((place, depth), (f"{i}u", 1)), shape[i]), steps[i])
        for i in range(depth)
    ]
    return _joined(*terms)


@lowering("gather_nd", reads=lambda node: list(node.operands)[1].shape[-1])
def gather_nd(body: Body, node: Node, output: int, index: str) -> str:
    """An element of the slice that the coordinates point to."""
    operand, indices = node.operands
    inner = math.prod(operand.shape[indices.shape[-1] :])
    place, rest = _divided(body, index, inner, node.output.size)
    slice_ = body.let(_slice_number(body, indices, operand.shape, place), "s")
    return body.load(operand, _joined((slice_, inner), (rest, 1)))


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
    pointed: Callable[[Body, str, str, str], str]

    def targets(self, size: int) -> int:
        """What updates win apart from each other, in an output of this size."""
        return size // self.inner if self.whole else size

    def divided(self, body: Body, index: str, middle: int, size: int) -> tuple[str, str, str]:
        """Line, number in it and position behind it of a flat index below `size`."""
        line, rest = _divided(body, index, middle * self.inner, size)
        number, behind = _divided(body, rest, self.inner, middle * self.inner)
        return line, number, behind

    def joined(self, line: str, middle: int, number: str, behind: str) -> str:
        """The flat index."""
        return _joined((line, middle * self.inner), (number, self.inner), (behind, 1))


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

    def pointed(body: Body, line: str, number: str, behind: str) -> str:
        at = _joined((line, count * inner), (number, inner), (behind, 1))
        return _inside(body, indices, at, size)

    return Scatter(size, count, inner, False, pointed)


def _scattered(body: Body, node: Node, output: int, index: str) -> str:
    """The update that won the element's place, counted from 1; where there is none, the element."""
    operand, _, updates = node.operands
    scatter = scatter_of(node)
    assert scatter is not None
    line, own, behind = scatter.divided(body, index, scatter.places, operand.size)
    winner = body.load(body.emission.scratch[node.output], own if scatter.whole else index)
    storage = body.emission.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    with body.block(f"if ({winner} > 0u)"):
        where = scatter.joined(line, scatter.count, f"({winner} - 1u)", behind)
        body.line(f"{result} = {body.load(updates, where)};")
    with body.block("else"):
        body.line(f"{result} = {body.load(operand, index)};")
    return result


for _name in ("scatter_elements", "scatter_nd"):
    lowering(_name, loops=True)(_scattered)
