"""How far a build is: told by what compiles, to whoever asked for it on the same thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

BuildProgress = Callable[[int, int], None]
"""Told how many parts of a build are done, and of how many: pipelines on a GPU."""


class _State(threading.local):
    tell: BuildProgress | None = None


_state = _State()


def told(tell: BuildProgress | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work on this thread; `tell` is called there as its parts are done."""
    before, _state.tell = _state.tell, tell
    try:
        return work(*args, **kwargs)
    finally:
        _state.tell = before


def counted(done: Iterable[T], total: int) -> Iterator[T]:
    """Things that take their time, each told of as it comes."""
    tell = _state.tell
    if tell is None or not total:
        yield from done
        return
    tell(0, total)
    for number, thing in enumerate(done, 1):
        tell(number, total)
        yield thing
