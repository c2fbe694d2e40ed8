"""Calls whose operands are bound by their contents too: indices, scales."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from tests.property.drawing import (
    Array,
    Call,
    Draw,
    Operator,
    Shape,
    Tensor,
    data_types,
    divisors,
    held_as,
    operands,
    shapes,
    sizes,
    tensors,
)
from tests.property.rules import RULES


@st.composite
def _indices(draw: Draw, data_type: str, places: Array, size: Array | int) -> Tensor:
    """Positions in 0..size, some of them counted from the end where the type has a sign."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if held_as(data_type).kind == "i":
        places = np.where(rng.random(places.shape) < 0.3, places - size, places)
    return Tensor(data_type, places.astype(held_as(data_type)), draw(st.booleans()))


def _gathered(draw: Draw, op: Operator) -> tuple[Shape, int, Shape]:
    """Shape of the input, axis and shape of the indices."""
    shape = draw(shapes(1))
    axis = draw(st.integers(0, len(shape) - 1))
    if op.name == "gather":
        return shape, axis, draw(shapes(0, 9 - len(shape), 3))
    length = draw(sizes(shape[axis] if op.name == "scatter_elements" else 5))
    return shape, axis, (*shape[:axis], length, *shape[axis + 1 :])


@st.composite
def _by_axis(draw: Draw, op: Operator) -> Call:
    """gather, gather_elements, scatter_elements; gathering also beyond the input's ends."""
    shape, axis, places = _gathered(draw, op)
    data_type = draw(data_types(op, "indices"))
    source = draw(tensors(draw(data_types(op, "input")), shape))
    members: dict[str, Tensor | list[Tensor]] = {"input": source}
    if op.name == "scatter_elements":
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        order = np.argsort(rng.random(shape), axis=axis)
        distinct = np.take(order, range(places[axis]), axis=axis)
        members["indices"] = draw(_indices(data_type, distinct, shape[axis]))
        members["updates"] = draw(tensors(source.data_type, places))
    else:
        reach = shape[axis] + 1
        members["indices"] = draw(tensors(data_type, places, -reach, reach))
    return Call(op, members, {"axis": axis})


@st.composite
def _by_coordinates(draw: Draw, op: Operator) -> Call:
    """gather_nd and scatter_nd; the coordinates of a scatter differ from each other."""
    shape = draw(shapes(1))
    length = draw(sizes(len(shape)))
    data_type = draw(data_types(op, "indices"))
    source = draw(tensors(draw(data_types(op, "input")), shape))
    if op.name == "gather_nd":
        most = min(8, 8 - len(shape) + length)
        places = draw(shapes(0, min(most, 7), 2))
        indices = draw(tensors(data_type, (*places, length), -5, 5))
        return Call(op, {"input": source, "indices": indices})
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(sizes(min(6, math.prod(shape[:length]))))
    flat = rng.permutation(math.prod(shape[:length]))[:count]
    coordinates = np.stack(np.unravel_index(flat, shape[:length]), axis=-1)
    lead = draw(st.sampled_from([(count,), (1, count)])) if len(shape) - length < 6 else (count,)
    indices = draw(
        _indices(data_type, coordinates.reshape(*lead, length), np.array(shape[:length]))
    )
    updates = draw(tensors(source.data_type, (*lead, *shape[length:])))
    return Call(op, {"input": source, "indices": indices, "updates": updates})


@st.composite
def _quantization(draw: Draw, op: Operator) -> Call:
    """Positive scales, by blocks."""
    shape = draw(shapes())
    blocks = draw(divisors(shape))
    floats = draw(st.sampled_from(op.operand_types("scale")))
    integers = draw(data_types(op, "zero_point"))
    scale = draw(tensors(floats, blocks, 1, 3))
    zero_point = draw(tensors(integers, blocks))
    kind = floats if op.name == "quantize_linear" else integers
    source = draw(tensors(kind, shape, -40, 40))
    return Call(op, {"input": source, "scale": scale, "zero_point": zero_point})


@st.composite
def _bytes_of_blocks(draw: Draw, op: Operator) -> Call:
    """matmul_packed with the bytes of blocks, of 4 or 8 bits a code."""
    block, columns = draw(st.sampled_from([2, 4, 16])), draw(sizes(4))
    depth, bits = draw(sizes(3 * block)), draw(st.sampled_from([4, 8]))
    blocks = -(-depth // block)
    kind = draw(data_types(op, "x"))
    members = {
        "x": draw(tensors(kind, (*draw(shapes(0, 2, 3)), depth))),
        "codes": draw(tensors("uint8", (columns, blocks, block * bits // 8), 0, 255)),
        "scales": draw(tensors(kind, (columns, blocks), -2, 2)),
    }
    if draw(st.booleans()):
        shape = columns, -(-blocks * bits // 8)
        members["zero_points"] = draw(tensors("uint8", shape, 0, 255))
    return Call(op, members, {"block_size": block})


@st.composite
def _packed(draw: Draw, op: Operator) -> Call:
    """matmul_packed with an element for each code, or with bytes of blocks."""
    if draw(st.booleans()):
        return draw(_bytes_of_blocks(op))
    wanted, options = RULES[op.name](draw, op)
    return Call(op, draw(operands(op, wanted)), options)


WHOLE: dict[str, Callable[[Operator], st.SearchStrategy[Call]]] = {
    "gather": _by_axis,
    "gather_elements": _by_axis,
    "scatter_elements": _by_axis,
    "gather_nd": _by_coordinates,
    "scatter_nd": _by_coordinates,
    "quantize_linear": _quantization,
    "dequantize_linear": _quantization,
    "matmul_packed": _packed,
}
