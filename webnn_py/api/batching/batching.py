"""Dynamic batching: concurrent computes of a graph joined along one of its open dimensions."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

import numpy as np

from webnn_py.api.batching.batch_queue import BatchQueue, Joining
from webnn_py.api.batching.batch_size_policy import BatchSizePolicy, run_sizes
from webnn_py.api.batching.request import Request
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.session import Session
from webnn_py.api.shape_specialization import Prepared, Sizes
from webnn_py.api.signature import Arguments
from webnn_py.core import convert
from webnn_py.core.completion import Completion
from webnn_py.core.errors import ValidationError
from webnn_py.core.lru_cache import LRUCache
from webnn_py.ir import Graph
from webnn_py.ops.batch_axes import BatchAxes, batch_axes

Key = tuple[Any, ...]
"""Equal for computes that can be joined: the graph, the other sizes, and the contents of inputs
without the batch dimension."""

MAX_SHARED_BYTES = 1 << 18
"""Maximum compared bytes of inputs without the batch dimension, as this blocks the event loop."""

MAX_POLICIES = 64
"""Maximum sets of other sizes per graph with a batch size policy."""


class Known:
    """Batch axes and batch size policies of one graph.

    Attributes:
        axes: Batch axis of each input and output.
        shared: Indices of the inputs without the batch dimension.
    """

    def __init__(self, axes: BatchAxes) -> None:
        self.axes = axes
        self.shared = [place for place, axis in enumerate(axes.inputs) if axis is None]
        self._policies: dict[Sizes, BatchSizePolicy] = {}

    def policy(self, others: Sizes, max_batch: int) -> BatchSizePolicy:
        """Return the batch size policy for these sizes of the other open dimensions."""
        if others not in self._policies:
            if len(self._policies) >= MAX_POLICIES:
                self._policies.clear()
            low, high = self.axes.bounds
            self._policies[others] = BatchSizePolicy(run_sizes(low, max(low, min(high, max_batch))))
        return self._policies[others]


class Batching:
    """Batch queues of one MLAwaitedExecution.

    Args:
        session: Session of the context.
        name: Name of the open dimension.
        max_batch: Largest size of a joined run.
        max_delay: Seconds that the first compute of a run waits for others.
    """

    def __init__(self, session: Session, name: str, max_batch: int, max_delay: float) -> None:
        self.session = session
        self.name = name
        self.max_batch = max_batch
        self.max_delay = max_delay
        self.lock = threading.RLock()  # refused work fails waiting computes under the lock
        self._graphs: weakref.WeakKeyDictionary[CompiledGraph, Known] = weakref.WeakKeyDictionary()
        self._under_way: dict[CompiledGraph, Completion[Known]] = {}  # analyses in progress
        self._queues: dict[Key, BatchQueue] = {}
        session.register_holder(self)

    def release(self) -> None:
        """Fail all waiting computes at the loss of the context."""
        with self.lock:
            for queue in [*self._queues.values()]:
                queue.release()

    def known(self, compiled: CompiledGraph) -> Known | None:
        """Return the cached analysis of a graph, or None."""
        return self._graphs.get(compiled)

    def examined(self, compiled: CompiledGraph) -> Completion[Known]:
        """Analyze a graph on the build thread, once for all waiting computes (single flight).

        The completion fails with a ValidationError if an operator mixes elements along the
        dimension.
        """
        with self.lock:
            found = self._under_way.get(compiled)
            if found is None:
                examine = functools.partial(self._examine, compiled, compiled.recipe)
                found = self._under_way[compiled] = self.session.run_on_builder(examine)
                found.on_done(functools.partial(self._forget, compiled))
        return found

    def check(self, compiled: CompiledGraph) -> None:
        """Analyze a graph on this thread if needed; raise the ValidationError of `examined`."""
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
        """Add a compute to its batch queue; return None if it cannot be joined."""
        rows, others = _apart(sizes, self.name)
        if rows > self.max_batch:
            return None
        key: Key = compiled, others
        if known.shared:
            shared = [given.inputs[place] for place in known.shared]
            if sum(array.nbytes for array in shared) > MAX_SHARED_BYTES:
                return None
            key += tuple(array.tobytes() for array in shared)
        with self.lock:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = self._queue_of(key, executables, known, others)
            request = Request(queue, given, rows)
            request.leads = queue.add(request)
        return request

    def takes(self, given: Arguments) -> bool:
        """Whether all arguments are arrays in host memory."""
        session = self.session
        return not given.on_tensors and (
            session.device is None
            or all(
                array is None or isinstance(array, np.ndarray)
                for array in (*given.inputs, *given.outputs)
            )
        )

    def _queue_of(
        self, key: Key, executables: LRUCache[Prepared], known: Known, others: Sizes
    ) -> BatchQueue:
        def sizes(size: int) -> Sizes:
            return tuple(sorted([*others, (self.name, size)]))

        def forget(queue: BatchQueue) -> None:
            if self._queues.get(key) is queue:
                del self._queues[key]

        policy = known.policy(others, self.max_batch)
        how = Joining(self.session, key[0], executables, known.axes, sizes, policy, self.max_delay)
        return BatchQueue(how, self.lock, forget)


@functools.lru_cache(256)
def _apart(sizes: Sizes, name: str) -> tuple[int, Sizes]:
    """Return the size of one dimension, and the sizes of the others."""
    return dict(sizes)[name], tuple(pair for pair in sizes if pair[0] != name)


def batching_of(
    session: Session, name: object, max_batch: object, max_delay: object
) -> Batching | None:
    """Return the batching for these options, or None without a dimension name.

    Raises:
        ValidationError: An option has a wrong type or is out of range.
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
