"""Lowerings of gathering and scattering.

WebNN clamps indices, while ONNX leaves indices out of range undefined. So indices are clamped first
unless they are known to be in range: constants, and positions found along the same dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.dimensions import least
from webnn_py.engines.onnx_lowering.emitter import Emitter, Tensor, lowering
from webnn_py.ir import Array, Node, Value


def _inside(e: Emitter, indices: Tensor, sizes: Any) -> Tensor:
    """Clamp indices and cast them to int64; ONNX also counts negative ones from the end.

    Args:
        e: The emitter.
        indices: The indices, of any allowed data type.
        sizes: Size of the dimension, or sizes of all dimensions of a coordinate.
    """
    wide = e.cast(indices, "int64")
    bound = e.below.get(indices.name)
    is_position = bound is not None and not isinstance(sizes, tuple) and bound == sizes
    if is_position or _are_inside(e.arrays.get(indices.name), sizes):
        return wide
    if indices.data_type != "uint32":
        wide = e.greater(wide, e.constant(-np.array(sizes)))
    return e.smaller(wide, e.constant(np.array(sizes) - 1))


def _are_inside(array: Array | None, sizes: Any) -> bool:
    """Whether indices are constants that are in range for all sizes of open dimensions."""
    if array is None:
        return False
    ends = np.array(least(sizes if isinstance(sizes, tuple) else (sizes,)))
    return bool(((array >= -ends) & (array < ends)).all())


def _input(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _along(e: Emitter, node: Node, indices: Tensor) -> Tensor:
    return _inside(e, indices, _input(node).shape[node.attrs["axis"]])


def _coordinates(e: Emitter, node: Node, indices: Tensor) -> Tensor:
    value = node.inputs[1]
    assert value is not None
    return _inside(e, indices, _input(node).shape[: value.shape[-1]])


@lowering
def gather(e: Emitter, node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Write Gather."""
    return e.op("Gather", x, _along(e, node, indices), axis=node.attrs["axis"])


@lowering
def gather_elements(e: Emitter, node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Write GatherElements."""
    return e.op("GatherElements", x, _along(e, node, indices), axis=node.attrs["axis"])


@lowering
def gather_nd(e: Emitter, node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Write GatherND."""
    return e.op("GatherND", x, _coordinates(e, node, indices))


@lowering
def scatter_elements(e: Emitter, node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Write ScatterElements."""
    places = _along(e, node, indices)
    return e.op("ScatterElements", x, places, updates, axis=node.attrs["axis"])


@lowering
def scatter_nd(e: Emitter, node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Write ScatterND."""
    return e.op("ScatterND", x, _coordinates(e, node, indices), updates)
