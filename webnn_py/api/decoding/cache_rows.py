"""CacheRows: the caches of a decoder, with one row for each slot."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from webnn_py.api import tensor_operations
from webnn_py.api.awaited import run_blocking
from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_memory import Export
from webnn_py.core import dtypes
from webnn_py.ir import Descriptor
from webnn_py.memory.allocation import aligned_array


class CacheRows:
    """Memory of the caches: arrays on a CPU context, exported tensors on a GPU context.

    Runs read and write consecutive rows in place, so that inactive rows cost nothing.

    Args:
        session: Session of the context.
        rows: Descriptor of each cache without the batch.
        slots: Number of rows.
    """

    def __init__(self, session: Session, rows: Sequence[Descriptor], slots: int) -> None:
        self._session = session
        self._rows = rows
        self._exports = contextlib.ExitStack()
        self._copies: dict[Descriptor, MLGraph] = {}
        shapes = [(slots, *row.shape) for row in rows]
        if session.device is None:
            self._memory: list[Any] = [
                aligned_array(np.zeros, shape, dtypes.DTYPES[row.data_type].numpy)
                for row, shape in zip(rows, shapes, strict=True)
            ]
            return
        flags = {"readable": False, "writable": False, "exportable": True}
        tensors: list[MLTensor] = [
            tensor_operations.create(session, row.data_type, shape, flags)
            for row, shape in zip(rows, shapes, strict=True)
        ]
        self._memory = [
            self._exports.enter_context(Export(memory_of(tensor, "cache"))) for tensor in tensors
        ]

    def release(self) -> None:
        """Release the memory."""
        self._exports.close()
        self._memory = []

    def at(self, first: int, count: int) -> tuple[list[Any], list[Any]]:
        """Return consecutive rows of each cache, as inputs and as outputs of a run."""
        if self._session.device is None:
            views = [memory[first : first + count] for memory in self._memory]
            return views, views
        places = []
        for buffer, row in zip(self._memory, self._rows, strict=True):
            size = row.byte_length
            places.append({"buffer": buffer, "offset": first * size, "size": count * size})
        shaped = [
            {"resource": place, "dimensions": [count, *row.shape]}
            for place, row in zip(places, self._rows, strict=True)
        ]
        return shaped, places

    def copy(self, source: int, target: int) -> None:
        """Copy a row of each cache to another row."""
        if self._session.device is None:
            for memory in self._memory:
                np.copyto(memory[target], memory[source])
            return
        inputs, outputs = self.at(source, 1)[0], self.at(target, 1)[1]
        for row, read, written in zip(self._rows, inputs, outputs, strict=True):
            run_blocking(self._session, self._copy_of(row), {"x": read}, {"y": written})

    def _copy_of(self, row: Descriptor) -> MLGraph:
        """Return the graph that copies a row."""
        if row not in self._copies:
            builder = MLGraphBuilder(MLContext(self._session))
            x = builder.input("x", row.data_type, [1, *row.shape])
            self._copies[row] = builder.build_sync({"y": builder.identity(x)})
        return self._copies[row]
