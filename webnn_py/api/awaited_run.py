"""The way of an awaited run: into the context's order where it must, and to its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from webnn_py.api.arguments import Arguments
from webnn_py.api.run_operation import Memory, ordered_operation, title_of
from webnn_py.api.session import Session
from webnn_py.api.tensor_memory import check_not_held
from webnn_py.api.unordered_pool import HostRequest
from webnn_py.core.completion import CANCELLED, wait_or_cancel
from webnn_py.core.errors import OperationError
from webnn_py.core.thread_priority import LONG_RUN_SECONDS, shorten_slice
from webnn_py.engines.base import AwaitedRun, HostExecutable
from webnn_py.ir import Array, Shape
from webnn_py.ordering.operation import Operation, Run, wait_in_order
from webnn_py.ordering.timeline import Timeline, TimelinePoint

Points = tuple[TimelinePoint, ...]
AwaitableRun = Coroutine[Any, Any, dict[str, Any]]
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
        if executable.took >= LONG_RUN_SECONDS:
            shorten_slice()
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
        _submit_others(session, given, ())
        operation = ordered_operation(given, run.begin, fail, run.cancellation, memory=memory)
        session.queue.submit(operation)
        try:
            wait_in_order(run.done, operation)
        finally:
            run.release()
    return given.results(run.results())


async def _wait(session: Session, run: AwaitedRun, given: Arguments, waits: Points) -> None:
    queue = session.queue
    in_order = bool(waits) or given.on_tensors
    shares = given.writes_given or session.device is not None
    memory = run.memory() if in_order or shares else NO_MEMORY
    unordered = None
    if any(memory) and not in_order:
        unordered = queue.begin_unordered(*memory, given.names)
        if unordered is not None:
            run.done.on_done(unordered.end)
    if not in_order and (unordered is not None or not any(memory)):
        fail = run.done.set_exception
        begin = functools.partial(session.begin_on_worker, run.begin, fail, run.prepare_next)
        run.when_there_is_room(begin, session.worker_is_idle)
        await _end(run, given)
        return
    signalled: Timeline | None = None
    if any(point.signal is not None for point in waits):
        signalled = Timeline()
        waits = (*waits, signalled(signal=1))
    if given.on_tensors:
        _submit_others(session, given, waits)
    operation = ordered_operation(
        given, run.begin, run.done.set_exception, run.cancellation, waits, memory
    )
    queue.submit(operation)
    await _end(run, given, functools.partial(queue.withdraw, operation))
    if signalled is not None:
        await signalled.wait_async(1)


def _submit_others(session: Session, given: Arguments, waits: Points) -> None:
    """Have other contexts submit what they have recorded, if tensors of theirs are given.

    Raises:
        InvalidStateError: Work on one of them waits for a timeline, and the run for none.
    """
    waiting = any(point.wait is not None for point in waits)
    for memories, reading in ((given.reads, True), (given.writes, False)):
        for memory in memories:
            if memory.session is session:
                continue
            if waiting:
                memory.session.queue.flush()
            else:
                check_not_held(memory, "an MLTensor of another context", reading=reading)


async def _end(run: AwaitedRun, given: Arguments, withdraw: Run | None = None) -> None:
    try:
        # What nobody sees may be written after the await has ended.
        await wait_or_cancel(run.end, run.cancellation, withdraw, settle=given.writes_given)
    finally:
        run.release()


def promising(run: AwaitableRun, given: Arguments, waits: Points) -> AwaitableRun:
    """A run of which those learn that wait for what it is to signal, also if it never begins."""
    signals = any(point.signal is not None for point in waits)
    return _Promising(run, waits, given.names) if signals else run


class _Promising(Coroutine[Any, Any, dict[str, Any]]):
    """An awaited run that is to signal: if it ends before it does, who waits for that is told.

    A coroutine would not do, as none of it runs if its task is cancelled before its first turn.

    Args:
        run: The run.
        sync: What it waits for and signals.
        names: Of its outputs.
    """

    def __init__(self, run: AwaitableRun, sync: Points, names: Sequence[str]) -> None:
        self._run = run
        self._work = Operation(_nothing, _ignore, sync, title=title_of(names))

    def send(self, value: Any) -> Any:
        """Go on."""
        return self._step(self._run.send, value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error, such as that the await is cancelled."""
        return self._step(self._run.throw, *error)

    def close(self) -> None:
        """End here."""
        self._run.close()
        self._work.refuse(OperationError(CANCELLED))

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self  # as an iterator, all that `await` needs

    def __iter__(self) -> _Promising:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except StopIteration:
            raise
        except BaseException as error:
            failed = isinstance(error, Exception)
            self._work.refuse(error if failed else OperationError(CANCELLED))
            raise


def _nothing() -> None:
    """What is never submitted has nothing to run."""


def _ignore(error: BaseException) -> None:
    """Who awaits has the error."""


async def raised(error: Exception) -> Any:
    """What an awaitable gives that failed before it was awaited."""
    raise error
