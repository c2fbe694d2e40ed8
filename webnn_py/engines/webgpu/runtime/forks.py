"""GPU drivers in a child process that os.fork() made: they do not work there."""

from __future__ import annotations

import contextlib
import ctypes

from webnn_py.core import forks
from webnn_py.core.errors import InvalidStateError
from webnn_py.engines.webgpu.runtime import native

_drivers_of_parent = False
"""Whether this is a child process, and its parent had loaded the drivers."""


def check_process() -> None:
    """Raise an InvalidStateError in a child process whose parent had loaded the drivers."""
    if _drivers_of_parent:
        raise InvalidStateError(
            "the GPU's driver was loaded before os.fork(), and does not work in the child process;"
            " make GPU contexts in the child only, or start processes by another method"
            " (multiprocessing: 'spawn')"
        )


def _abandon_drivers() -> None:
    """After a fork: give nothing back to drivers, which hang or crash when they are called."""
    global _drivers_of_parent
    _drivers_of_parent = native.abandon_drivers()
    if _drivers_of_parent:
        _end_without_drivers()


def _end_without_drivers() -> None:
    """End this process, when it does, before drivers wait for threads that it does not have.

    They registered that with the C library, which calls what was registered last first.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # glibc has it, others do not
        library.on_exit(library["_exit"], None)
        library.__cxa_atexit(library.fflush, None, None)


forks.in_child(_abandon_drivers)
