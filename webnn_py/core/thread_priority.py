"""Threads that compute for long leave their core to one that wakes for a moment, as event loops do.

Linux lets what has run no more than its share go on until the next tick of its clock, 4 ms mostly,
whatever wakes on that core. Threads of a higher niceness have had their share sooner, and one of
longer slices is not kept running against one of shorter ones (since Linux 6.12), such as that of an
event loop which awaits something.
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
"""Seconds of one run from which on it pays: threads of short ones would wait for cores often."""

NICENESS_STEP = 5
"""How much is added; where others compute all the time, too, it leaves a quarter of a core."""

LONG_SLICE_NS = 10_000_000
"""Nanoseconds; not for threads that may have the interpreter, which others then wait for."""

SHORT_SLICE_NS = 1_000_000
"""The same of threads that wake for a moment: less than others have on two cores or more."""

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""The number of the system call sched_setattr, which not all C libraries have as a function."""

_TASKS = Path("/proc/self/task")
_NUMBERS = itertools.count()


class _State(threading.local):
    may_lower = False
    has_short_slice = False


_state = _State()


def enable() -> None:
    """Have this thread stand back once its work takes long: it is the package's own."""
    _state.may_lower = True


def note_duration(seconds: float) -> None:
    """Work of this thread took so long, or will: the thread stands back where that is long."""
    if seconds >= LONG_RUN_SECONDS and _state.may_lower:
        _state.may_lower = False
        lower_priority()


def lower_priority(thread: int | None = None, slices: bool = False) -> None:
    """Have a thread leave its core sooner.

    Not where its scheduling was chosen, nor on systems other than Linux, where niceness is that of
    a whole process. It cannot be undone.

    Args:
        thread: Its number in the system; this one if None.
        slices: Give it longer slices, too.
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
    """Have this thread get a core as soon as it wakes, from threads that compute for long.

    It has the same share of the cores as before. Not where its scheduling was chosen, nor on other
    systems.
    """
    if _state.has_short_slice:
        return
    _state.has_short_slice = True
    _set_own_slice(SHORT_SLICE_NS)


def has_short_slice() -> bool:
    """Whether this thread does: those that it begins have its slices."""
    return _state.has_short_slice


def reset_slice() -> None:
    """Have this thread's slices be the system's, and not those of the thread that began it."""
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
    """What a function gives, and the threads of a library's own that it began, where that is known.

    Threads have the name of the one that begins them, which is a new one here.
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
    """Give a thread of this process a name; whether that could be."""
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
