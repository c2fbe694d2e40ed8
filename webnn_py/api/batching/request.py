"""Request: one compute of a batched run, and the delivery of its rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from webnn_py.api.signature import Arguments
from webnn_py.core.completion import Cancellation, Waiter, wait_settled
from webnn_py.ir import Array
from webnn_py.memory.batch_rows import split_rows
from webnn_py.ops.batch_axes import Axis


class Waiting(Protocol):
    """Queue of requests."""

    def withdraw(self, request: Request, gone: bool, /) -> None:
        """Remove a waiting request; `gone` says that its event loop has ended."""

    async def lead(self, request: Request, /) -> None:
        """Run the batch on this thread."""


class Request(Waiter):
    """Awaitable compute that waits to be joined into a batched run.

    Args:
        queue: Queue in which it waits.
        given: Inputs and outputs of the compute.
        rows: Its size of the batch dimension.

    Attributes:
        inputs: Input arrays, in the graph's order.
        outputs: Destination arrays; None where a new array is returned.
        rows: Its size of the batch dimension.
        cancellation: Cancellation of its await; None if it writes to no array of the user's.
        arrived: Time of its arrival, in seconds of the monotonic clock.
        apart: Whether it must run alone, because a joined run with it failed.
        leads: Whether the awaiting task must call `lead` first.
    """

    __slots__ = (
        "_queue",
        "apart",
        "arrived",
        "cancellation",
        "inputs",
        "leads",
        "outputs",
        "rows",
    )

    def __init__(self, queue: Waiting, given: Arguments, rows: int) -> None:
        super().__init__()
        self.inputs: Sequence[Array] = given.hand_over()
        self.rows = rows
        self.arrived = time.monotonic()
        self.apart = False
        self.leads = False
        self._queue = queue
        self.outputs = given.outputs
        self.cancellation = Cancellation() if given.writes_given else None

    def write(self, rows: Sequence[Array]) -> Sequence[Any]:
        """Return copies of its rows, written into the user's outputs where there are some."""
        if self.cancellation is None:
            return [*map(np.ndarray.copy, rows)]
        with self.cancellation as wanted:
            return [*map(_copied, self.outputs, rows)] if wanted else ()

    async def lead(self) -> None:
        """Run the batch on this thread, after other tasks had their turn."""
        await self._queue.lead(self)

    async def withdraw(self, error: BaseException) -> None:
        """Withdraw the request after an error of its await; finish a write in progress."""
        ended = None if self.cancellation is None else self.cancellation.cancel()
        self._queue.withdraw(self, isinstance(error, GeneratorExit))
        if ended is not None:
            await wait_settled(error, ended)


def handed_out(
    requests: Sequence[Request],
    counts: list[int],
    arrays: Sequence[Array],
    axes: Sequence[Axis],
    size: int,
) -> list[Sequence[Any]]:
    """Return each compute's rows of the results, as copies: views would keep all rows alive."""
    parts = [
        itertools.repeat(array, len(counts))
        if axis is None
        else split_rows(array, axis, size, counts)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    if all(request.cancellation is None for request in requests):
        return [*zip(*(map(np.ndarray.copy, part) for part in parts), strict=True)]
    return [*map(Request.write, requests, zip(*parts, strict=True))]


def _copied(target: Array | None, array: Array) -> Array:
    """Copy an array into `target`, or into a new array if there is none."""
    if target is None:
        return array.copy()
    np.copyto(target, array)
    return target
