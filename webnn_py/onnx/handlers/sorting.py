"""TopK: the greatest or least elements in order."""

from __future__ import annotations

from typing import Any

from webnn_py.core.dimensions import is_dimension, span
from webnn_py.onnx.emitter import Emitter
from webnn_py.onnx.registry import handles
from webnn_py.onnx.tensor import BrokenModelError, Tensor, refuse


def _top(g: Emitter, x: Tensor, count: int, axis: int, largest: int) -> Any:
    """Return the `count` extremes in order and their positions, equal elements by position."""
    at = x.axis(axis)
    size = x.shape[at]
    if not is_dimension(count) and not 0 <= count <= span(size)[1]:
        raise BrokenModelError(f"its k is {count}, of {size} elements")
    if not is_dimension(count) and not count:
        refuse("WebNN has no tensors without elements")
    places = g.arg_top_k(x, at, count, largest=bool(largest))
    return [g.gather_elements(x, places, axis=at), places]


@handles("TopK", since=10)
def top_k(
    g: Emitter, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> Any:
    """Return the k greatest or least elements along an axis, in order, and their positions."""
    count = g.dimension(k, "k", x.shape[x.axis(axis)])
    return _top(g, x, count, axis, largest)


@handles("TopK")
def top_k_1(g: Emitter, x: Tensor, *, k: int, axis: int = -1) -> Any:
    """Handle TopK before opset 10."""
    return _top(g, x, k, axis, 1)
