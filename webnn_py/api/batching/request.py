"""One compute that waits to be joined with others, and what it gets of the run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.core.completion import Cancellation, Waiter, wait_settled
from webnn_py.ir import Array
from webnn_py.memory.batch_rows import split_rows
from webnn_py.ops.batch_axes import Axis


class Waiting(Protocol):
    """Where requests wait."""

    def withdraw(self, request: Request, gone: bool, /) -> None:
        """Have one wait no more; `gone` if its event loop is."""

    async def lead(self, request: Request, /) -> None:
        """Run what waits on this thread."""


class Request(Waiter):
    """One compute that waits to be joined, to be awaited by the task that makes it.

    Args:
        line: Where it waits.
        given: What it is given.
        rows: Its own size of the dimension.

    Attributes:
        inputs: In the graph's order.
        outputs: What to write into; None where a new array is to be made.
        rows: As given.
        cancellation: Whether its await was cancelled; None where nobody sees what is written.
        arrived: When it began to wait, in seconds.
        apart: It is not to be joined: a run failed that it was part of.
        leads: Who awaits it is to `lead` first.
    """

    __slots__ = (
        "_line",
        "apart",
        "arrived",
        "cancellation",
        "inputs",
        "leads",
        "outputs",
        "rows",
    )

    def __init__(self, line: Waiting, given: Arguments, rows: int) -> None:
        super().__init__()
        self.inputs: Sequence[Array] = given.hand_over()
        self.rows = rows
        self.arrived = time.monotonic()
        self.apart = False
        self.leads = False
        self._line = line
        self.outputs = given.outputs
        self.cancellation = Cancellation() if given.writes_given else None

    def write(self, rows: Sequence[Array]) -> Sequence[Any]:
        """Write its rows of what a run gave, into the outputs that were given."""
        if self.cancellation is None:
            return [*map(np.ndarray.copy, rows)]
        with self.cancellation as wanted:
            return [*map(_copied, self.outputs, rows)] if wanted else ()

    async def lead(self) -> None:
        """Have what waits run on this thread, once other tasks had their turn."""
        await self._line.lead(self)

    async def withdraw(self, error: BaseException) -> None:
        """Have it wait no more, as its await ends by an error; what it was given stays whole."""
        ended = None if self.cancellation is None else self.cancellation.cancel()
        self._line.withdraw(self, isinstance(error, GeneratorExit))
        if ended is not None:
            await wait_settled(error, ended)


def handed_out(
    requests: Sequence[Request],
    counts: list[int],
    arrays: Sequence[Array],
    axes: Sequence[Axis],
    size: int,
) -> list[Sequence[Any]]:
    """What each compute gets of what a run gave: copies, as views would keep all of it."""
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
    """A copy, or the target, which it is written into."""
    if target is None:
        return array.copy()
    np.copyto(target, array)
    return target
