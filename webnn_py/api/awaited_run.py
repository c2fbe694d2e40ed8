"""The way of an awaited run: into the context's order where it must, and to its end."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.api.independent import HostRequest
from webnn_py.api.operation import Memory, ordered_operation
from webnn_py.api.session import Session
from webnn_py.core.completion import wait_or_cancel
from webnn_py.core.priority import LONG, wake_at_once
from webnn_py.engines.awaited import AwaitedRun
from webnn_py.engines.base import HostExecutable
from webnn_py.ir import Array, Shape
from webnn_py.ordering.operation import Run
from webnn_py.ordering.timeline import Timeline, TimelinePoint

Points = tuple[TimelinePoint, ...]
NO_MEMORY: Memory = ((), ())


async def finished(
    session: Session, run: AwaitedRun, given: Arguments, waits: Points
) -> dict[str, Any]:
    """Have a run done, and await it; what was written, by name."""
    with session.queue.loss():
        session.check_alive()
        await _wait(session, run, given, waits)
    return given.results(run.results())


async def computed(
    session: Session,
    executable: HostExecutable,
    inputs: Sequence[Array],
    outputs: Mapping[str, tuple[Shape, np.dtype[Any]]],
) -> dict[str, Any]:
    """Have a run done of which nobody else sees what it reads and writes; its outputs by name."""
    with session.queue.loss():
        session.check_alive()
        if executable.took >= LONG:
            wake_at_once()
        request = HostRequest(executable, inputs, outputs.values())
        del inputs  # which the request no longer has once it is cancelled
        session.independent.add(request)
        try:
            await request
        except BaseException:
            request.cancel()
            raise
        return dict(zip(outputs, request.outcome(), strict=True))


def done(session: Session, run: AwaitedRun, given: Arguments) -> dict[str, Any]:
    """Have a run done while this thread waits; what was written, by name."""
    with session.queue.loss():
        session.check_alive()
        fail = run.done.set_exception
        memory = run.memory()
        session.queue.submit(
            ordered_operation(given, run.begin, fail, run.cancellation, memory=memory)
        )
        try:
            run.done.wait()
        finally:
            run.release()
    return given.results(run.results())


async def _wait(session: Session, run: AwaitedRun, given: Arguments, waits: Points) -> None:
    queue = session.queue
    in_order = bool(waits) or given.on_tensors
    shares = queue.keeps_order and (given.writes_given or session.device is not None)
    memory = run.memory() if in_order or shares else NO_MEMORY
    if not (in_order or any(memory)):
        fail = run.done.set_exception
        begin = functools.partial(session.begin_on_worker, run.begin, fail, run.prepare_next)
        run.when_there_is_room(begin, session.worker_is_idle)
        await _end(run, given)
        return
    signalled: Timeline | None = None
    if any(point.signal is not None for point in waits):
        signalled = Timeline()
        waits = (*waits, signalled(signal=1))
    operation = ordered_operation(
        given, run.begin, run.done.set_exception, run.cancellation, waits, memory
    )
    queue.submit(operation)
    await _end(run, given, functools.partial(queue.withdraw, operation))
    if signalled is not None:
        await signalled.wait_async(1)


async def _end(run: AwaitedRun, given: Arguments, withdraw: Run | None = None) -> None:
    try:
        # What nobody sees may be written after the await has ended.
        await wait_or_cancel(run.end, run.cancellation, withdraw, settle=given.writes_given)
    finally:
        run.release()


async def raised(error: Exception) -> Any:
    """What an awaitable gives that failed before it was awaited."""
    raise error
