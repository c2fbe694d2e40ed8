"""Results that arrive from another thread, awaited under asyncio or trio, or waited for."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from webnn_py.core.errors import ContextLostError, InvalidStateError

T = TypeVar("T")
CANCELLED = "the context was destroyed before this work ran"


class Completion(Generic[T]):
    """One result that any thread may set, once, and any number may await.

    Awaiting can be cancelled at any moment; the work goes on and its result is not used.
    """

    def __init__(self, future: Future[T] | None = None) -> None:
        self._future: Future[T] = Future() if future is None else future

    def set_result(self, result: T) -> None:
        """Resolve; a second call changes nothing."""
        with contextlib.suppress(Exception):
            self._future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        """Fail; a second call changes nothing."""
        with contextlib.suppress(Exception):
            self._future.set_exception(error)

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._future.done()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the thread that resolves, or now."""
        self._future.add_done_callback(lambda _: callback())

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` with the error if the work fails or is cancelled with its context."""

        def arrived(future: Future[T]) -> None:
            if future.cancelled():
                callback(ContextLostError(CANCELLED))
            elif (error := future.exception()) is not None:
                callback(error)

        self._future.add_done_callback(arrived)

    def wait(self, timeout: float | None = None) -> T:
        """Block this thread for the result.

        Raises:
            TimeoutError: It did not come within `timeout` seconds.
        """
        try:
            return self._future.result(timeout)
        except CancelledError:
            raise ContextLostError(CANCELLED) from None

    async def settled(self) -> None:
        """Wait until it is done, well or not."""
        if not self._future.done():
            await (_trio_wait(self._future) if _in_trio() else _asyncio_wait(self._future))

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.settled().__await__()
        return self.wait(0)


class Cancellation:
    """Whether one piece of work is cancelled; sections of it run whole or not at all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._current: Completion[None] = Completion()
        self._current.set_result(None)

    @contextlib.contextmanager
    def section(self) -> Iterator[bool]:
        """One section of the work; gives False if the work was cancelled before."""
        section: Completion[None] = Completion()
        with self._lock:
            wanted = not self._cancelled
            if wanted:
                self._current = section
        try:
            yield wanted
        finally:
            section.set_result(None)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def cancel(self) -> Completion[None]:
        """Let no section begin any more; the result is done when the one under way is."""
        with self._lock:
            self._cancelled = True
            return self._current


async def wait_or_cancel(
    done: Completion[T],
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
    with contextlib.suppress(RuntimeError):
        return asyncio is not None and asyncio.get_running_loop() is not None
    return False


async def _asyncio_wait(future: Future[Any]) -> None:
    import asyncio  # late: a fifth of the package's import time, and a running loop has it already

    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def resolve() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def arrived(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(resolve)

    future.add_done_callback(arrived)
    await waiter


async def _trio_wait(future: Future[Any]) -> None:
    trio: Any = sys.modules["trio"]
    event = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def arrived(_: Future[Any]) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(event.set)

    future.add_done_callback(arrived)
    await event.wait()


def check_may_block(what: str, instead: str) -> None:
    """Raise an InvalidStateError on a thread that is running an event loop."""
    if _in_trio() or _in_asyncio():
        raise InvalidStateError(f"{what} would block this thread's event loop; use {instead}")
