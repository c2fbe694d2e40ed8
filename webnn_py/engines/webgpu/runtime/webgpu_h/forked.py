"""Children of os.fork(), in which a library of WebGPU must release nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webnn_py.core import fork_guard
from webnn_py.core.errors import InvalidStateError


class ForkedDrivers:
    """The drivers of a library, which hang or crash in a child process.

    Args:
        abandon: Stops all releases in a child; returns whether the parent had loaded the drivers.
    """

    def __init__(self, abandon: Callable[[], bool]) -> None:
        self._abandon = abandon
        self._are_parents = False
        fork_guard.after_fork_in_child(self._begin_child)

    def _begin_child(self) -> None:
        self._are_parents = self._abandon()
        if self._are_parents:
            fork_guard.skip_library_exit_handlers()

    def check_process(self) -> None:
        """Raise an InvalidStateError in a child process whose parent had loaded the drivers."""
        if self._are_parents:
            raise InvalidStateError(
                "the GPU's driver was loaded before os.fork(), and does not work in the child"
                " process; make GPU contexts in the child only, or start processes by another"
                " method (multiprocessing: 'spawn')"
            )


def skip_releases(api: Any) -> None:
    """Have the GPU objects of a module's classes release nothing."""
    for member in vars(api).values():
        if isinstance(member, type) and "_release" in dir(member):
            setattr(member, "_release", skip_release)  # noqa: B010


def skip_release(thing: Any) -> None:
    """Do nothing, in place of releasing a GPU object."""
