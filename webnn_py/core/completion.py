"""Futures that any thread may resolve, for tasks of asyncio or trio and for blocked threads."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from _thread import RLock  # the type; `threading.RLock` is a function
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, Generic, TypeVar

from webnn_py.core.deferred_signals import uninterrupted
from webnn_py.core.errors import InvalidStateError, OperationError
from webnn_py.core.exit_guard import stop_daemon
from webnn_py.core.thread_priority import THREAD, shorten_slice

T = TypeVar("T")

CANCELLED = "the work was cancelled before it began"


class Completion(Generic[T]):
    """A future that any thread may resolve once and any number of tasks may await.

    Cancelling an await does not stop the work; its result is dropped.

    Unlike `concurrent.futures.Future` it allocates no condition variable unless a thread blocks.
    """

    __slots__ = ("_callbacks", "_deferred", "_lock", "_outcome")

    def __init__(self) -> None:
        self._outcome: tuple[BaseException | None, Any] | None = None
        self._deferred: Callable[[], None] | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._lock = RLock()  # a finalizer may fail a completion that its own thread is resolving

    @classmethod
    def of(cls, future: Future[T]) -> Completion[T]:
        """Return a completion that follows a future of an executor."""
        made = cls()

        def arrived(future: Future[T]) -> None:
            error = future.exception()
            if error is None:
                made.set_result(future.result())
            else:
                made.set_exception(error)

        future.add_done_callback(arrived)
        return made

    def set_result(self, result: T) -> None:
        """Resolve with a result; a second call changes nothing."""
        self._resolve((None, result))

    def set_exception(self, error: BaseException) -> None:
        """Resolve with an error; a second call changes nothing."""
        if isinstance(error, OperationError) and str(error) == CANCELLED:
            error.with_traceback(None)  # its frames may refer back to this completion
        self._resolve((error, None))

    def _resolve(self, outcome: tuple[BaseException | None, Any]) -> None:
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()

    @property
    def done(self) -> bool:
        """Whether the completion is resolved."""
        return self._outcome is not None

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the thread that resolves; at once if resolved already."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                return
        callback()

    def _forget(self, callback: Callable[[], object]) -> None:
        """Remove the callback of a waiter that gave up; the result may never come."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.remove(callback)

    def defer(self, work: Callable[[], None]) -> None:
        """Have the next thread that calls `wait` run `work` first."""
        self._deferred = work

    def wait(self, timeout: float | None = None) -> T:
        """Block this thread until resolved; return the result or raise its error.

        Raises:
            TimeoutError: `timeout` seconds passed before.
        """
        if self._deferred is not None:
            work, self._deferred = self._deferred, None
            work()
        if self._outcome is None:
            arrived = threading.Lock()
            arrived.acquire()
            release = arrived.release
            self.on_done(release)
            try:
                arrived.acquire(timeout=-1 if timeout is None else timeout)
            finally:
                self._forget(release)
        if self._outcome is None:
            raise TimeoutError
        result: T
        error, result = self._outcome
        if error is None:
            return result
        stop_daemon()
        try:
            raise error
        finally:
            del self, error  # the traceback refers to this frame: break the cycle

    async def settled(self) -> None:
        """Wait until resolved, whether with a result or an error."""
        if self._outcome is None:
            await self._arrival()

    def __await__(self) -> Generator[Any, None, T]:
        if self._outcome is None:
            yield from self._arrival().__await__()
        return self.wait(0)

    async def _arrival(self) -> None:
        """Wait until resolved, whether with a result or an error."""
        if not THREAD.has_short_slice:
            shorten_slice()
        waiter = Waiter()
        self.on_done(waiter.end)
        try:
            await waiter
        except BaseException:
            self._forget(waiter.end)
            raise


