"""CacheRows: the caches of a decoder, with one row for each slot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from webnn_py.api import tensor_operations
from webnn_py.api.awaited import run_blocking
from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.context import MLContext
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of
from webnn_py.api.tensor_memory import Export
from webnn_py.core import dtypes
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.ir import Descriptor, Shape
from webnn_py.memory.allocation import aligned_array
from webnn_py.ops.operand import MLOperand


class CacheRows:
    """Memory of the caches: arrays on a CPU context, exported tensors on a GPU context.

    Runs read and write consecutive rows in place, so that inactive rows cost nothing. All rows
    have the same number of keys, which grows with the longest text, if the graph leaves it open:
    attention reads no more than that.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        slots: Number of rows.

    Attributes:
        keys: Number of keys of a row.
        version: Number of times that the memory has changed.
    """

    def __init__(self, session: Session, layout: DecoderLayout, slots: int) -> None:
        self._session = session
        self._layout = layout
        self._slots = slots
        self._tensors: list[MLTensor] = []
        self._exports = contextlib.ExitStack()
        self._graphs: dict[Hashable, MLGraph] = {}
        self.keys = self.version = 0
        self._rows: list[Descriptor] = []
        self._memory: list[Any] = []

    def release(self) -> None:
        """Release the memory."""
        self._exports.close()
        for tensor in self._tensors:
            tensor.destroy()
        self._tensors, self._memory, self.keys = [], [], 0
        self.version += 1

    def resize(self, keys: int, keep: bool = True) -> None:
        """Have room for so many keys in each row; `keep` copies those that there are."""
        before, rows = self._memory, self._rows
        exports, tensors = self._exports, self._tensors
        self._exports, self._tensors = contextlib.ExitStack(), []
        self._rows = self._layout.rows(keys)
        self._memory = [self._allocate(row) for row in self._rows]
        if keep:
            for source, row, target in zip(before, rows, self._memory, strict=False):
                self._extend(source, row, target, keys)
        self.keys = keys
        self.version += 1
        exports.close()
        for tensor in tensors:
            tensor.destroy()

    def _allocate(self, row: Descriptor) -> Any:
        shape = (self._slots, *row.shape)
        if self._session.device is None:
            return aligned_array(np.zeros, shape, dtypes.DTYPES[row.data_type].numpy)
        flags = {"readable": False, "writable": False, "exportable": True}
        tensor = tensor_operations.create(self._session, row.data_type, shape, flags)
        self._tensors.append(tensor)
        return self._exports.enter_context(Export(memory_of(tensor, "cache")))

    def _extend(self, source: Any, row: Descriptor, target: Any, keys: int) -> None:
        """Copy all rows of a cache to one with more keys."""
        old = row.shape[1]
        if self._session.device is None:
            np.copyto(target[:, :, :old], source)
            return

        def extended(builder: MLGraphBuilder, x: MLOperand) -> MLOperand:
            return builder.pad(x, [0, 0, 0, 0], [0, 0, keys - old, 0])

        shape = (self._slots, *row.shape)
        graph = self._graph(("extend", row, keys), row.data_type, shape, extended)
        read = {"resource": source, "dimensions": [*shape]}
        run_blocking(self._session, graph, {"x": read}, {"y": target})

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
            shape = (1, *row.shape)
            graph = self._graph(("copy", row), row.data_type, shape, lambda b, x: b.identity(x))
            run_blocking(self._session, graph, {"x": read}, {"y": written})

    def _graph(
        self,
        key: Hashable,
        data_type: MLOperandDataType,
        shape: Shape,
        make: Callable[[MLGraphBuilder, MLOperand], MLOperand],
    ) -> MLGraph:
        """Return the graph y = make(x), built at its first use."""
        if key not in self._graphs:
            builder = MLGraphBuilder(MLContext(self._session))
            made = make(builder, builder.input("x", data_type, shape))
            self._graphs[key] = builder.build_sync({"y": made})
        return self._graphs[key]
