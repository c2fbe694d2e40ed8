"""Threads of users that compute when Python ends.

Python ends a daemon thread where it next asks for the interpreter, which aborts the process if that
is within a library of C++. So what is in one then is waited for, and nothing else begins there. A
daemon thread that asks for it, or whose work fails for that reason, ends silently: if Python ended
while it wrote of an error, that would abort the process, too.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # registers what is to be called behind
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from webnn_py.core import gil_yield

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

ENDING = "Python ends"
"""Why work fails then."""

_CALLS: list[tuple[Any, str]] = []
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_begun = threading.Event()


def calls_libraries(*methods: str) -> Callable[[C], C]:
    """Name the methods of a class that are in a library of C++ for most of their time."""

    def name(made: C) -> C:
        _CALLS.extend((made, method) for method in methods)
        return made

    return name


def calls_library(function: F) -> F:
    """As `calls_libraries`, of a function of a module that is looked up there at each call."""
    _CALLS.append((sys.modules[function.__module__], function.__name__))
    return function


def stop_daemon() -> None:
    """Stop this thread for good if Python ends, where Python would stop it a little later.

    Called before it is told of an error: what became of its work is of no interest any more.
    """
    if _begun.is_set() and _is_stopped_by_python():
        threading.Event().wait()


def _is_stopped_by_python() -> bool:
    """Whether this is a daemon thread of the user's; the package's own are waited for."""
    return threading.current_thread().daemon and not gil_yield.enabled()


def finish_calls() -> None:
    """Wait for calls of libraries when Python ends, and have no other begin on daemon threads."""
    _begun.set()
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


def _begin() -> None:
    """The main thread has ended; from now on no executor takes work, which some builds need."""
    threading.excepthook = functools.partial(_tell, threading.excepthook)


# What is registered last is called first: before executors end, where Python has such a list.
getattr(threading, "_register_atexit", atexit.register)(_begin)


def _tell(hook: Callable[[Any], object], raised: Any) -> None:
    """Tell of an error that ends a thread, unless it is the package's on one that Python stops."""
    traceback, ours = raised.exc_traceback, False
    while traceback is not None:
        ours = ours or traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE)
        traceback = traceback.tb_next
    if not (ours and _is_stopped_by_python()):
        hook(raised)


def _refused_to_daemons(method: Callable[..., Any]) -> Callable[..., Any]:
    """What others do, such as functions that Python calls when it ends, goes on."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_stopped_by_python():
            raise SystemExit(ENDING)
        return method(*args, **kwargs)

    return call


def _is_within(frame: FrameType | None, codes: set[CodeType]) -> bool:
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
