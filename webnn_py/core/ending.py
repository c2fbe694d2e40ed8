"""Threads of users that are in a library of C++ when Python ends.

Python ends a daemon thread where it next asks for the interpreter, which aborts the process if that
is within such a library. So what is in one then is waited for, and nothing else begins there. A
daemon thread that asks for it ends silently: if Python ended while it wrote of an error, that would
abort the process, too.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from webnn_py.core.workers import ENDING

C = TypeVar("C", bound=type)

_CALLS: list[tuple[type, str]] = []


def calls_libraries(*methods: str) -> Callable[[C], C]:
    """Name the methods of a class that are in a library of C++ for most of their time."""

    def name(made: C) -> C:
        _CALLS.extend((made, method) for method in methods)
        return made

    return name


@atexit.register
def _finish() -> None:
    if len(sys._current_frames()) == 1:
        return
    codes: set[CodeType] = set()
    for made, name in _CALLS:
        method = getattr(made, name)
        codes.add(method.__code__)
        setattr(made, name, _refused_to_daemons(method))
    ended = 0
    while ended < 2:  # a thread may be about to call what it has looked up before
        time.sleep(0.001)
        running = (_is_within(frame, codes) for frame in sys._current_frames().values())
        ended = 0 if any(running) else ended + 1


def _refused_to_daemons(method: Callable[..., Any]) -> Callable[..., Any]:
    """What others do, such as functions that Python calls when it ends, goes on."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().daemon:
            raise SystemExit(ENDING)
        return method(*args, **kwargs)

    return call


def _is_within(frame: FrameType | None, codes: set[CodeType]) -> bool:
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
