"""Results that arrive from another thread, awaited under asyncio or trio, or waited for."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from _thread import RLock  # as threading's, which is a function that makes one
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, Generic, TypeVar

from webnn_py.core.errors import InvalidStateError, OperationError
from webnn_py.core.exit_guard import stop_daemon
from webnn_py.core.thread_priority import shorten_slice

T = TypeVar("T")

CANCELLED = "the work was cancelled before it began"


class Completion(Generic[T]):
    """One result that any thread may set, once, and any number may await.

    Awaiting can be cancelled at any moment; the work goes on and its result is not used.

    Unlike a `concurrent.futures.Future` it costs next to nothing where nobody waits on a thread.
    """

    __slots__ = ("_callbacks", "_deferred", "_lock", "_outcome")

    def __init__(self) -> None:
        self._outcome: tuple[BaseException | None, Any] | None = None
        self._deferred: Callable[[], None] | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._lock = RLock()  # a finalizer may fail what its own thread just resolves

    @classmethod
    def of(cls, future: Future[T]) -> Completion[T]:
        """The completion of work that was given to an executor."""
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
        """Resolve; a second call changes nothing."""
        self._resolve((None, result))

    def set_exception(self, error: BaseException) -> None:
        """Fail; a second call changes nothing."""
        if isinstance(error, OperationError) and str(error) == CANCELLED:
            error.with_traceback(None)  # nobody reads it, and its frames may have what has this
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
        """Whether the result is there."""
        return self._outcome is not None

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` from the thread that resolves, or now."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                return
        callback()

    def _forget(self, callback: Callable[[], object]) -> None:
        """Take a callback back whose caller waits no more; the result may never come."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.remove(callback)

    def leave(self, work: Callable[[], None]) -> None:
        """Leave what is to be done for the result to this thread, which is about to wait for it."""
        self._deferred = work

    def wait(self, timeout: float | None = None) -> T:
        """Block this thread for the result.

        Raises:
            TimeoutError: It did not come within `timeout` seconds.
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
            del self, error  # its traceback has this frame, which is not to keep it alive

    async def settled(self) -> None:
        """Wait until it is done, well or not."""
        if self._outcome is None:
            await self._arrival()

    def __await__(self) -> Generator[Any, None, T]:
        if self._outcome is None:
            yield from self._arrival().__await__()
        return self.wait(0)

    async def _arrival(self) -> None:
        """Wait until it is done, well or not."""
        shorten_slice()
        waiter = Waiter()
        self.on_done(waiter.end)
        try:
            await waiter
        except BaseException:
            self._forget(waiter.end)
            raise


class Cancellation:
    """Whether one piece of work is cancelled; sections of it run whole or not at all.

    `with` is such a section; it gives False if the work was cancelled before.
    """

    __slots__ = ("_cancelled", "_ended", "_lock", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._running = False
        self._ended: Completion[None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def check(self) -> None:
        """Raise an OperationError if the work, which is about to begin, was cancelled."""
        if self._cancelled:
            raise OperationError(CANCELLED)

    def cancel(self) -> Completion[None]:
        """Let no section begin any more; the result is done when the one under way is."""
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
        done: What to await.
        cancellation: The work's.
        withdraw: Takes the work out of where it waits to begin, if it does.
        settle: Let the section under way come to its end before the await ends.
    """
    try:
        return await done
    except BaseException as error:
        if isinstance(error, GeneratorExit) and isinstance(done, Completion) and done.done:
            raise  # the loop is gone, and a finalizer takes no lock for nothing
        current = cancellation.cancel()
        if withdraw is not None:
            withdraw()
        if settle:
            await wait_settled(error, current)
        raise


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Await, and cancel that after so many seconds; None for no limit.

    Raises:
        TimeoutError: It was cancelled.
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
    """Wait until it is done, even in a task that an error ends, such as one that is cancelled."""
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
    """Hold a lock; unless this `waits`, only if nobody else does. Gives whether it is held.

    A finalizer is not to wait, as it runs on any thread: such as one that another is starting.
    """
    held = lock.acquire(blocking=waits)
    try:
        yield held
    finally:
        if held:
            lock.release()


async def next_turn() -> None:
    """Let all else that the running event loop has to do take its turn."""
    if _in_trio():
        trio: Any = sys.modules["trio"]
        await trio.lowlevel.checkpoint()
        return
    import asyncio

    await asyncio.sleep(0)


def _in_trio() -> bool:
    """Whether a task of trio runs here; its loop may be a guest of another one."""
    trio: Any = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


@functools.cache
def _running_loop() -> Callable[[], Any]:
    import asyncio  # late: a fifth of the package's import time, and a loop has it already

    return asyncio.get_running_loop


class Waiter:
    """An await of one task, made where its event loop runs, which any thread may end.

    Attributes:
        loop: The event loop, of asyncio, or trio's token of it.
        result: What it ended with, once it has.
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
        told = self._event
        awaitable = told if hasattr(told, "__await__") else told.wait()
        awaited: Generator[Any, None, None] = awaitable.__await__()
        return awaited

    def end(self) -> None:
        """Let it come to its end; a second call changes nothing."""
        _wake(self.loop, ((self, None),))

    def outcome(self) -> Any:
        """What it ended with, which is handed over, or its error raised."""
        result, self.result = self.result, None
        try:
            if isinstance(result, BaseException):
                stop_daemon()
                raise result
            return result
        finally:
            del self, result  # its traceback has this frame, which is not to keep it alive


def end_all(waiters: Sequence[Waiter], results: Sequence[Any]) -> None:
    """Let them come to their ends, each with its result; each event loop is woken once."""
    loops = {waiter.loop for waiter in waiters}
    for loop in loops:
        ended = zip(waiters, results, strict=True)
        _wake(loop, ended if len(loops) == 1 else [pair for pair in ended if pair[0].loop is loop])


def _wake(loop: Any, ended: Iterable[tuple[Waiter, Any]]) -> None:
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is loop:  # on this very thread
        _resume(ended)
        return
    with contextlib.suppress(RuntimeError):  # it was closed, or trio has ended, meanwhile
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
    """Whether this thread is running an event loop, which is not to be blocked."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    trio: Any = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def check_may_block(what: str, instead: str) -> None:
    """Raise an InvalidStateError on a thread that is running an event loop."""
    if runs_event_loop():
        raise InvalidStateError(f"{what} would block this thread's event loop; use {instead}")


def check_interrupts_nothing(what: str) -> None:
    """Raise an InvalidStateError where waiting would deadlock; see `interrupts_own_call`."""
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
"""Where all calls hold locks or run work, also in what they call."""
LOCKING_FILES = tuple(
    PACKAGE + os.path.join(*file)
    for file in (
        ("core", "completion.py"),
        ("core", "lru_owners.py"),
        ("core", "lru_cache.py"),
        ("core", "workers.py"),
        ("api", "unordered_pool.py"),
        ("api", "session.py"),
        ("api", "tensor_memory.py"),
    )
)
"""Where functions hold locks themselves."""


def interrupts_own_call() -> bool:
    """Whether this thread was in the midst of a call that holds locks or runs work.

    Python calls finalizers and signal handlers between any two instructions of a thread. Who waits
    there for other work of the package may wait for what this very thread was about to do.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back  # the call itself
    nearest = True
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE):
            if frame.f_code is Completion.wait.__code__:  # nothing is held where a thread waits
                return False
            if file.startswith(LOCKING_FOLDERS) or (nearest and file in LOCKING_FILES):
                return True
            nearest = False
        frame = frame.f_back
    return False
