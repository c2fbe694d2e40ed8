"""GPU drivers in a child process that os.fork() made: they do not work there."""

from __future__ import annotations

from webnn_py.core import fork_guard
from webnn_py.core.errors import InvalidStateError
from webnn_py.engines.webgpu.runtime.wgpu_native import encoding, native

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
    encoding.abandon()
    _drivers_of_parent = native.abandon_drivers()
    if _drivers_of_parent:
        fork_guard.skip_library_exit_handlers()


fork_guard.after_fork_in_child(_abandon_drivers)
