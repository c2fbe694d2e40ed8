"""2-D resampling, with coordinates in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.core import shapes
from webnn_py.engines.webgpu.compiler.code.affine import coordinate
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol, total
from webnn_py.engines.webgpu.compiler.kernel_builder import Body
from webnn_py.engines.webgpu.compiler.lower.registry import lowering
from webnn_py.engines.webgpu.program.pieces import u32
from webnn_py.ir import Node


def _place(body: Body, node: Node, axis: int, index: Index, minus: int) -> tuple[Index, str]:
    """Return where the centre of an output element lies in the input: quotient and remainder.

    The unit is half an output element; `minus` units are subtracted first. An input element is
    twice the output's size in units.
    """
    old, new = next(node.operands).shape[axis], node.output.shape[axis]
    # Products of 32 bits or more need two words.
    wide = "_wide" if 2 * old * new >= 1 << 32 else ""
    own = coordinate(node.output.shape, axis, index)
    place = body.let(f"wn_place{wide}({own}, {u32(old)}, {u32(new)}, {u32(minus)})", "p")
    return symbol(f"{place}.x", old), f"{place}.y"


def _flat(node: Node, places: Sequence[Index]) -> Index:
    """Return the flat index of the input element at `places`."""
    shape = next(node.operands).shape
    steps = zip(places, shape, shapes.strides(shape), strict=True)
    return total(place.below(size) * step for place, size, step in steps)


@lowering("resample2d", reads=lambda node: 1 if node.attrs["mode"] == "nearest-neighbor" else 4)
def resample2d(body: Body, node: Node, output: int, index: Index) -> str:
    """Emit the nearest element, or the linear interpolation of the four around."""
    shape = node.output.shape
    changed = [a for a in node.attrs["axes"] if next(node.operands).shape[a] != shape[a]]
    places = [body.let(coordinate(shape, axis, index), "c") for axis in range(len(shape))]
    if node.attrs["mode"] == "nearest-neighbor":
        for axis in changed:
            places[axis], _ = _place(body, node, axis, index, 1)
        return body.load(next(node.operands), _flat(node, places))
    shares: dict[int, str] = {}
    for axis in changed:
        places[axis], rest = _place(body, node, axis, index, shape[axis])
        shares[axis] = body.let(f"f32({rest}) / {2.0 * shape[axis]}", "share")
    value = _interpolated(body, node, places, shares)
    compute = body.builder.storage(node.output).compute
    return value if compute == "f32" else f"{compute}(round({value}))"


def _interpolated(body: Body, node: Node, places: Sequence[Index], shares: dict[int, str]) -> str:
    """Interpolate between the elements at `places` and the next ones along the axes in `shares`."""
    operand = next(node.operands)
    if not shares:
        element = body.load(operand, _flat(node, places))
        return element if body.builder.storage(operand).compute == "f32" else f"f32({element})"
    axis, share = next(iter(sorted(shares.items())))
    others = {a: s for a, s in shares.items() if a != axis}
    after = list(places)
    after[axis] = (places[axis] + 1).min(operand.shape[axis] - 1)
    below = body.let(_interpolated(body, node, places, others), "below")
    above = body.let(_interpolated(body, node, after, others), "above")
    # 0 times an infinite neighbour would be NaN.
    mixed = f"{below} * (1.0 - {share}) + {above} * {share}"
    return body.let(f"select({mixed}, {below}, {share} == 0.0)", "mix")
