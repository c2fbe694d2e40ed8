"""What `timeline_pipeline.py` orders: discs drawn into host memory, and a graph to blend them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from webnn_py import MLContext, MLGraph, MLGraphBuilder, TimelinePoint

SIZE = 64
AXIS = np.linspace(-1, 1, SIZE, dtype=np.float32)


class Drawer:
    """Draws discs, each number elsewhere on a circle, on a CPU context."""

    def __init__(self, context: MLContext) -> None:
        self._context = context
        b = MLGraphBuilder(context)
        angle = b.mul(b.input("number", "float32", [1]), b.constant(0.2, "float32"))
        half = b.constant(0.5, "float32")
        x = b.sub(b.constant(AXIS[None, :]), b.mul(b.cos(angle), half))
        y = b.sub(b.constant(AXIS[:, None]), b.mul(b.sin(angle), half))
        inside = b.sub(b.constant(0.05, "float32"), b.add(b.mul(x, x), b.mul(y, y)))
        disc = b.sigmoid(b.mul(inside, b.constant(99.0, "float32")))
        self._graph = b.build_sync({"disc": disc})
        self._number = context.create_tensor_sync("float32", [1], writable=True)

    def draw(
        self, number: int, place: NDArray[np.float32], sync: Iterable[TimelinePoint] = ()
    ) -> None:
        """Have a disc drawn into `place` [SIZE, SIZE], 0 to 1; returns at once."""
        shared = self._context.from_dlpack(place)  # a tensor over the same memory
        self._context.write_tensor(self._number, np.array([number], np.float32))
        self._context.dispatch(self._graph, {"number": self._number}, {"disc": shared}, sync)


def blending(context: MLContext) -> MLGraph:
    """Blends a `drawing` over a `canvas` that fades: `blended`."""
    b = MLGraphBuilder(context)
    canvas, drawing = (b.input(name, "float32", [SIZE, SIZE]) for name in ("canvas", "drawing"))
    faded = b.mul(canvas, b.constant(0.9, "float32"))
    return b.build_sync({"blended": b.max(faded, drawing)})
