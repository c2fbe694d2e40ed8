"""Tensors that tests write, read, hold back and mark."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graphs import build, doubling
from tests.internals import session_of, storage_of
from tests.threads import LONG as LONG
from webnn_py import MLContext, MLGraph, MLGraphBuilder, MLOperand, MLTensor, Timeline
from webnn_py.memory.overlap import EVERYTHING
from webnn_py.ordering.operation import Operation
from webnn_py.ordering.timeline import state_of

SHAPE = (2, 3)
ONES = np.ones(SHAPE, np.float32)
Array = np.ndarray[Any, Any]


def tensor(context: MLContext, value: Any = None, **flags: bool) -> MLTensor:
    """A readable and writable tensor, with contents."""
    array = np.asarray(np.zeros(SHAPE, np.float32) if value is None else value)
    flags = {"readable": True, "writable": True} | flags
    made = context.create_tensor_sync(str(array.dtype), array.shape, **flags)
    if value is not None:
        context.write_tensor(made, array)
    return made


def adding(context: MLContext) -> MLGraph:
    """y = x + k."""

    def what(builder: MLGraphBuilder) -> dict[str, MLOperand]:
        x = builder.input("x", "float32", SHAPE)
        return {"y": builder.add(x, builder.input("k", "float32", SHAPE))}

    return build(context, what)


def buffer_behind(made: MLTensor) -> Any:
    """Return the buffer that a GPU context's tensor lies in."""
    return storage_of(made).buffer


class Parked:
    """Holds a context's work back until `go`, all of it, as work does of which nothing is known."""

    def __init__(self, context: MLContext, graph: MLGraph | None = None) -> None:
        self.timeline = Timeline()
        self.source, self.target = tensor(context, ONES), tensor(context)
        context.dispatch(
            graph or doubling(context),
            {"x": self.source},
            {"y": self.target},
            sync=[self.timeline(wait=1)],
        )
        session_of(context).queue.submit(
            Operation(
                lambda: None,
                lambda error: None,
                (self.timeline(wait=1),),
                writes=(EVERYTHING,),
            )
        )

    def go(self) -> None:
        self.timeline.signal(1)


def broken(context: MLContext) -> MLTensor:
    """A tensor whose producer failed."""
    timeline, made = Timeline(), tensor(context)
    state_of(timeline).fail(1, ValueError("boom"))
    context.dispatch(
        doubling(context), {"x": tensor(context, ONES)}, {"y": made}, sync=[timeline(wait=1)]
    )
    return made