class Cancellation:
    """Cancellation state of one piece of work, whose sections run whole or not at all.

    `with` enters a section; it yields False if the work was cancelled before.
    """

    __slots__ = ("_cancelled", "_ended", "_lock", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._running = False
        self._ended: Completion[None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the work was cancelled."""
        return self._cancelled

    def check(self) -> None:
        """Raise an OperationError if the work was cancelled before it began."""
        if self._cancelled:
            raise OperationError(CANCELLED)

    def cancel(self) -> Completion[None]:
        """Prevent further sections; the result resolves when the running section ends."""
        with self._lock:
            self._cancelled = True
            ended = self._ended = self._ended or Completion()
            running = self._running
        if not running:
            ended.set_result(None)
        return ended

    def __enter__(self) -> bool:
        with self._lock:
            self._running = not self._cancelled
            return self._running

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._running = False
            ended = self._ended
        if ended is not None:
            ended.set_result(None)


async def wait_or_cancel(
    done: Awaitable[T],
    cancellation: Cancellation,
    withdraw: Callable[[], None] | None = None,
    settle: bool = True,
) -> T:
    """Await; if the await is cancelled, cancel the work.

    Args:
        done: The awaitable.
        cancellation: The cancellation state of the work.
        withdraw: Removes the work from its queue if it has not begun.
        settle: Wait for the running section to end before the await ends.
    """
    try:
        return await done
    except BaseException as error:
        if isinstance(error, GeneratorExit) and isinstance(done, Completion) and done.done:
            raise  # the loop is gone; a finalizer should take no lock
        current = cancellation.cancel()
        if withdraw is not None:
            withdraw()
        if settle:
            await wait_settled(error, current)
        raise


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Await with a time limit; None for no limit.

    Raises:
        TimeoutError: The limit passed, and the await was cancelled.
    """
    if seconds is None:
        return await work
    if _in_trio():
        trio: Any = sys.modules["trio"]
        with trio.move_on_after(seconds):
            return await work
        raise TimeoutError
    import asyncio

    async with asyncio.timeout(seconds):
        return await work


async def wait_settled(error: BaseException, completion: Completion[Any]) -> None:
    """Wait until resolved, even in a task that is being cancelled."""
    if isinstance(error, GeneratorExit):  # the loop is gone
        return
    if _in_trio():
        trio: Any = sys.modules["trio"]
        with trio.CancelScope(shield=True):
            await completion.settled()
        return
    import asyncio

    while not completion.done:
        with contextlib.suppress(asyncio.CancelledError):
            await completion.settled()


@contextlib.contextmanager
def hold(lock: RLock, waits: bool) -> Iterator[bool]:
    """Acquire a lock, without blocking unless `waits`; yield whether it was acquired.

    A finalizer must not block: it may run on a thread that another thread is waiting to start.
    """
    held = lock.acquire(blocking=waits)
    try:
        yield held
    finally:
        if held:
            lock.release()


async def next_turn() -> None:
    """Yield to the running event loop once."""
    if _in_trio():
        trio: Any = sys.modules["trio"]
        await trio.lowlevel.checkpoint()
        return
    import asyncio

    await asyncio.sleep(0)


def _in_trio() -> bool:
    """Whether a trio task runs on this thread; its loop may be the guest of another loop."""
    trio: Any = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


@functools.cache
def _running_loop() -> Callable[[], Any]:
    import asyncio  # imported late: it takes a fifth of the package's import time

    return asyncio.get_running_loop


class Waiter:
    """The await of one task; made on its event loop's thread, ended from any thread.

    Attributes:
        loop: The asyncio event loop, or the trio token of one.
        result: The result once ended.
    """

    __slots__ = ("_event", "loop", "result")

    def __init__(self) -> None:
        self.result: Any = None
        self.loop: Any
        if _in_trio():
            trio: Any = sys.modules["trio"]
            self.loop, self._event = trio.lowlevel.current_trio_token(), trio.Event()
        else:
            self.loop = _running_loop()()
            self._event = self.loop.create_future()

    def __await__(self) -> Generator[Any, None, None]:
        event = self._event
        awaitable = event if hasattr(event, "__await__") else event.wait()
        awaited: Generator[Any, None, None] = awaitable.__await__()
        return awaited

    def end(self) -> None:
        """End the await; a second call changes nothing."""
        _wake(self.loop, ((self, None),))

    def outcome(self) -> Any:
        """Return the result, which is released, or raise its error."""
        result, self.result = self.result, None
        try:
            if isinstance(result, BaseException):
                stop_daemon()
                raise result
            return result
        finally:
            del self, result  # the traceback refers to this frame: break the cycle


def end_all(waiters: Sequence[Waiter], results: Sequence[Any]) -> None:
    """End several awaits with their results; each event loop is woken once."""
    loops = {waiter.loop for waiter in waiters}
    for loop in loops:
        ended = zip(waiters, results, strict=True)
        _wake(loop, ended if len(loops) == 1 else [pair for pair in ended if pair[0].loop is loop])


def _wake(loop: Any, ended: Iterable[tuple[Waiter, Any]]) -> None:
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is loop:  # this thread runs the loop
        _resume(ended)
        return
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        if hasattr(loop, "call_soon_threadsafe"):
            loop.call_soon_threadsafe(_resume, ended)
        else:
            loop.run_sync_soon(_set, ended)


def _resume(ended: Iterable[tuple[Waiter, Any]]) -> None:
    for waiter, result in ended:
        waiter.result = result
        if not waiter._event.done():
            waiter._event.set_result(None)


def _set(ended: Iterable[tuple[Waiter, Any]]) -> None:
    for waiter, result in ended:
        waiter.result = result
        waiter._event.set()


def runs_event_loop() -> bool:
    """Whether this thread is running an event loop, which must not be blocked."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    trio: Any = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def check_may_block(what: str, instead: str) -> None:
    """Raise an InvalidStateError if this thread is running an event loop."""
    if runs_event_loop():
        raise InvalidStateError(f"{what} would block this thread's event loop; use {instead}")


def check_interrupts_nothing(what: str) -> None:
    """Raise an InvalidStateError where blocking would deadlock; see `interrupts_own_call`."""
    if interrupts_own_call():
        raise InvalidStateError(
            f"{what}: called by a finalizer or signal handler in the midst of another call on this"
            " thread, it would wait for work that only that call can go on with; call it on another"
            " thread, or later"
        )


PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
LOCKING_FOLDERS = (
    PACKAGE + os.path.join("ordering", ""),
    PACKAGE + os.path.join("engines", "webgpu", "runtime", ""),
)
"""Folders whose functions hold locks or run work, also while they call others."""
LOCKING_FILES = tuple(
    PACKAGE + os.path.join(*file)
    for file in (
        ("core", "completion.py"),
        ("core", "lru_cache.py"),
        ("core", "workers.py"),
        ("api", "unordered_pool.py"),
        ("api", "session.py"),
        ("api", "tensor_memory.py"),
    )
)
"""Files whose functions hold locks, but not while they call others."""


def interrupts_own_call() -> bool:
    """Whether this thread is inside another call of the package that holds locks or runs work.

    Python runs finalizers and signal handlers between any two instructions of a thread. One that
    blocks there may wait for work that its own thread was about to do.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back  # skip the frames of the present call
    nearest = True
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE):
            if frame.f_code is Completion.wait.__code__:  # a waiting thread holds no locks
                return False
            if frame.f_code is uninterrupted.__code__:
                return True
            if file.startswith(LOCKING_FOLDERS) or (nearest and file in LOCKING_FILES):
                return True
            nearest = False
        frame = frame.f_back
    return False
