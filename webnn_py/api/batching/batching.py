"""Concurrent computes of one graph joined into one run, along one of its open dimensions."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.api.batching.batch_queue import Joining, Line
from webnn_py.api.batching.batch_size_policy import Pace, run_sizes
from webnn_py.api.batching.request import Request
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.session import Session
from webnn_py.api.shape_specialization import Prepared, Sizes
from webnn_py.core import convert
from webnn_py.core.completion import Completion
from webnn_py.core.errors import ValidationError
from webnn_py.core.lru_cache import LRUCache
from webnn_py.ir import Graph
from webnn_py.ops.batch_axes import BatchAxes, batch_axes

Key = tuple[Any, ...]
"""What computes have in common that are joined: the graph, the other sizes, and the contents of
inputs without the dimension."""

MOST_SHARED_BYTES = 1 << 18
"""Bytes of inputs without the dimension that are compared; it is the event loop that does so."""

MOST_PACES = 64
"""Sets of other sizes, of one graph, for which it is remembered how quick its runs are."""


class Known:
    """What is known of a graph whose computes are joined.

    Attributes:
        axes: Where its runs are joined.
        shared: The places of inputs without the dimension.
    """

    def __init__(self, axes: BatchAxes) -> None:
        self.axes = axes
        self.shared = [place for place, axis in enumerate(axes.inputs) if axis is None]
        self._paces: dict[Sizes, Pace] = {}

    def pace(self, others: Sizes, max_batch: int) -> Pace:
        """How quick runs are where the other open sizes are these."""
        if others not in self._paces:
            if len(self._paces) >= MOST_PACES:
                self._paces.clear()
            low, high = self.axes.bounds
            self._paces[others] = Pace(run_sizes(low, max(low, min(high, max_batch))))
        return self._paces[others]


class Batching:
    """What MLAwaitedExecution joins.

    Args:
        session: The context's.
        name: Of the open dimension.
        max_batch: Largest size of a run that is joined.
        max_delay: How many seconds the first of a run waits for others.
    """

    def __init__(self, session: Session, name: str, max_batch: int, max_delay: float) -> None:
        self.session = session
        self.name = name
        self.max_batch = max_batch
        self.max_delay = max_delay
        self.lock = threading.RLock()  # work that is refused at once fails what waits
        self._graphs: weakref.WeakKeyDictionary[CompiledGraph, Known] = weakref.WeakKeyDictionary()
        self._under_way: dict[CompiledGraph, Completion[Known]] = {}  # examinations
        self._lines: dict[Key, Line] = {}
        session.has(self)

    def release(self) -> None:
        """The context is gone: nothing that waits will be done."""
        with self.lock:
            for line in [*self._lines.values()]:
                line.release()

    def known(self, compiled: CompiledGraph) -> Known | None:
        """What is known of a graph, if it was examined before."""
        return self._graphs.get(compiled)

    def examined(self, compiled: CompiledGraph) -> Completion[Known]:
        """What is known of a graph, found out now: once for all computes that wait for it.

        It is a ValidationError if an operator mixes what lies along the dimension.
        """
        with self.lock:
            found = self._under_way.get(compiled)
            if found is None:
                examine = functools.partial(self._examine, compiled, compiled.recipe)
                found = self._under_way[compiled] = self.session.run_on_builder(examine)
                found.on_done(functools.partial(self._forget, compiled))
        return found

    def check(self, compiled: CompiledGraph) -> None:
        """Examine a graph on this thread, if it was not; raises as `examined`."""
        if self.known(compiled) is None:
            self._examine(compiled, compiled.recipe)

    def _forget(self, compiled: CompiledGraph) -> None:
        self._under_way.pop(compiled, None)

    def _examine(self, compiled: CompiledGraph, recipe: Graph) -> Known:
        known = self._graphs[compiled] = Known(batch_axes(recipe, self.name))
        return known

    def join(
        self,
        compiled: CompiledGraph,
        executables: LRUCache[Prepared],
        known: Known,
        sizes: Sizes,
        given: Arguments,
    ) -> Request | None:
        """Have a compute wait to be joined; None if it cannot be."""
        rows, others = _apart(sizes, self.name)
        if rows > self.max_batch:
            return None
        key: Key = compiled, others
        if known.shared:
            shared = [given.inputs[place] for place in known.shared]
            if sum(array.nbytes for array in shared) > MOST_SHARED_BYTES:
                return None
            key += tuple(array.tobytes() for array in shared)
        with self.lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = self._line(key, executables, known, others)
            request = Request(line, given, rows)
            request.leads = line.add(request)
        return request

    def takes(self, given: Arguments) -> bool:
        """Whether all lies in arrays."""
        session = self.session
        return not given.on_tensors and (
            session.device is None
            or all(
                array is None or isinstance(array, np.ndarray)
                for array in (*given.inputs, *given.outputs)
            )
        )

    def _line(self, key: Key, executables: LRUCache[Prepared], known: Known, others: Sizes) -> Line:
        def sizes(size: int) -> Sizes:
            return tuple(sorted([*others, (self.name, size)]))

        def forget(line: Line) -> None:
            if self._lines.get(key) is line:
                del self._lines[key]

        pace = known.pace(others, self.max_batch)
        how = Joining(self.session, key[0], executables, known.axes, sizes, pace, self.max_delay)
        return Line(how, self.lock, forget)


@functools.lru_cache(256)
def _apart(sizes: Sizes, name: str) -> tuple[int, Sizes]:
    """The size of a dimension, and the others."""
    return dict(sizes)[name], tuple(pair for pair in sizes if pair[0] != name)


def batching_of(
    session: Session, name: object, max_batch: object, max_delay: object
) -> Batching | None:
    """What joins computes as these options say; None where no dimension is named.

    Raises:
        ValidationError: An option is not of its type or range.
    """
    most = convert.unsigned(max_batch, "option 'max_batch'")
    if most < 1:
        raise ValidationError("option 'max_batch': got 0, expected at least 1")
    delay = convert.double(max_delay, "option 'max_delay'")
    if not 0 <= delay < threading.TIMEOUT_MAX:
        raise ValidationError(f"option 'max_delay': got {delay}, expected seconds, at least 0")
    if name is None:
        return None
    return Batching(session, convert.string(name, "option 'batch'"), most, delay)
