"""Operators that move elements: affine views where they can be, index arithmetic else."""

from __future__ import annotations

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.affine import (
    Affine,
    broadcast_map,
    coordinate,
    repeated_map,
    reverse_map,
    slice_map,
    transpose_map,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering, view
from webnn_py.ir import Node


@view("reshape")
def reshape(node: Node, output: int) -> Affine:
    """The same flat index."""
    return Affine((node.output.size,), (1,))


@view("transpose")
def transpose(node: Node, output: int) -> Affine:
    """Strides permuted."""
    operand = next(node.operands)
    return transpose_map(operand.shape, node.attrs["permutation"])


@view("expand")
def expand(node: Node, output: int) -> Affine:
    """Stride 0 along repeated dimensions."""
    return broadcast_map(next(node.operands).shape, node.output.shape)


@view("slice")
def slice(node: Node, output: int) -> Affine:
    """An offset, and strides multiplied by the steps."""
    attrs = node.attrs
    operand = next(node.operands)
    return slice_map(operand.shape, attrs["starts"], node.output.shape, attrs["strides"])


@view("reverse")
def reverse(node: Node, output: int) -> Affine:
    """Negative strides."""
    return reverse_map(node.output.shape, node.attrs["axes"])


@view("split")
def split(node: Node, output: int) -> Affine:
    """An offset for each output."""
    operand = next(node.operands)
    axis = node.attrs["axis"]
    shape = node.outputs[output].shape
    splits = node.attrs["splits"]
    start = output * shape[axis] if isinstance(splits, int) else sum(splits[:output])
    starts = [start if d == axis else 0 for d in range(operand.rank)]
    return slice_map(operand.shape, starts, shape, [1] * operand.rank)


@view("tile")
def tile(node: Node, output: int) -> Affine:
    """Each dimension under one of stride 0."""
    operand = next(node.operands)
    return repeated_map(operand.shape, node.attrs["repetitions"], [1] * operand.rank)


@lowering("concat")
def concat(body: Body, node: Node, output: int, index: str) -> str:
    """The input in whose range the coordinate along the axis lies."""
    axis = node.attrs["axis"]
    shape = node.output.shape
    inner = shapes.strides(shape)[axis]
    at = body.let(coordinate(shape, axis, index), "c")
    outer = (
        body.let(f"{index} / {inner * shape[axis]}u")
        if any(size != 1 for size in shape[:axis])
        else "0u"
    )
    rest = body.let(f"{index} % {inner}u") if inner != 1 else "0u"
    storage = body.emission.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    start = 0
    for number, value in enumerate(node.operands):
        size = value.shape[axis]
        last = start + size == shape[axis]
        head = (
            "else" if last and number else f"{'else ' if number else ''}if ({at} < {start + size}u)"
        )
        with body.block(head):
            own = f"({outer} * {size}u + {at} - {start}u) * {inner}u + {rest}"
            body.line(f"{result} = {body.load(value, own)};")
        start += size
    return result


@lowering("pad")
def pad(body: Body, node: Node, output: int, index: str) -> str:
    """The element that lies inside, or what the mode puts outside."""
    operand = next(node.operands)
    attrs = node.attrs
    own = shapes.strides(operand.shape)
    terms: list[str] = []
    inside: list[str] = []
    for axis, size in enumerate(operand.shape):
        low, high = attrs["beginning_padding"][axis], attrs["ending_padding"][axis]
        at = coordinate(node.output.shape, axis, index)
        if low or high:
            at = body.let(f"i32({at}) - {low}", "c")
            if attrs["mode"] == "constant":
                inside.append(f"{at} >= 0 && {at} < {size}")
            elif attrs["mode"] == "edge":
                at = body.let(f"clamp({at}, 0, {size - 1})", "c")
            else:
                at = body.let(f"{size - 1} - abs({size - 1} - abs({at}))", "c")
            at = f"u32({at})"
        terms.append(f"{at} * {own[axis]}u" if own[axis] != 1 else at)
    where = " + ".join(terms) if terms else "0u"
    if not inside:
        return body.load(operand, where)
    storage = body.emission.storage(node.output)
    result = body.var(storage.compute, storage.literal(attrs["value"]), "v")
    with body.block(f"if ({' && '.join(inside)})"):
        body.line(f"{result} = {body.load(operand, where)};")
    return result


@lowering("triangular")
def triangular(body: Body, node: Node, output: int, index: str) -> str:
    """The element on the right side of the diagonal, else 0."""
    operand = next(node.operands)
    rows, columns = operand.shape[-2:]
    row = coordinate(operand.shape, operand.rank - 2, index)
    column = coordinate(operand.shape, operand.rank - 1, index)
    # Beyond the corners nothing changes, and i32 holds it.
    diagonal = max(-rows, min(node.attrs["diagonal"], columns))
    side = ">=" if node.attrs["upper"] else "<="
    storage = body.emission.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    with body.block(f"if (i32({column}) - i32({row}) {side} {diagonal})"):
        body.line(f"{result} = {body.load(operand, index)};")
    return result
