"""Base classes of CPU engines: tensors in host memory, and operations on worker threads."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from webnn_py.core import dtypes
from webnn_py.core.completion import Cancellation, Completion
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.engines.base import Engine, Executable, HostExecutable, Queue
from webnn_py.engines.profile import Roof, timed
from webnn_py.ir import Array, Descriptor, Graph
from webnn_py.memory.allocation import aligned_array
from webnn_py.memory.host_arrays import BorrowedArray
from webnn_py.ordering.operation import Executor, Run


def checked_threads(threads: object) -> int | None:
    """Return the checked engine option `threads`, the number of threads of one run.

    Raises:
        ValidationError: The option is not an integer of at least 1.
    """
    if threads is None or (type(threads) is int and threads > 0):
        return threads
    raise ValidationError(
        f"engine option 'threads': got {shown(threads)}, expected an integer from 1"
    )


class HostQueue(Queue):
    """Queue that runs operations on the worker threads, concurrently if they share no memory.

    Args:
        worker: Runs a function on one of the threads.
        width: Number of threads.
    """

    def __init__(self, worker: Callable[[Run], None], width: int = 1) -> None:
        super().__init__(Executor(worker, width=width))

    def allocate(self, descriptor: Descriptor) -> Array:
        """Return an array of zeros, aligned for any engine and for DLPack consumers."""
        return aligned_array(np.zeros, descriptor.shape, dtypes.DTYPES[descriptor.data_type].numpy)

    def target(self, storage: Any) -> Array:
        """Return the tensor's array, whose memory others may share."""
        array: Array = storage
        return array

    def write(self, storage: Any, lent: BorrowedArray) -> Run:
        """Return a function that copies the lent array into the tensor."""
        return lambda: np.copyto(storage, lent.array)

    def read(
        self,
        storage: Any,
        target: Array,
        done: Completion[None],
        cancellation: Cancellation,
        waits: bool = False,
        slow: bool = False,
    ) -> Run:
        """Return a function that copies the tensor out, safely if the arrays overlap."""

        def run() -> None:
            with cancellation as wanted:
                if wanted:
                    overlap = np.may_share_memory(target, storage)
                    np.copyto(target, storage.copy() if overlap else storage)
            done.set_result(None)

        return run

    def dispatch(
        self,
        executable: Executable,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        key: Hashable = None,
    ) -> Run:
        """Return a function that runs directly on the tensors' arrays."""
        assert isinstance(executable, HostExecutable)
        return lambda: executable.run(inputs, outputs)


class HostEngine(Engine):
    """Base class of CPU engines, which compute on the calling thread, on arrays.

    A subclass must define `compile` and, unless it runs every operator, `supports`.
    """

    def queue(self, worker: Callable[[Run], None], width: int = 1) -> Queue:
        """Return a queue with tensors in host memory and work on the context's threads."""
        return HostQueue(worker, width)

    def roof(self) -> Roof:
        """Return the peak rates, measured with NumPy's matrix product and copy."""
        return _measured_roof()

    @abstractmethod
    def compile(self, graph: Graph) -> HostExecutable:
        """Compile a graph."""


@functools.cache
def _measured_roof() -> Roof:
    size, copied = 768, 32 << 20
    square = np.ones((size, size), np.float32)
    source, target = np.ones(copied, np.uint8), np.empty(copied, np.uint8)
    return Roof(
        2 * size**3 / min(timed(lambda: square @ square) for _ in range(5)),
        2 * copied / min(timed(lambda: np.copyto(target, source)) for _ in range(5)),
    )
