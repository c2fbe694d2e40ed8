"""CacheRows: the caches of a decoder, with one row for each slot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from typing import Any

import numpy as np

from webnn_py.api import tensor_operations
from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.context import MLContext
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor
from webnn_py.core import dtypes
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.ir import Array, Descriptor, Shape
from webnn_py.memory.allocation import aligned_array
from webnn_py.ops.operand import MLOperand

MIN_KEYS = 64
"""Keys of a row at first; the number doubles as texts grow."""
KEYS_STEP = 32
"""Caches have a multiple of so many keys, so that their rows begin at offsets that GPUs bind."""


class CacheRows:
    """Memory of the caches: arrays on a CPU context, tensors on a GPU context.

    Runs read and write consecutive rows in place, so that inactive rows cost nothing. All rows
    have the same number of keys, which grows with the longest text, if the graph leaves it open:
    attention reads no more than that.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        slots: Number of rows.
        length: Most tokens of a text.

    Attributes:
        lengths: Number of tokens in each row.
        keys: Number of keys of a row.
        version: Number of times that the memory has changed.
    """

    def __init__(self, session: Session, layout: DecoderLayout, slots: int, length: int) -> None:
        self._session = session
        self._layout = layout
        self._slots = slots
        self._length = length
        self._max_keys = layout.keys or -(-length // KEYS_STEP) * KEYS_STEP
        self.lengths = np.zeros(slots, np.int64)
        self._graphs: dict[Hashable, MLGraph] = {}
        self.keys = self.version = 0
        self._rows: list[Descriptor] = []
        self._memory: list[Any] = []
        self._parts: dict[tuple[int, int], list[MLTensor]] = {}
        self._resize(layout.keys or min(MIN_KEYS, self._max_keys))

    @property
    def most_keys(self) -> int:
        """Return the number of keys that a row has room for now."""
        return min(self.keys, self._length)

    def rows_of_run(self, slots: Collection[int]) -> tuple[int, int]:
        """Return the first row and the number of rows of a run that reads these slots.

        Numbers are powers of two, so that few sizes are compiled.
        """
        if self._layout.batch is not None:
            return 0, self._layout.batch
        first, end = min(slots), max(slots) + 1
        count = min(1 << (end - first - 1).bit_length(), self._slots)
        return min(first, self._slots - count), count

    def make_room(self, keys_needed: int = 0) -> None:
        """Have room for a token more in each row, if the graph leaves the number of keys open.

        Args:
            keys_needed: Keys that one row needs besides.
        """
        if self._layout.keys is not None:
            return
        keys, needed = MIN_KEYS, max(int(self.lengths.max()) + 1, keys_needed)
        while keys < needed:
            keys *= 2
        keys = min(keys, self._max_keys)
        is_empty = not self.lengths.any()
        if keys > self.keys or (is_empty and keys < self.keys):
            self._resize(keys, keep=not is_empty)

    def release(self) -> None:
        """Release the memory."""
        self._destroy(self._memory)
        self._memory, self.keys = [], 0
        self.version += 1

    def _destroy(self, memory: list[Any]) -> None:
        """Destroy tensors and their parts."""
        for tensor in itertools.chain(memory, *self._parts.values()):
            if isinstance(tensor, MLTensor):
                tensor.destroy()
        self._parts.clear()

    def _resize(self, keys: int, keep: bool = True) -> None:
        """Allocate memory for so many keys in each row; `keep` copies those that there are."""
        before, rows = self._memory, self._rows
        self._rows = self._layout.rows(keys)
        self._memory = [self._allocate(row) for row in self._rows]
        if keep:
            for source, row, target in zip(before, rows, self._memory, strict=False):
                self._extend(source, row, target, keys)
        self.keys = keys
        self.version += 1
        self._destroy(before)

    def _allocate(self, row: Descriptor) -> Any:
        shape = (self._slots, *row.shape)
        if self._session.device is None:
            return aligned_array(np.zeros, shape, dtypes.DTYPES[row.data_type].numpy)
        flags = {"readable": False, "writable": False, "exportable": False}
        return tensor_operations.create(self._session, row.data_type, shape, flags)

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
        MLContext(self._session).dispatch(graph, {"x": source}, {"y": target})

    def at(self, first: int, count: int) -> list[Array]:
        """Return consecutive rows of each cache on the host."""
        return [memory[first : first + count] for memory in self._memory]

    def tensors(self, first: int, count: int) -> list[MLTensor]:
        """Return consecutive rows of each cache on a device."""
        found = self._parts.get((first, count))
        if found is None:
            found = self._parts[first, count] = [
                tensor_operations.part(tensor, first * row.byte_length, (count, *row.shape))
                for tensor, row in zip(self._memory, self._rows, strict=True)
            ]
        return found

    def copy(self, source: int, target: int) -> None:
        """Copy a row of each cache to another row."""
        if self._session.device is None:
            for memory in self._memory:
                np.copyto(memory[target], memory[source])
            return
        parts = zip(self._rows, self.tensors(source, 1), self.tensors(target, 1), strict=True)
        for row, read, written in parts:
            shape = (1, *row.shape)
            graph = self._graph(("copy", row), row.data_type, shape, lambda b, x: b.identity(x))
            MLContext(self._session).dispatch(graph, {"x": read}, {"y": written})

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
