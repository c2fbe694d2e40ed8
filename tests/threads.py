"""Running functions on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable

LONG = 20.0
"""Seconds that nothing takes, unless it hangs."""


def in_threads(*works: Callable[[], None]) -> None:
    """Run all at once; raise what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait(LONG)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * LONG)
        assert not thread.is_alive(), errors or "a thread hangs"
    if errors:
        raise errors[0]
