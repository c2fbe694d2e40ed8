"""What a child process finds after os.fork(): no other threads, and locks that may be held forever.

Whatever has threads, or a driver that has, is of no use there and says so; see `FORKED`.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

FORKED = (
    "was made before os.fork() and does not work in the child process; make it after the fork,"
    " or start processes by another method (multiprocessing: 'spawn')"
)


def after_fork_in_child(callback: Callable[[], None]) -> None:
    """Call `callback` first thing in every child process that os.fork() makes from now on."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=callback)


_LEFT: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_alive_in_child(thing: object) -> None:
    """Give nothing of this back in a child process: a library or an object of one with threads."""
    _LEFT.add(thing)


def _leave() -> None:
    if not _LEFT:
        return
    import ctypes

    for thing in _LEFT:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    skip_library_exit_handlers()


after_fork_in_child(_leave)


def skip_library_exit_handlers() -> None:
    """End this process, when it does, before libraries wait for threads that it does not have.

    They registered that with the C library, which calls what was registered last first.
    """
    import ctypes

    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # glibc has it, others do not
        library.on_exit(library["_exit"], None)
        library.__cxa_atexit(library.fflush, None, None)
