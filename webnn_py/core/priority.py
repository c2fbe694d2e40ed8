"""Threads that compute for long leave their core to one that wakes for a moment, as event loops do.

Linux lets what has run no more than its share go on until the next tick of its clock, 4 ms mostly,
whatever wakes on that core. Threads of a higher niceness have had their share sooner, and one of
longer slices is not kept running against one of shorter ones (since Linux 6.12).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from webnn_py.core.workers import Workers

T = TypeVar("T")

NICENESS = 5
"""How much is added; where others compute all the time, too, it leaves a quarter of a core."""

SLICE = 10_000_000
"""Nanoseconds; not for threads that may have the interpreter, which others then wait for."""

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""The number of the system call sched_setattr, which not all C libraries have as a function."""


def stand_back(slices: bool = False) -> None:
    """Have this thread, and those that it begins, leave their core sooner.

    Not where its scheduling was chosen, nor on systems other than Linux, where niceness is that of
    a whole process. It cannot be undone.

    Args:
        slices: Give it longer slices, too.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # it may be forbidden
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return
        thread = threading.get_native_id()
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
        number = _SET_ATTRIBUTES.get(os.uname().machine) if sys.maxsize > 1 << 32 else None
        if slices and number is not None:
            attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, niceness, 0, SLICE, 0, 0)
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def begun_behind(make: Callable[[], T]) -> T:
    """What `make` gives, which begins threads of a library's own: these stand back."""

    def behind() -> T:
        stand_back(slices=True)
        return make()

    thread = Workers("webnn-begin")
    try:
        return thread.run(behind).wait()
    finally:
        thread.finish()
