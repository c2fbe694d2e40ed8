"""Scheduling of long computations, so that event loops get a core quickly.

Linux lets a thread within its CPU share run on until the next clock tick, mostly 4 ms, even if
another thread wakes on that core. A thread of higher niceness exhausts its share sooner. Since
Linux 6.12 a thread with a longer slice yields to one with a shorter slice, such as an event loop
that awaits something.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LONG_RUN_SECONDS = 0.02
"""Shortest run that lowers a thread's priority: after it, threads of short runs would wait for
cores.
"""

NICENESS_STEP = 5
"""Increase in niceness; beside other threads that compute all the time it leaves a quarter of a
core.
"""

LONG_SLICE_NS = 10_000_000
"""Nanoseconds of a long slice; only for threads that never hold the GIL."""

SHORT_SLICE_NS = 1_000_000
"""Nanoseconds of a short slice: less than the default on two cores or more."""

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""Number of the system call sched_setattr; not all C libraries have a function for it."""

_TASKS = Path("/proc/self/task")
_NUMBERS = itertools.count()


class _Thread(threading.local):
    """What is known of this thread.

    Attributes:
        may_lower: Whether it may lower its priority.
        has_short_slice: Whether it has short slices, which new threads inherit.
    """

    may_lower = False
    has_short_slice = False


THREAD = _Thread()


def enable() -> None:
    """Let this thread lower its priority after long work; it must be the package's own."""
    THREAD.may_lower = True


def note_duration(seconds: float) -> None:
    """Note how long work of this thread takes; lower its priority if that is long."""
    if seconds >= LONG_RUN_SECONDS and THREAD.may_lower:
        THREAD.may_lower = False
        lower_priority()


def lower_priority(thread: int | None = None, slices: bool = False) -> None:
    """Raise a thread's niceness, so that others get its core sooner. It cannot be undone.

    It does nothing if the thread has a chosen scheduling policy, and on systems other than Linux,
    where niceness is per process.

    Args:
        thread: The system's thread number; this thread if None.
        slices: Lengthen its slices too.
    """
    if sys.platform != "linux":
        return
    thread = threading.get_native_id() if thread is None else thread
    with contextlib.suppress(OSError):  # it may be forbidden, or the thread have ended
        if os.sched_getscheduler(thread) != os.SCHED_OTHER:
            return
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS_STEP)
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
        if slices:
            _set_slice(thread, niceness, LONG_SLICE_NS)


def shorten_slice() -> None:
    """Give this thread short slices, so that it gets a core as soon as it wakes.

    Its share of the cores stays the same. It does nothing if the thread has a chosen scheduling
    policy, and on other systems.
    """
    if THREAD.has_short_slice:
        return
    THREAD.has_short_slice = True
    _set_own_slice(SHORT_SLICE_NS)


def reset_slice() -> None:
    """Give this thread the system's default slice instead of the inherited one."""
    _set_own_slice(0)


def _set_own_slice(nanoseconds: int) -> None:
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(thread) == os.SCHED_OTHER:
            _set_slice(thread, os.getpriority(os.PRIO_PROCESS, thread), nanoseconds)


def _set_slice(thread: int, niceness: int, nanoseconds: int) -> None:
    number = _SET_ATTRIBUTES.get(os.uname().machine) if sys.maxsize > 1 << 32 else None
    if number is not None:
        attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, niceness, 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(number, thread, attributes, 0)


def call_and_find_threads(make: Callable[[], T]) -> tuple[T, list[int]]:
    """Call a function; return its result and the numbers of the native threads that it started.

    New threads inherit the name of their creator. So the call runs on a new thread with a unique
    name. The list is empty where names cannot be read.
    """
    made: list[T] = []
    begun: list[int] = []
    errors: list[BaseException] = []

    def begin() -> None:
        own, name = threading.get_native_id(), f"webnn-{next(_NUMBERS)}"
        try:
            known = _named(own, name)
            made.append(make())
            if known:
                begun.extend(task for task in _tasks_named(name) if task != own)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=begin, name="webnn-begin", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return made[0], begun


def _named(task: int, name: str) -> bool:
    """Name a thread of this process; return whether that worked."""
    with contextlib.suppress(OSError):
        (_TASKS / str(task) / "comm").write_text(name)
        return True
    return False


def _tasks_named(name: str) -> list[int]:
    found = []
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().strip() == name:
                found.append(int(task.name))
    return found
