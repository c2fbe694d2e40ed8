"""Guards for child processes of os.fork(), which have no other threads and may have locked locks.

Objects with threads, or with a driver that has threads, do not work in the child and raise
`FORKED`.
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
    """Call `callback` at the start of every child process that os.fork() makes from now on."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=callback)


_KEPT_ALIVE: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_alive_in_child(thing: object) -> None:
    """Never free this object in a child process: its destructor would wait for missing threads."""
    _KEPT_ALIVE.add(thing)


def _keep_alive() -> None:
    if not _KEPT_ALIVE:
        return
    import ctypes

    for thing in _KEPT_ALIVE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    skip_library_exit_handlers()


after_fork_in_child(_keep_alive)


def skip_library_exit_handlers() -> None:
    """End this process at exit before libraries wait for threads that the child does not have.

    Their handlers are registered with the C library, which runs them in reverse order.
    """
    import ctypes

    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # only glibc has `on_exit`
        library.on_exit(library["_exit"], None)
        library.__cxa_atexit(library.fflush, None, None)
