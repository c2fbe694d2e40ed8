"""Shutdown of Python while daemon threads of the user compute.

At shutdown Python ends a daemon thread when it next asks for the GIL. Inside a C++ library this
aborts the process. So shutdown waits for threads inside such calls, and no further call begins on a
daemon thread. A daemon thread that calls one, or whose work fails during shutdown, stops without an
error message: if Python ended the thread while it wrote one, that would abort the process too.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # registers its shutdown hook first, to run after ours
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
"""Reason in errors of work that fails during shutdown."""

_CALLS: list[tuple[Any, str]] = []
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_begun = threading.Event()


def calls_libraries(*methods: str) -> Callable[[C], C]:
    """Name the methods of a class that spend most of their time in a C++ library."""

    def register(cls: C) -> C:
        _CALLS.extend((cls, method) for method in methods)
        return cls

    return register


def calls_library(function: F) -> F:
    """Do as `calls_libraries` for a module's function; callers must look it up at each call."""
    _CALLS.append((sys.modules[function.__module__], function.__name__))
    return function


def stop_daemon() -> None:
    """Block this thread forever if Python is shutting down and would soon end it.

    Call it before an error is reported: nobody needs the result of the work any more.
    """
    if _begun.is_set() and _is_stopped_by_python():
        threading.Event().wait()


def _is_stopped_by_python() -> bool:
    """Whether this is a daemon thread of the user; shutdown waits for the package's own."""
    return threading.current_thread().daemon and not gil_yield.enabled()


def finish_calls() -> None:
    """Wait for library calls at shutdown, and prevent new ones on daemon threads."""
    _begun.set()
    if len(sys._current_frames()) == 1:
        return
    codes: set[CodeType] = set()
    for owner, name in _CALLS:
        method = getattr(owner, name)
        codes.add(method.__code__)
        setattr(owner, name, _refuse_to_daemons(method))
    ended = 0
    while ended < 2:  # a thread may have looked a method up before, and call it only now
        time.sleep(0.001)
        running = (_is_within(frame, codes) for frame in sys._current_frames().values())
        ended = 0 if any(running) else ended + 1


def _begin() -> None:
    """Note that the main thread has ended; from now on executors refuse the work of some builds."""
    threading.excepthook = functools.partial(_report_error, threading.excepthook)


# Hooks run in reverse order of registration: this one runs before executors end.
getattr(threading, "_register_atexit", atexit.register)(_begin)


def _report_error(hook: Callable[[Any], object], raised: Any) -> None:
    """Report an error that ends a thread, unless it is ours on a thread that Python stops."""
    traceback, ours = raised.exc_traceback, False
    while traceback is not None:
        ours = ours or traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE)
        traceback = traceback.tb_next
    if not (ours and _is_stopped_by_python()):
        hook(raised)


def _refuse_to_daemons(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method to end daemon threads that call it; atexit functions may still call it."""

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
