"""Offers of the GIL to other threads during long Python work.

A thread that waits for the GIL requests it after 5 ms (`sys.getswitchinterval`), which stalls an
event loop. Long work on a context's own threads sleeps briefly more often.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

YIELD_INTERVAL_S = 0.002
"""Seconds between two offers of the GIL to other threads."""

YIELD_SLEEP_S = 2e-4
"""Seconds to sleep: a waiting thread takes this long to wake and take the GIL."""

BACKGROUND_INTERVAL_S = 5e-4
"""Seconds between two offers of background work: an await takes the GIL several times."""

BACKGROUND_SLEEP_S = 2e-3
"""Seconds that background work sleeps at each offer, so that other threads take the GIL."""

CONTENDED_SLEEP_S = 2e-2
"""Seconds that background work sleeps while a caller waits for other work."""


class Abandoned(BaseException):
    """Stops background work that nobody needs; a BaseException, so that no handler continues."""


class _State(threading.local):
    due = float("inf")
    is_needless: Callable[[], bool] | None = None


_state = _State()
_awaited: set[object] = set()


def enable() -> None:
    """Have `checkpoint` offer the GIL on this thread from now on."""
    _state.due = time.perf_counter() + YIELD_INTERVAL_S


def enabled() -> bool:
    """Whether this thread offers the GIL, as an event loop may wait for it."""
    return _state.due != float("inf")


def is_in_background() -> bool:
    """Whether this thread does work that no caller waits for."""
    return _state.is_needless is not None


def checkpoint() -> None:
    """Offer the GIL if the interval has passed; does nothing on threads that are not enabled."""
    if time.perf_counter() < _state.due:
        return
    is_needless = _state.is_needless
    time.sleep(_sleep_seconds())
    _state.due = time.perf_counter() + (
        YIELD_INTERVAL_S if is_needless is None else BACKGROUND_INTERVAL_S
    )
    if is_needless is not None and is_needless():
        raise Abandoned


def _sleep_seconds() -> float:
    if not is_in_background():
        return YIELD_SLEEP_S
    return CONTENDED_SLEEP_S if _awaited else BACKGROUND_SLEEP_S


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """Mark work here as awaited: background work sleeps longer meanwhile."""
    token = object()
    _awaited.add(token)
    try:
        yield
    finally:
        _awaited.discard(token)


@contextlib.contextmanager
def abandon_when(is_needless: Callable[[], bool]) -> Iterator[None]:
    """Run background work that stops at a checkpoint once `is_needless` returns True."""
    _state.is_needless = is_needless
    try:
        with contextlib.suppress(Abandoned):
            yield
    finally:
        _state.is_needless = None


def checkpoints(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a checkpoint before each."""
    for item in items:
        checkpoint()
        yield item
