"""Letting other threads have the interpreter while a long piece of Python runs.

A thread that waits for the interpreter asks for it after 5 ms (`sys.getswitchinterval`), which an
event loop feels as a stall. Long work on a context's own threads offers it more often.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

YIELD_INTERVAL_S = 0.002
"""Seconds between two offers."""

YIELD_SLEEP_S = 2e-4
"""Seconds to sleep: a thread that waits takes this long to wake, and must not find it taken."""

BACKGROUND_INTERVAL_S = 5e-4
"""Seconds between two offers of background work, which no caller waits for."""

BACKGROUND_SLEEP_S = 2e-3
"""As `YIELD_SLEEP_S`, of such work."""

CONTENDED_SLEEP_S = 2e-2
"""As `BACKGROUND_SLEEP_S`, while somebody waits for other work."""


class Abandoned(BaseException):
    """Work was left that nobody needs any more; not an error, for nothing to go on behind it."""


class _State(threading.local):
    due = float("inf")
    needless: Callable[[], bool] | None = None


_state = _State()
_awaited: set[object] = set()


def enable() -> None:
    """Be courteous on this thread from now on."""
    _state.due = time.perf_counter() + YIELD_INTERVAL_S


def enabled() -> bool:
    """Whether this thread is one of those: an event loop may be waiting."""
    return _state.due != float("inf")


def is_in_background() -> bool:
    """Whether nobody waits for what is done here."""
    return _state.needless is not None


def checkpoint() -> None:
    """Let others run if it is time to; nothing on threads that are not enabled."""
    if time.perf_counter() < _state.due:
        return
    needless = _state.needless
    time.sleep(_pause())
    _state.due = time.perf_counter() + (
        YIELD_INTERVAL_S if needless is None else BACKGROUND_INTERVAL_S
    )
    if needless is not None and needless():
        raise Abandoned


def _pause() -> float:
    if not is_in_background():
        return YIELD_SLEEP_S
    return CONTENDED_SLEEP_S if _awaited else BACKGROUND_SLEEP_S


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """Have work in the background pause for longer, as somebody waits for what is done here."""
    this = object()
    _awaited.add(this)
    try:
        yield
    finally:
        _awaited.discard(this)


@contextlib.contextmanager
def abandoned(needless: Callable[[], bool]) -> Iterator[None]:
    """Leave what is done here on an enabled thread, at a checkpoint, once it is needless."""
    _state.needless = needless
    try:
        with contextlib.suppress(Abandoned):
            yield
    finally:
        _state.needless = None


def checkpoints(things: Iterable[T]) -> Iterator[T]:
    """The things, with an offer before each."""
    for thing in things:
        checkpoint()
        yield thing
