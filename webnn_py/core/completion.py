"""Results that arrive from another thread, awaited under asyncio or trio, or waited for."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from webnn_py.core.errors import InvalidStateError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Completion(Generic[T]):
    """One result that any thread may set, once, and any number may await.

    Awaiting can be cancelled at any moment; the work goes on and its result is not used.

    Unlike a `concurrent.futures.Future` it costs next to nothing where nobody waits on a thread.
    """

    __slots__ = ("_callbacks", "_left", "_lock", "_outcome")

    def __init__(self) -> None:
        self._outcome: tuple[BaseException | None, Any] | None = None
        self._left: Callable[[], None] | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.RLock()  # a finalizer may fail what its own thread just resolves

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

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the thread that resolves, or now."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                return
        callback()

    def leave(self, work: Callable[[], None]) -> None:
        """Leave what is to be done for the result to this thread, which is about to wait for it."""
        self._left = work

    def wait(self, timeout: float | None = None) -> T:
        """Block this thread for the result.

        Raises:
            TimeoutError: It did not come within `timeout` seconds.
        """
        if self._left is not None:
            work, self._left = self._left, None
            work()
        if self._outcome is None:
            arrived = threading.Lock()
            arrived.acquire()
            self.on_done(arrived.release)
            arrived.acquire(timeout=-1 if timeout is None else timeout)
        if self._outcome is None:
            raise TimeoutError
        error, result = self._outcome
        if error is None:
            return cast(T, result)
        try:
            raise error
        finally:
            del self, error  # its traceback has this frame, which is not to keep it alive

    async def settled(self) -> None:
        """Wait until it is done, well or not."""
        if self._outcome is None:
            await self._waiter()

    def __await__(self) -> Generator[Any, None, T]:
        if self._outcome is None:
            yield from self._waiter().__await__()
        return self.wait(0)

    def _waiter(self) -> Waiter:
        """What the running event loop awaits until it is done, well or not."""
        waiter = Waiter()
        self.on_done(waiter.end)
        return waiter


class Cancellation:
    """Whether one piece of work is cancelled; sections of it run whole or not at all."""

    __slots__ = ("_cancelled", "_ended", "_lock", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._running = False
        self._ended: Completion[None] | None = None

    def section(self) -> Section:
        """One section of the work, for `with`; gives False if the work was cancelled before."""
        return Section(self)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def cancel(self) -> Completion[None]:
        """Let no section begin any more; the result is done when the one under way is."""
        with self._lock:
            self._cancelled = True
            ended = self._ended = self._ended or Completion()
            running = self._running
        if not running:
            ended.set_result(None)
        return ended

    def _begin(self) -> bool:
        with self._lock:
            self._running = not self._cancelled
            return self._running

    def _end(self) -> None:
        with self._lock:
            self._running = False
            ended = self._ended
        if ended is not None:
            ended.set_result(None)


class Section:
    """What `Cancellation.section` gives; a class, as generators cost more than a small graph."""

    __slots__ = ("_cancellation",)

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation

    def __enter__(self) -> bool:
        return self._cancellation._begin()

    def __exit__(self, *raised: object) -> None:
        self._cancellation._end()


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
        current = cancellation.cancel()
        if withdraw is not None:
            withdraw()
        if settle and not isinstance(error, GeneratorExit):  # then the loop is gone
            await _settle(current)
        raise


async def _settle(completion: Completion[Any]) -> None:
    """Wait until it is done, even in a task that is being cancelled."""
    if _in_trio():
        trio: Any = sys.modules["trio"]
        with trio.CancelScope(shield=True):
            await completion.settled()
        return
    import asyncio

    while not completion.done:
        with contextlib.suppress(asyncio.CancelledError):
            await completion.settled()


def _in_trio() -> bool:
    trio: Any = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def _in_asyncio() -> bool:
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class _Collected(threading.local):
    """What a thread is about to wake, by event loop (or trio's token), while it collects that."""

    waiters: dict[Any, list[Any]] | None = None


_collected = _Collected()


@contextlib.contextmanager
def waking_together() -> Iterator[None]:
    """Wake each event loop once for all that is resolved in the block, at its end.

    Not within another such block.
    """
    collected = _collected.waiters = {}
    try:
        yield
    finally:
        _collected.waiters = None
        for loop, waiters in collected.items():
            _wake(loop, waiters)


class Waiter:
    """An await of one task, made where its event loop runs, which any thread may end."""

    __slots__ = ("_loop", "_told")

    def __init__(self) -> None:
        if _in_trio():
            trio: Any = sys.modules["trio"]
            self._loop, self._told = trio.lowlevel.current_trio_token(), trio.Event()
        else:
            import asyncio  # late: a fifth of the package's import time, and a loop has it already

            self._loop = asyncio.get_running_loop()
            self._told = self._loop.create_future()

    def __await__(self) -> Generator[Any, None, None]:
        told = self._told
        awaited: Generator[Any, None, None] = (told.wait() if _in_trio() else told).__await__()
        return awaited

    def end(self) -> None:
        """Let it come to its end; a second call changes nothing."""
        collected = _collected.waiters
        if collected is None:
            _wake(self._loop, [self._told])
        else:
            collected.setdefault(self._loop, []).append(self._told)


def _wake(loop: Any, waiters: list[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed, or trio has ended, meanwhile
        if hasattr(loop, "call_soon_threadsafe"):
            loop.call_soon_threadsafe(_resume, waiters)
        else:
            loop.run_sync_soon(_set, waiters)


def _resume(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _set(events: list[Any]) -> None:
    for event in events:
        event.set()


def runs_event_loop() -> bool:
    """Whether this thread is running an event loop, which is not to be blocked."""
    return _in_trio() or _in_asyncio()


def check_may_block(what: str, instead: str) -> None:
    """Raise an InvalidStateError on a thread that is running an event loop."""
    if runs_event_loop():
        raise InvalidStateError(f"{what} would block this thread's event loop; use {instead}")
