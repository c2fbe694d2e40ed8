"""Operators that move elements: affine views where possible, else index arithmetic."""

from __future__ import annotations

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.code.affine import (
    Affine,
    broadcast_map,
    coordinate,
    repeated_map,
    reverse_map,
    slice_map,
    transpose_map,
)
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol, total
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering, view
from webnn_py.engines.webgpu.program.pieces import i32, u32
from webnn_py.ir import Node


@view("reshape")
def reshape(node: Node, output: int) -> Affine:
    """Keep the flat index."""
    return Affine((node.output.size,), (1,))


@view("transpose")
def transpose(node: Node, output: int) -> Affine:
    """Permute the strides."""
    operand = next(node.operands)
    return transpose_map(operand.shape, node.attrs["permutation"])


@view("expand")
def expand(node: Node, output: int) -> Affine:
    """Use stride 0 along repeated dimensions."""
    return broadcast_map(next(node.operands).shape, node.output.shape)


@view("slice")
def slice(node: Node, output: int) -> Affine:
    """Add an offset and multiply the strides by the steps."""
    attrs = node.attrs
    operand = next(node.operands)
    return slice_map(operand.shape, attrs["starts"], node.output.shape, attrs["strides"])


@view("reverse")
def reverse(node: Node, output: int) -> Affine:
    """Use negative strides."""
    return reverse_map(node.output.shape, node.attrs["axes"])


@view("split")
def split(node: Node, output: int) -> Affine:
    """Add an offset that depends on the output."""
    operand = next(node.operands)
    axis = node.attrs["axis"]
    shape = node.outputs[output].shape
    splits = node.attrs["splits"]
    start = sum(splits[:output]) if isinstance(splits, tuple) else output * shape[axis]
    starts = [start if d == axis else 0 for d in range(operand.rank)]
    return slice_map(operand.shape, starts, shape, [1] * operand.rank)


@view("tile")
def tile(node: Node, output: int) -> Affine:
    """Add a dimension of stride 0 outside each dimension."""
    operand = next(node.operands)
    return repeated_map(operand.shape, node.attrs["repetitions"], [1] * operand.rank)


@lowering("concat")
def concat(body: Body, node: Node, output: int, index: Index) -> str:
    """Load from the input whose range contains the coordinate along the axis."""
    axis = node.attrs["axis"]
    shape = node.output.shape
    inner = shapes.strides(shape)[axis]
    line = shape[axis] * inner
    outer, place = body.let(index // line), body.let(index % line, "c")
    storage = body.builder.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    begin = 0
    for value in node.operands:
        size = value.shape[axis] * inner
        branch = "else" if begin else ""
        if begin + size < line:
            branch += f" if ({place} < {u32(begin + size)})"
        with body.block(branch.lstrip()):
            own = outer * size + place - begin
            body.line(f"{result} = {body.load(value, own)};")
        begin += size
    return result


@lowering("pad")
def pad(body: Body, node: Node, output: int, index: Index) -> str:
    """Load the element inside; outside, emit what the mode defines."""
    operand = next(node.operands)
    attrs = node.attrs
    places, inside = [], []
    for axis, (size, own) in enumerate(
        zip(operand.shape, shapes.strides(operand.shape), strict=True)
    ):
        low, high = attrs["beginning_padding"][axis], attrs["ending_padding"][axis]
        at = coordinate(node.output.shape, axis, index)
        if not (low or high):
            pass
        elif attrs["mode"] == "constant":
            at = body.let(at - low, "c")
            inside.append(f"{at} < {u32(size)}")  # negative values wrap to huge ones
        elif attrs["mode"] == "edge":
            at = at.clamp(low, low + size - 1) - low
        else:
            last = i32(size - 1)
            reflected = f"{last} - abs({last} - abs(i32({at}) - {i32(low)}))"
            at = symbol(body.let(f"u32({reflected})", "c"))
        places.append(at.below(size) * own)
    where = total(places)
    if not inside:
        return body.load(operand, where)
    storage = body.builder.storage(node.output)
    result = body.var(storage.compute, storage.literal(attrs["value"]), "v")
    with body.block(f"if ({' && '.join(inside)})"):
        body.line(f"{result} = {body.load(operand, where)};")
    return result


@lowering("triangular")
def triangular(body: Body, node: Node, output: int, index: Index) -> str:
    """Load the element on the selected side of the diagonal, else 0."""
    operand = next(node.operands)
    rows, columns = operand.shape[-2:]
    row = coordinate(operand.shape, operand.rank - 2, index)
    column = coordinate(operand.shape, operand.rank - 1, index)
    # Diagonals beyond the corners are equivalent; clamped, they fit 32 bits.
    diagonal = max(-rows, min(node.attrs["diagonal"], columns))
    side = ">=" if node.attrs["upper"] else "<="
    where = f"{column + max(0, -diagonal)} {side} {row + max(0, diagonal)}"
    storage = body.builder.storage(node.output)
    result = body.var(storage.compute, storage.literal(0), "v")
    with body.block(f"if ({where})"):
        body.line(f"{result} = {body.load(operand, index)};")
    return result
