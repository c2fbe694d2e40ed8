"""What a context has begun on its device and waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Protocol

from webnn_py.core.completion import Cancellation, Completion

Fail = Callable[[BaseException], None]


class Recorded(Protocol):
    """What a context has recorded and not yet submitted."""

    @property
    def nothing_recorded(self) -> bool:
        """Whether there is nothing to submit."""
        ...

    def submit_recorded(self) -> None:
        """Submit it."""
        ...


class UnderWay:
    """What is to fail if the context is lost first; nobody then waits for the device."""

    def __init__(self) -> None:
        self._fails: dict[Hashable, Fail] = {}
        self._error: BaseException | None = None

    def add(self, work: Hashable, fail: Fail) -> None:
        """Have `fail` told if the context is lost before `remove`."""
        self._fails[work] = fail
        if self._error is not None:  # another thread lost the context just now
            self.fail(self._error)

    def add_result(self, done: Completion[None], cancellation: Cancellation) -> None:
        """Have a result fail likewise, but not while it is being written."""

        def fail(error: BaseException) -> None:
            cancellation.cancel().on_done(lambda: done.set_exception(error))

        self.add(done, fail)
        done.on_done(functools.partial(self._fails.pop, done, None))

    def remove(self, work: Hashable) -> None:
        """It is done; harmless if it was told that it is not."""
        self._fails.pop(work, None)

    def fail(self, error: BaseException) -> None:
        """All fail, and what is still added."""
        self._error = error
        for work in tuple(self._fails):
            fail = self._fails.pop(work, None)
            if fail is not None:
                fail(error)
