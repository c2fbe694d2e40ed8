"""The event loops that awaiting works under, driven alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
import trio

Main = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Main], None]


def under_asyncio(main: Main) -> None:
    """Run a coroutine function to its end."""
    asyncio.run(main())


def under_uvloop(main: Main) -> None:
    """As `under_asyncio`, on the loop of another library."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


LOOPS: dict[str, Run] = {"asyncio": under_asyncio, "uvloop": under_uvloop, "trio": trio.run}


def _in_asyncio() -> bool:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


async def pause(seconds: float = 0) -> None:
    """Let other tasks of the loop run."""
    await (asyncio.sleep(seconds) if _in_asyncio() else trio.sleep(seconds))


async def cancel_after(work: Main, begun: Main) -> None:
    """Start `work`, cancel it when `begun` returns, and wait until it has ended."""
    if not _in_asyncio():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await begun()
            nursery.cancel_scope.cancel()
        return
    task = asyncio.ensure_future(work())
    await begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def together(works: Iterable[Main]) -> None:
    """Run all at once and wait for all; the first error ends them."""
    if _in_asyncio():
        await asyncio.gather(*(work() for work in works))
        return
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)


async def limited(work: Main, seconds: float) -> bool:
    """Run, but cancel after so many seconds; whether it came to its end."""
    if not _in_asyncio():
        with trio.move_on_after(seconds) as scope:
            await work()
        return not scope.cancelled_caught
    try:
        async with asyncio.timeout(seconds):
            await work()
    except TimeoutError:
        return False
    return True
