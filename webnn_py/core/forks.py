"""What a child process finds after os.fork(): no other threads, and locks that may be held forever.

Whatever has threads, or a driver that has, is of no use there and says so; see `FORKED`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

FORKED = (
    "was made before os.fork() and does not work in the child process; make it after the fork,"
    " or start processes by another method (multiprocessing: 'spawn')"
)


def in_child(callback: Callable[[], None]) -> None:
    """Call `callback` first thing in every child process that os.fork() makes from now on."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=callback)


def finalize(thing: object, callback: Callable[[], None]) -> None:
    """Call `callback` when `thing` is gone or Python ends, but in no child process."""
    owner = os.getpid()

    def call() -> None:
        if os.getpid() == owner:
            callback()

    weakref.finalize(thing, call)
